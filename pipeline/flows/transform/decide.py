"""Decide on the transform: keep the previous release's fit, or fit again and compare; then use it or not."""

from dataclasses import dataclass, field, replace
from functools import cached_property

from pipeline.errors import DataError
from pipeline.flows.rows import LiveRows, PlacedUnit
from pipeline.flows.run import Run
from pipeline.flows.transform.dev import LEAST_TEXTS, dev_pairs, dev_task
from pipeline.flows.transform.moments import held_moments, live_moments
from pipeline.flows.transform.write import store_transform
from pipeline.flows.workers.tasks import Pool
from pipeline.log import Running, say
from pipeline.post import Transform, load_transform
from pipeline.post.chain import fit_transform, name_of
from pipeline.post.choose import Curve, tune_transform
from pipeline.post.compare import MIN_WORDS, Comparison, DevTask, compare, noun, subject
from pipeline.settings import FlowSettings, WhitenSettings
from pipeline.stats.drift import drift
from pipeline.stats.moments import Moments
from pipeline.store.manifest import Choice, ReleaseManifest, Whitened
from pipeline.store.once import stored_by_content
from pipeline.store.stored import FileRef
from pipeline.store.units import Corpus


@dataclass(frozen=True)
class Decision:
    """The fitted transform, whether the index uses it, and why.

    Attributes:
        moments: of the live rows.
        moments_ref: their file.
        sentence: the decision with its reason.
        fitted: the transform; None if nothing could be fitted.
        used: whether the index applies it.
        comparison: with raw vectors, if one was made tonight.
        ref: file of the transform.
        curves: scores by which k and remove were chosen tonight.
        since: the decision of an earlier night that is kept; None for a decision of tonight.
        numbers: measurements that it depends on.
    """

    moments: Moments
    moments_ref: FileRef
    sentence: str = ""
    fitted: Transform | None = None
    used: bool = False
    comparison: Comparison | None = None
    ref: FileRef | None = None
    curves: tuple[Curve, ...] = ()
    since: Whitened | None = None
    numbers: dict[str, float | int | None] = field(default_factory=dict)

    @property
    def transform(self) -> Transform | None:
        """The transform that the index applies, if any."""
        return self.fitted if self.used else None

    def whitened(self) -> Whitened:
        """Return the record for later nights."""
        return self.since or Whitened(
            fitted=self.ref, fitted_on=self.moments_ref, used=self.used, sentence=self.sentence
        )

    def choice(self) -> Choice:
        """Return the entry of the report."""
        numbers = {**self.numbers, **(self.comparison.numbers() if self.comparison else {})}
        for curve in self.curves:
            numbers |= curve.numbers()
        return Choice(
            what="whitening",
            chosen=f"{'kept' if self.since else 'decided'}, {'used' if self.used else 'not used'}",
            sentence=self.sentence,
            numbers=numbers,
        )


def decide_transform(
    run: Run,
    source: LiveRows,
    corpus: Corpus,
    units: tuple[PlacedUnit, ...],
    before: ReleaseManifest | None = None,
) -> Decision:
    """Keep the previous release's decision while its fit describes the vectors, else decide by `whiten.mode`.

    Raises:
        DataError: too few rows for the fit and whiten.mode is `on`; with `auto` the vectors stay raw.
    """
    with run.stages("whiten") as bar:
        moments = live_moments(run, source, units)
        file = stored_by_content(
            source.store, moments.to_bytes(), "moments/merged", ".safetensors", rows=moments.count
        )
        deciding = _Deciding(run, source, corpus, units, Decision(moments, file), bar)
        decision = deciding.kept(before) if before else None
        decision = decision or deciding.made()
        bar.stage.note = "used" if decision.used else "not used"
    say(decision.sentence)
    return decision


def check_dev(settings: WhitenSettings, before: ReleaseManifest | None = None) -> None:
    """Raise DataError for an unusable whiten.dev, before any work is done for it.

    A fit of an earlier night under the same settings needs none; if that night could not fit, tonight may try
    again.
    """
    then = _decided(settings, before) if before else None
    if settings.dev and settings.mode != "off" and (then is None or then.fitted is None):
        dev_pairs(settings.dev)


def _decided(settings: WhitenSettings, before: ReleaseManifest) -> Whitened | None:
    """Return the previous release's decision, even a failed fit, if it has the same settings; else None."""
    given, wanted = before.settings.get("whiten", {}), settings.model_dump(mode="json")
    return before.whitening if _decisive(given) == _decisive(wanted) else None


def _decisive(settings: dict[str, object]) -> WhitenSettings | None:
    """Return the settings that determine a decision; None for settings of another version.

    Settings that an older release did not know have their defaults.
    """
    # settings without influence on a fit that a release has; max_drift concerns an existing fit only
    others = {"write_vectors": False, "max_drift": 1.0, "flow": FlowSettings()}
    try:
        return WhitenSettings.model_validate(settings).model_copy(update=others)
    except ValueError:
        return None


