"""Decision on the transform: fit it to the moments of all units, and decide whether the index uses it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.flows.encode.probe import SampleTexts, encode_texts
from pipeline.flows.rows import LiveRows, Placed
from pipeline.flows.run import Run
from pipeline.flows.transform.moments import live_moments
from pipeline.flows.transform.write import store_transform
from pipeline.flows.workers.tasks import Pool
from pipeline.log import Running, say
from pipeline.post import Transform, load_transform
from pipeline.post.chain import fit_transform, name_of
from pipeline.post.choose import Curve, tune_transform
from pipeline.post.compare import (
    MIN_WORDS,
    Comparison,
    Dev,
    DevPairs,
    Halves,
    compare,
    noun,
    split_halves,
    subject,
)
from pipeline.settings import FlowSettings, Job, WhitenSettings
from pipeline.stats.drift import drift
from pipeline.stats.moments import Moments
from pipeline.store.arrays import plain_type
from pipeline.store.base import Store
from pipeline.store.manifest import Choice, ReleaseManifest, Whitened
from pipeline.store.once import stored_by_content
from pipeline.store.store import open_store
from pipeline.store.units import Corpus, FileRef

_SHORTEST = 2 * MIN_WORDS - 1  # characters: eight words of one letter
_FEWEST_TEXTS = 10  # for a comparison
_FEWEST_ROWS = 10  # for holding some out
# at most that many, and a fifth: their mean log-likelihood is known to a hundredth of its standard deviation
_HELD_ROWS = 10_000


@dataclass(frozen=True)
class Decision:
    """The fitted transform, whether the index uses it, and why. fitted: None if nothing could be fitted."""

    moments: Moments
    moments_ref: FileRef
    fitted: Transform | None
    used: bool
    sentence: str
    comparison: Comparison | None = None
    ref: FileRef | None = None
    curves: tuple[Curve, ...] = ()
    """scores by which k and remove were chosen tonight"""
    since: Whitened | None = None
    """the decision of an earlier night that is kept; None for a decision of tonight"""
    numbers: dict[str, float | int | None] = field(default_factory=dict)

    @property
    def transform(self) -> Transform | None:
        """Return the transform that the index applies, if any."""
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
    units: Sequence[Placed],
    before: ReleaseManifest | None = None,
) -> Decision:
    """Keep the previous release's decision while its fit describes the vectors, else decide by `whiten.mode`.

    Raises:
        DataError: too few rows for the fit and whiten.mode is `on`; with `auto` the vectors stay raw.
    """
    job, store = run.job, source.store
    with run.stages("whiten") as bar:
        moments = live_moments(run, source, units)
        reference = stored_by_content(
            store, moments.to_bytes(), "moments/merged", ".safetensors", rows=moments.count
        )
        kept = _kept(job, store, moments, reference, before)
        decision = kept or _decide(_Fit(run, source, corpus, tuple(units), moments, bar), reference)
        bar.stage.note = "used" if decision.used else "not used"
    say(decision.sentence)
    return decision


def _kept(
    job: Job, store: Store, moments: Moments, reference: FileRef, before: ReleaseManifest | None
) -> Decision | None:
    """Keep the decision of the previous release.

    Returns None, and logs the reason, if it must be made again.
    """
    then = _standing(job.whiten, before)
    if before is None or then is None:
        return None
    if then.fitted is None:
        return _refused_again(job, store, moments, reference, before, then)
    try:
        fitted_on, fitted = then.fitted_on.read(store), then.fitted.read(store)
    except FileNotFoundError as error:
        gone = error.filename or error
        say(f"the {noun(job.whiten.transform)} is fitted again: {gone}, of release {before.release}, is gone")
        return None
    moved, transform = drift(Moments.from_bytes(fitted_on), moments), load_transform(fitted)
    numbers: dict[str, float | int | None] = {
        "shift": moved.shift,
        "spread": moved.spread,
        "outside": moved.outside,
        "max_drift": job.whiten.max_drift,
    }
    parts = f"shift {moved.shift:.4f}, spread {moved.spread:.4f}, outside {moved.outside:.4f}"
    figures = f"drift {moved.distance:.4f} ({parts})"
    name = noun(name_of(transform))
    if moved.distance > job.whiten.max_drift:
        limit = f"whiten.max_drift {job.whiten.max_drift:g}"
        say(f"the {name} is fitted again: {figures} since it was fitted exceeds {limit}")
        return None
    kept = f"The {name} of release {before.release} is kept, {'used' if then.used else 'not used'}"
    sentence = f"{kept}: {figures} of at most {job.whiten.max_drift:g}."
    return Decision(
        moments, reference, transform, then.used, sentence, None, then.fitted, since=then, numbers=numbers
    )


def _refused_again(
    job: Job, store: Store, moments: Moments, reference: FileRef, before: ReleaseManifest, then: Whitened
) -> Decision | None:
    """Keep the decision that nothing can be fitted, unless there are more rows or other vectors than then.

    Returns None if a fit is to be tried again.
    """
    most = job.whiten.max_drift
    try:
        was = Moments.from_bytes(then.fitted_on.read(store))
        if (
            job.whiten.mode == "off"
            or moments.count > (1 + most) * was.count
            or (moved := drift(was, moments)).distance > most
        ):
            return None
    except (FileNotFoundError, DataError):  # DataError: too few rows to compute a drift
        return None
    numbers: dict[str, float | int | None] = {
        "drift": moved.distance,
        "max_drift": most,
        "rows": moments.count,
        "rows_then": was.count,
    }
    figures = f"{moments.count:,} rows, {was.count:,} then, drift {moved.distance:.4f} of at most {most:g}"
    sentence = f"{then.sentence} No fit was tried again: {figures}, as of release {before.release}."
    return Decision(moments, reference, None, False, sentence, since=then, numbers=numbers)


def _standing(settings: WhitenSettings, before: ReleaseManifest | None) -> Whitened | None:
    """Return the previous release's decision, even a failed fit, if it has the same settings; else None."""
    if before is None or before.whitening is None:
        return None
    given, wanted = before.settings.get("whiten", {}), settings.model_dump(mode="json")
    return before.whitening if _deciding(given) == _deciding(wanted) else None


