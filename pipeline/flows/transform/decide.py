"""Decide whether the index uses a transform: the fit of the previous release, or a new one."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.flows.context import FlowContext
from pipeline.flows.encode.trial_encode import SampleTexts, encode_texts, sample_texts
from pipeline.flows.rows import LiveRows
from pipeline.flows.transform.moments import held_out_moments, live_moments
from pipeline.flows.transform.write import store_transform
from pipeline.flows.workers.tasks import Pool
from pipeline.log import RunningStage, announce
from pipeline.settings import FlowSettings, WhitenSettings
from pipeline.stats.drift import drift
from pipeline.stats.moments import Moments
from pipeline.store.files.open_store import store_of
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import Corpus
from pipeline.store.records.write_once import store_by_content
from pipeline.store.releases.manifest import Choice, ReleaseManifest, WhiteningDecision
from pipeline.store.rows.arrays import plain_type
from pipeline.text.normalize import strings_of
from pipeline.transforms.chain import fit_transform, name_of
from pipeline.transforms.choose import Curve, tune_transform
from pipeline.transforms.compare import (
    MIN_WORDS,
    Comparison,
    DevPairs,
    DevTask,
    Halves,
    compare,
    noun,
    split_halves,
    subject,
)
from pipeline.transforms.transform import Transform, load_transform

MIN_TEXTS = 10  # least number of texts for a comparison
_MIN_CHARACTERS = 2 * MIN_WORDS - 1  # shortest text of MIN_WORDS words: one letter each, and blanks


def dev_task(context: FlowContext, corpus: Corpus) -> DevTask | None:
    """Encode the pairs of whiten.dev, else halves of sampled texts; None if fewer than ten can be halved."""
    settings = context.job.whiten
    if settings.dev:
        left, right, gold = dev_pairs(settings.dev)
        vectors = encode_texts(context, (*left, *right))
        return DevPairs(vectors[: len(left)], vectors[len(left) :], gold, settings.dev)
    sample = SampleTexts(context.store, settings.dev_texts, _MIN_CHARACTERS, corpus.dead)
    texts = sample_texts(context.workers, context.job.cluster, sample, corpus.units)
    halves = [pair for pair in map(split_halves, texts) if pair]
    if len(halves) < MIN_TEXTS:
        return None
    first, second = zip(*halves, strict=True)
    vectors = encode_texts(context, (*first, *second))
    return Halves(vectors[: len(halves)], vectors[len(halves) :])


def dev_pairs(uri: str) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """Read sentence1, sentence2 and score of an STS file.

    A missing sentence becomes a single space; a pair without a score is dropped.

    Raises:
        DataError: not a Parquet file, columns missing, blank or of another type, or scores not finite or all
            equal.
    """
    location = f"whiten.dev: {uri}"
    left, right, scores = _dev_columns(uri)
    numbers = np.asarray(pc.cast(scores, pa.float64(), safe=False).to_numpy())  # NaN if missing
    has_score = ~np.isnan(numbers)
    gold = numbers[has_score]
    if infinite := int(np.isinf(gold).sum()):
        raise DataError(
            location,
            "finite scores",
            f"{infinite:,} infinite ones",
            "correct the file; a pair without a score has null there",
        )
    if len(gold) < 2 or np.ptp(gold) == 0:
        raise DataError(
            location,
            "at least two pairs with different scores",
            f"{len(gold):,}" if len(gold) < 2 else f"{len(gold):,} pairs, all with {gold[0]:g}",
            "give another dev file",
        )
    first, second = (
        tuple(text or " " for text in column.filter(pa.array(has_score)).to_pylist())
        for column in (left, right)
    )
    for role, sentences in (("sentence1", first), ("sentence2", second)):
        if not any(map(str.strip, sentences)):
            found = f"{len(sentences):,} blank or missing ones"
            raise DataError(location, f"sentences in the column {role}", found, "give another dev file")
    return first, second, gold


def _dev_columns(uri: str) -> tuple[pa.ChunkedArray, ...]:
    """Read the columns sentence1, sentence2 and score."""
    wanted, location = ("sentence1", "sentence2", "score"), f"whiten.dev: {uri}"
    store, name = store_of(uri)
    try:
        table = pq.read_table(store.open(name))
        names = table.column_names
    except (OSError, pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise DataError(
            location, "a Parquet file", " ".join(f"{type(error).__name__}: {error}".split()), "check the path"
        ) from None
    if missing := [column for column in wanted if column not in names]:
        raise DataError(
            location,
            f"columns {', '.join(wanted)}",
            ", ".join(names),
            f"add {', '.join(missing)}",
        )
    kinds = [plain_type(table.schema.field(column).type) for column in wanted]
    texts = (pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in kinds[:2])
    if not all(texts) or not (pa.types.is_integer(kinds[2]) or pa.types.is_floating(kinds[2])):
        raise DataError(
            location, "two columns of strings and scores as numbers", ", ".join(map(str, kinds)), "cast them"
        )
    for column in wanted[:2]:
        strings_of(table[column], f"{location}: {column}")  # raises for bytes that are not UTF-8
    return tuple(table[column].cast(kind) for column, kind in zip(wanted, kinds, strict=True))


@dataclass(frozen=True)
class Decision:
    """The fitted transform, whether the index uses it, and why."""

    moments: Moments
    """moments of the live rows"""
    moments_ref: FileRef
    """file of the moments"""
    sentence: str = ""
    """the decision with its reason"""
    fitted: Transform | None = None
    """the transform; None if nothing could be fitted"""
    used: bool = False
    """whether the index applies the transform"""
    comparison: Comparison | None = None
    """comparison with raw vectors; None if tonight made none"""
    ref: FileRef | None = None
    """file of the transform"""
    curves: tuple[Curve, ...] = ()
    """scores by which k and remove were chosen tonight"""
    earlier: WhiteningDecision | None = None
    """decision of an earlier night that is kept; None for a decision of tonight"""
    numbers: dict[str, float | int | None] = field(default_factory=dict)
    """measurements that the decision depends on"""
    unit_moments: tuple[FileRef | None, ...] = ()
    """by unit, the file of the moments of its live rows; None if no such file is stored"""

    @property
    def transform(self) -> Transform | None:
        """The transform that the index applies, if any."""
        return self.fitted if self.used else None

    def whitened(self) -> WhiteningDecision:
        """Return the record for later nights."""
        return self.earlier or WhiteningDecision(
            fitted=self.ref, fitted_on=self.moments_ref, used=self.used, sentence=self.sentence
        )

    def choice(self) -> Choice:
        """Return the decision in the form that releases store and reports show."""
        numbers = {**self.numbers, **(self.comparison.numbers() if self.comparison else {})}
        for curve in self.curves:
            numbers |= curve.numbers()
        return Choice(
            what="whitening",
            chosen=f"{'kept' if self.earlier else 'decided'}, {'used' if self.used else 'not used'}",
            sentence=self.sentence,
            numbers=numbers,
        )


def decide_transform(
    context: FlowContext,
    source: LiveRows,
    corpus: Corpus,
    units: tuple[VectorUnit, ...],
    previous: ReleaseManifest | None = None,
) -> Decision:
    """Keep the previous release's decision while its fit describes the vectors, else decide by `whiten.mode`.

    Raises:
        DataError: too few rows for the fit and whiten.mode is `on`; with `auto` the vectors stay raw.
    """
    if previous is not None and previous.space_id != source.space_id:
        previous = None  # a decision in another space does not apply
    with context.stages("whiten") as bar:
        moments, unit_moments = live_moments(context, source, units, previous)
        file = store_by_content(
            source.store, moments.to_bytes(), "moments/merged", ".safetensors", rows=moments.count
        )
        raw = Decision(moments, file, unit_moments=unit_moments)
        decider = _Decider(context, source, corpus, units, raw, bar)
        decision = decider.keep_previous(previous) if previous else None
        decision = decision or decider.decide()
        bar.stage.note = "used" if decision.used else "not used"
    announce(decision.sentence)
    return decision


def check_dev(settings: WhitenSettings, previous: ReleaseManifest | None = None) -> None:
    """Raise DataError if whiten.dev will be needed and cannot be used.

    The file is not needed if the previous release has a fit with the same settings.
    """
    earlier = _same_decision(settings, previous) if previous else None
    if settings.dev and settings.mode != "off" and (earlier is None or earlier.fitted is None):
        dev_pairs(settings.dev)


def _same_decision(settings: WhitenSettings, previous: ReleaseManifest) -> WhiteningDecision | None:
    """Return the previous release's decision, even a failed fit, if it has the same settings; else None."""
    old, tonight = previous.settings.get("whiten", {}), settings.model_dump(mode="json")
    return previous.whitening if _relevant_settings(old) == _relevant_settings(tonight) else None