@dataclass(frozen=True)
class _Deciding:
    """The data that a transform is fitted to and judged on. raw: the decision to use none, without reason."""

    run: Run
    source: LiveRows
    corpus: Corpus
    units: tuple[PlacedUnit, ...]
    raw: Decision
    bar: Running

    @property
    def settings(self) -> WhitenSettings:
        return self.run.job.whiten

    def kept(self, before: ReleaseManifest) -> Decision | None:
        """Keep the decision of the previous release.

        Returns None, and logs the reason, if it must be made again.
        """
        then = _decided(self.settings, before)
        if then is None or then.fitted is None:
            return self._still_unfitted(then, before.release) if then else None
        try:
            fitted_on, fitted = then.fitted_on.read(self.source.store), then.fitted.read(self.source.store)
        except FileNotFoundError as error:
            say(
                f"the {noun(self.settings.transform)} is fitted again: {error.filename or error}, of release "
                f"{before.release}, is gone"
            )
            return None
        moved, transform = drift(Moments.from_bytes(fitted_on), self.raw.moments), load_transform(fitted)
        numbers = {"shift": moved.shift, "spread": moved.spread, "outside": moved.outside}
        parts = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
        measured, most = f"drift {moved.distance:.4f} ({parts})", self.settings.max_drift
        name = noun(name_of(transform))
        if moved.distance > most:
            say(
                f"the {name} is fitted again: {measured} since it was fitted exceeds whiten.max_drift "
                f"{most:g}"
            )
            return None
        kept = f"The {name} of release {before.release} is kept, {'used' if then.used else 'not used'}"
        return replace(
            self.raw,
            sentence=f"{kept}: {measured} of at most {most:g}.",
            fitted=transform,
            used=then.used,
            ref=then.fitted,
            since=then,
            numbers={**numbers, "max_drift": most},
        )

    def _still_unfitted(self, then: Whitened, release: int) -> Decision | None:
        """Keep the decision that nothing can be fitted, unless rows were added or the vectors drifted since.

        Returns None if a fit is to be tried again.
        """
        moments, most = self.raw.moments, self.settings.max_drift
        try:
            was = Moments.from_bytes(then.fitted_on.read(self.source.store))
            if (
                self.settings.mode == "off"
                or moments.count > (1 + most) * was.count
                or (distance := drift(was, moments).distance) > most
            ):
                return None
        except (FileNotFoundError, DataError):  # DataError: too few rows to compute a drift
            return None
        now = f"{moments.count:,} rows, {was.count:,} then, drift {distance:.4f} of at most {most:g}"
        return replace(
            self.raw,
            sentence=f"{then.sentence} No fit was tried again: {now}, as of release {release}.",
            since=then,
            numbers={"drift": distance, "max_drift": most, "rows": moments.count, "rows_then": was.count},
        )

    def made(self) -> Decision:
        """Fit the transform, and use it as `whiten.mode` says."""
        settings = self.settings
        name, on = subject(settings.transform), settings.mode == "on"
        if settings.mode == "off":
            return replace(self.raw, sentence=f"{name} is off (whiten.mode).")
        if self._tunes_on_dev and self.dev is None:
            raise DataError(
                "whiten",
                f"at least {LEAST_TEXTS} texts of {MIN_WORDS} words or more to choose on",
                "fewer",
                "set whiten.dev, or name numbers",
            )
        try:
            fitted, curves = self._fitted()
        except DataError as error:
            if on:
                raise
            return replace(self.raw, sentence=f"{name} is not used: it cannot be fitted ({error}).")
        if fitted.shortage and on:
            raise DataError(
                "whiten",
                "enough rows for the fit",
                fitted.shortage,
                "lower whiten.k, give more text, or set whiten.mode to auto or off",
            )
        if fitted.shortage:
            return replace(self.raw, sentence=f"{name} is not used: {fitted.shortage}.")
        file = store_transform(self.source.store, fitted)
        return self._judged(replace(self.raw, fitted=fitted, ref=file, curves=curves))

    def _judged(self, fit: Decision) -> Decision:
        """Compare the fitted transform with raw vectors, unless `whiten.mode` is on."""
        assert fit.fitted is not None
        name = name_of(fit.fitted)
        notes = "; ".join([*fit.fitted.notes, *(curve.sentence for curve in fit.curves)])
        if self.settings.mode == "on":
            return replace(fit, used=True, sentence=f"{subject(name)} is used (whiten.mode is on): {notes}.")
        if self.dev is None:
            return replace(
                fit,
                sentence=f"{subject(name)} is not used: fewer than ten texts of {MIN_WORDS} words or more to "
                "compare on; set whiten.dev or whiten.mode.",
            )
        result = compare(self.dev, fit.fitted, name)
        return replace(
            fit,
            used=result.uses_whitening,
            sentence=f"{result.sentence} The fit: {notes}.",
            comparison=result,
        )

    @property
    def _tunes_on_dev(self) -> bool:
        return "dev" in (self.settings.k, self.settings.remove)

    def _fitted(self) -> tuple[Transform, tuple[Curve, ...]]:
        """Return the fitted transform, and the curves by which k and remove were chosen."""
        moments, held = self.raw.moments, None
        if self.settings.k == "likelihood":
            held = held_moments(self.run, self.source, self.units, moments.count)
        chosen, curves = tune_transform(
            self.settings, moments, self.dev if self._tunes_on_dev else None, held
        )
        return fit_transform(moments, chosen, self.source.space_id, self._train_flow), curves

    @cached_property
    def dev(self) -> DevTask | None:
        """The task to compare on."""
        return dev_task(self.run, self.corpus)

    def _train_flow(self, name: str, before: Transform | None, space_id: str) -> Transform:
        """Train the last step, which moments do not determine."""
        from pipeline.flows.transform.train_flow import FlowTraining, train_flow

        training = FlowTraining(self.source, self.units, self.settings.flow, before, self.dev)
        return train_flow(training, self.run.workers, Pool.of_one(self.run.job.cluster), self.bar)