def _deciding(settings: dict[str, object]) -> WhitenSettings | None:
    """Return the settings that determine a decision; None for settings of another version.

    Settings that an older release did not know have their defaults.
    """
    # settings without influence on a fit that a release has; max_drift concerns an existing fit only
    apart = {"write_vectors": False, "max_drift": 1.0, "flow": FlowSettings()}
    try:
        return WhitenSettings.model_validate(settings).model_copy(update=apart)
    except ValueError:
        return None


def _decide(fit: "_Fit", reference: FileRef) -> Decision:
    moments, settings = fit.moments, fit.job.whiten
    name = subject(settings.transform)
    if settings.mode == "off":
        return Decision(moments, reference, None, False, f"{name} is off (whiten.mode).")
    if "dev" in (settings.k, settings.remove) and fit.dev is None:
        raise DataError(
            "whiten",
            f"at least {_FEWEST_TEXTS} texts of {MIN_WORDS} words or more to choose on",
            "fewer",
            "set whiten.dev, or name numbers",
        )
    try:
        fitted, curves = fit.made()
    except DataError as error:
        if settings.mode == "on":
            raise
        return Decision(
            moments, reference, None, False, f"{name} is not used: it cannot be fitted ({error})."
        )
    if fitted.shortage:
        if settings.mode == "on":
            raise DataError(
                "whiten",
                "enough rows for the fit",
                fitted.shortage,
                "lower whiten.k, give more text, or set whiten.mode to auto or off",
            )
        return Decision(moments, reference, None, False, f"{name} is not used: {fitted.shortage}.")
    return _judged(fit, reference, fitted, curves)


def _judged(fit: "_Fit", reference: FileRef, fitted: Transform, curves: tuple[Curve, ...]) -> Decision:
    """Store the fitted transform, and use it as `whiten.mode` says."""
    moments, name, ref = fit.moments, name_of(fitted), store_transform(fit.source.store, fitted)
    told = "; ".join([*fitted.notes, *(curve.sentence for curve in curves)])
    if fit.job.whiten.mode == "on":
        return Decision(
            moments,
            reference,
            fitted,
            True,
            f"{subject(name)} is used (whiten.mode is on): {told}.",
            None,
            ref,
            curves,
        )
    if fit.dev is None:
        found = f"fewer than ten texts of {MIN_WORDS} words or more to compare on"
        return Decision(
            moments,
            reference,
            fitted,
            False,
            f"{subject(name)} is not used: {found}; set whiten.dev or whiten.mode.",
            None,
            ref,
            curves,
        )
    comparison = compare(fit.dev, fitted, name)
    return Decision(
        moments,
        reference,
        fitted,
        comparison.uses_whitening,
        f"{comparison.sentence} The fit: {told}.",
        comparison,
        ref,
        curves,
    )