def _relevant_settings(settings: dict[str, object]) -> WhitenSettings | None:
    """Return the settings, with constants for those that determine no decision; None if they are invalid.

    Settings that an older version did not have get their defaults.
    """
    # these settings change no fit of a release; max_drift applies to an existing fit
    ignored = {"write_vectors": False, "max_drift": 1.0, "flow": FlowSettings()}
    try:
        return WhitenSettings.model_validate(settings).model_copy(update=ignored)
    except ValueError:
        return None


@dataclass(frozen=True)
class _Decider:
    """Inputs of a decision."""

    context: FlowContext
    source: LiveRows
    corpus: Corpus
    units: tuple[VectorUnit, ...]
    raw: Decision
    """the "no transform" decision; the caller fills in the reason"""
    bar: RunningStage
    """progress bar of the stage"""

    @property
    def settings(self) -> WhitenSettings:
        return self.context.job.whiten

    def keep_previous(self, previous: ReleaseManifest) -> Decision | None:
        """Keep the decision of the previous release.

        Returns None, and logs the reason, if a new decision is needed.
        """
        earlier = _same_decision(self.settings, previous)
        if earlier is None or earlier.fitted is None:
            return self._keep_unfitted(earlier, previous.release) if earlier else None
        try:
            old_moments = Moments.from_bytes(earlier.fitted_on.read(self.source.store))
            transform = load_transform(earlier.fitted.read(self.source.store))
        except FileNotFoundError as error:
            announce(
                f"the {noun(self.settings.transform)} is fitted again: {error.filename or error}, of release "
                f"{previous.release}, is gone"
            )
            return None
        change = drift(old_moments, self.raw.moments)
        numbers = {"shift": change.shift, "spread": change.spread, "outside": change.outside}
        parts = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
        measured = f"drift {change.distance:.4f} ({parts})"
        max_drift = self.settings.max_drift
        name = noun(name_of(transform))
        if change.distance > max_drift:
            announce(
                f"the {name} is fitted again: {measured} since it was fitted exceeds whiten.max_drift "
                f"{max_drift:g}"
            )
            return None
        kept = f"The {name} of release {previous.release} is kept, {'used' if earlier.used else 'not used'}"
        return replace(
            self.raw,
            sentence=f"{kept}: {measured} of at most {max_drift:g}.",
            fitted=transform,
            used=earlier.used,
            ref=earlier.fitted,
            earlier=earlier,
            numbers={**numbers, "max_drift": max_drift},
        )

    def _keep_unfitted(self, earlier: WhiteningDecision, release: int) -> Decision | None:
        """Keep the decision that nothing can be fitted, unless rows were added or vectors drifted.

        Returns None if a fit should be tried again.
        """
        moments, max_drift = self.raw.moments, self.settings.max_drift
        if self.settings.mode == "off":
            return None
        try:
            old_moments = Moments.from_bytes(earlier.fitted_on.read(self.source.store))
            distance = drift(old_moments, moments).distance
        except (FileNotFoundError, DataError):  # `drift` raises DataError for too few rows
            return None
        if moments.count > (1 + max_drift) * old_moments.count or distance > max_drift:
            return None
        rows, old_rows = moments.count, old_moments.count
        now = f"{rows:,} rows, {old_rows:,} then, drift {distance:.4f} of at most {max_drift:g}"
        return replace(
            self.raw,
            sentence=f"{earlier.sentence} No fit was tried again: {now}, as of release {release}.",
            earlier=earlier,
            numbers={"drift": distance, "max_drift": max_drift, "rows": rows, "rows_then": old_rows},
        )

    def decide(self) -> Decision:
        """Fit the transform; whiten.mode, or with `auto` a comparison, decides whether it is used."""
        settings = self.settings
        name, is_required = subject(settings.transform), settings.mode == "on"
        if settings.mode == "off":
            return replace(self.raw, sentence=f"{name} is off (whiten.mode).")
        if self._tunes_on_dev and self.dev is None:
            raise DataError(
                "whiten",
                f"at least {MIN_TEXTS} texts of {MIN_WORDS} words or more to choose on",
                "fewer",
                "set whiten.dev, or name numbers",
            )
        try:
            fitted, curves = self._fit()
        except DataError as error:
            if is_required:
                raise
            return replace(self.raw, sentence=f"{name} is not used: it cannot be fitted ({error}).")
        if fitted.shortage and is_required:
            raise DataError(
                "whiten",
                "enough rows for the fit",
                fitted.shortage,
                "lower whiten.k, give more text, or set whiten.mode to auto or off",
            )
        if fitted.shortage:
            return replace(self.raw, sentence=f"{name} is not used: {fitted.shortage}.")
        file = store_transform(self.source.store, fitted)
        return self._compare_with_raw(replace(self.raw, fitted=fitted, ref=file, curves=curves))

    def _compare_with_raw(self, fit: Decision) -> Decision:
        """Decide whether the fitted transform is used: always if whiten.mode is on, else by a comparison."""
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

    def _fit(self) -> tuple[Transform, tuple[Curve, ...]]:
        """Return the fitted transform, and the curves by which k and remove were chosen."""
        moments = self.raw.moments
        held_out = None
        if self.settings.k == "likelihood":
            held_out = held_out_moments(self.context, self.source, self.units, moments.count)
        chosen, curves = tune_transform(
            self.settings, moments, self.dev if self._tunes_on_dev else None, held_out
        )
        return fit_transform(moments, chosen, self.source.space_id, self._train_flow), curves

    @cached_property
    def dev(self) -> DevTask | None:
        """Task on which the transform is compared with raw vectors."""
        return dev_task(self.context, self.corpus)

    def _train_flow(self, name: str, before: Transform | None, space_id: str) -> Transform:
        """Train a flow, the only step of a transform that is not fitted to moments."""
        from pipeline.flows.transform.train_flow import FlowTraining, train_flow

        training = FlowTraining(self.source, self.units, self.settings.flow, before, self.dev)
        return train_flow(training, self.context.workers, Pool.of_one(self.context.job.cluster), self.bar)