@dataclass(frozen=True)
class _Fit:
    """The data that a transform is fitted to and judged on."""

    run: Run
    source: LiveRows
    corpus: Corpus
    units: tuple[Placed, ...]
    moments: Moments
    bar: Running

    @property
    def job(self) -> Job:
        return self.run.job

    def made(self) -> tuple[Transform, tuple[Curve, ...]]:
        """Return the fitted transform, and the curves by which k and remove were chosen."""
        settings = self.job.whiten
        held = self._held() if settings.k == "likelihood" else None
        chosen, curves = tune_transform(
            settings, self.moments, self.dev if "dev" in (settings.k, settings.remove) else None, held
        )
        return fit_transform(self.moments, chosen, self.source.space_id, self._trained), curves

    @cached_property
    def dev(self) -> Dev | None:
        """Encode `whiten.dev`, else halves of the corpus's own texts; None with fewer than ten of these."""
        settings = self.job.whiten
        if settings.dev:
            left, right, gold = dev_pairs(settings.dev)
            vectors = encode_texts(self.run, (*left, *right))
            return DevPairs(vectors[: len(left)], vectors[len(left) :], gold, settings.dev)
        sample = SampleTexts(self.source.store, settings.dev_texts, _SHORTEST, self.corpus.dead)
        texts = self.run.workers.run(sample, self.corpus.units, Pool(1))
        halves = [pair for pair in map(split_halves, texts) if pair]
        if len(halves) < _FEWEST_TEXTS:
            return None
        vectors = encode_texts(self.run, (*(first for first, _ in halves), *(last for _, last in halves)))
        return Halves(vectors[: len(halves)], vectors[len(halves) :])

    def _held(self) -> Moments:
        if self.moments.count < _FEWEST_ROWS:
            raise DataError(
                "whiten.k=likelihood",
                f"at least {_FEWEST_ROWS} rows, some of them to hold out",
                f"{self.moments.count}",
                "name a number, or give more text",
            )
        task = HeldMoments(self.source, min(_HELD_ROWS, self.moments.count // 5))
        reference = self.run.workers.run(task, self.units, Pool(1))
        return Moments.from_bytes(reference.read(self.source.store))

    def _trained(self, name: str, before: Transform | None, space_id: str) -> Transform:
        """Train the last step, which moments do not determine."""
        from pipeline.flows.transform.train_flow import FlowTraining, train_flow

        training = FlowTraining(self.source, self.units, self.job.whiten.flow, before, self.dev)
        return train_flow(training, self.run.workers, Pool.of_one(self.job.cluster), self.bar)


@dataclass(frozen=True)
class HeldMoments:
    """Compute the moments of `count` live rows, chosen by hash of id, as a file."""

    source: LiveRows
    count: int

    def start(self) -> Callable[[tuple[Placed, ...]], FileRef]:
        return self._work

    def _work(self, units: tuple[Placed, ...]) -> FileRef:
        moments = Moments.of(self.source.sample(units, self.count, "held out")[1])
        stem = f"moments/{self.source.space_id[:16]}/held"
        return stored_by_content(
            self.source.store, moments.to_bytes(), stem, ".safetensors", rows=moments.count
        )


def check_dev(settings: WhitenSettings, before: ReleaseManifest | None = None) -> None:
    """Raise DataError for an unusable whiten.dev, before any work is done for it.

    A fit of an earlier night under the same settings needs none; if that night could not fit, tonight may try
    again.
    """
    then = _standing(settings, before)
    if settings.dev and settings.mode != "off" and (then is None or then.fitted is None):
        dev_pairs(settings.dev)


def dev_pairs(uri: str) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """Read sentence1, sentence2 and score of an STS file.

    A missing sentence becomes a single space; a pair without a score is dropped.

    Raises:
        DataError: not a Parquet file, columns missing or of another type, or scores not finite or all equal.
    """
    where, (left, right, scores) = f"whiten.dev: {uri}", _dev_columns(uri)
    numbers = np.asarray(pc.cast(scores, pa.float64(), safe=False).to_numpy())  # NaN if missing
    gold, kept = numbers[~np.isnan(numbers)], pa.array(~np.isnan(numbers))
    if np.isinf(gold).any():
        raise DataError(
            where,
            "finite scores",
            f"{int(np.isinf(gold).sum()):,} infinite ones",
            "correct the file; a pair without a score has null there",
        )
    if len(gold) < 2 or np.ptp(gold) == 0:
        found = f"{len(gold):,}" if len(gold) < 2 else f"{len(gold):,} pairs, all with {gold[0]:g}"
        raise DataError(where, "at least two pairs with different scores", found, "give another dev file")
    first, second = (
        tuple(text or " " for text in column.filter(kept).to_pylist()) for column in (left, right)
    )
    return first, second, gold


def _dev_columns(uri: str) -> tuple[pa.ChunkedArray, ...]:
    # a link is followed here, since a store follows none out of its root
    path = uri if "://" in uri else str(Path(uri).expanduser().resolve())
    parent, _, name = path.rpartition("/")
    wanted, where = ("sentence1", "sentence2", "score"), f"whiten.dev: {uri}"
    try:
        table = pq.read_table(open_store(parent or "/").open(name))
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(
            where, "a Parquet file", " ".join(f"{type(error).__name__}: {error}".split()), "check the path"
        ) from None
    if missing := [column for column in wanted if column not in table.column_names]:
        raise DataError(
            where,
            f"columns {', '.join(wanted)}",
            f"{', '.join(table.column_names)}",
            f"add {', '.join(missing)}",
        )
    kinds = [plain_type(table.schema.field(column).type) for column in wanted]
    if not all(map(_is_text, kinds[:2])) or not (
        pa.types.is_integer(kinds[2]) or pa.types.is_floating(kinds[2])
    ):
        raise DataError(
            where, "two columns of strings and scores as numbers", ", ".join(map(str, kinds)), "cast them"
        )
    return tuple(table[column].cast(kind) for column, kind in zip(wanted, kinds, strict=True))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
