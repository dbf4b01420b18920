"""Decide which variants of a batch of texts are kept, and why the others are rejected."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.augment.comparison import as_mask, case_fold, repetitions, text_lengths, without_punctuation
from pipeline.augment.language import check_languages, languages_of
from pipeline.settings.augment import KeepSettings
from pipeline.text.tokens.budget import deduplicate

EMPTY, IDENTICAL, TOO_SHORT, TOO_LONG, REPETITION, LANGUAGE, UNLIKE, ALIKE, DUPLICATE = REASONS = (
    "empty",
    "identical",
    "too_short",
    "too_long",
    "repetition",
    "language",
    "unlike",
    "alike",
    "duplicate",
)
"""why a variant is rejected, in the order of the tests: cheap tests, then the test with the encoder, then the
comparison of variants"""

Vectors = Callable[[list[str]], np.ndarray]
"""a function from n texts to (n, d) floats of any norm"""


@dataclass(frozen=True)
class Candidates:
    """The variants of n texts by one method, before the tests."""

    variants: pa.Array
    """n strings; null if the method made no variant"""
    reasons: pa.Array
    """n strings: why the method made no variant or only an unusable one; null otherwise"""
    settings: KeepSettings


@dataclass(frozen=True)
class JudgedVariants:
    """The variants of n texts by one method, after the tests."""

    kept: pa.Array
    """n large_strings; null if rejected"""
    rejected: pa.Array
    """n large_strings; null if kept, or if the method made no variant"""
    reasons: pa.Array
    """n strings: why the variant was rejected, or not made; null if kept"""
    similarity: pa.Array
    """n float32: cosine of the variant with its text; null if it was not measured"""

    def counts(self) -> dict[str, int]:
        """Count the variants by outcome: "kept", or the reason of the rejection."""
        reasons = Counter(self.reasons.drop_null().to_pylist())
        return {"kept": len(self.kept) - self.kept.null_count} | dict(sorted(reasons.items()))


def check_keep(settings: KeepSettings, where: str) -> None:
    """Check the language settings.

    Args:
        settings: the settings.
        where: path of the settings, for errors.

    Raises:
        ConfigError: a language is unknown, or the package that identifies languages is not installed.
    """
    if settings.language is not None:
        check_languages((settings.language, *settings.languages), f"{where}.language")


def judge(
    texts: pa.Array, candidates: Mapping[str, Candidates], vectors: Vectors | None = None
) -> dict[str, JudgedVariants]:
    """Decide which variants of n texts are kept, by label.

    A rejected variant has one reason: the reason that its method gave, or else the first of REASONS that
    applies. If two variants of a text are equal, the one with the earlier label is kept.

    Args:
        texts: the texts.
        candidates: the variants by label.
        vectors: the encoder; called at most once, for the distinct texts among the variants that passed the
            cheap tests and the texts of these variants. Required if a similarity is bounded.

    Raises:
        ConfigError: as by `check_keep`.
    """
    sources = _Texts(texts)
    trials = {label: _Trial(sources, variants) for label, variants in candidates.items()}
    for trial in trials.values():
        for test in (_empty, _identical, _length, _repetition, _language):
            test(trial)
    _similarity([trial for trial in trials.values() if trial.settings.similarity is not None], vectors)
    _duplicates(list(trials.values()))
    return {label: trial.result() for label, trial in trials.items()}


class _Texts:
    """Texts or variants in the forms that the tests compare; null if the method made no variant."""

    def __init__(self, texts: pa.Array) -> None:
        self.texts = texts.cast(pa.large_string())
        self.lengths = text_lengths(self.texts)
        self.folded = case_fold(self.texts)
        self.normalized = without_punctuation(self.folded)
        self._repetitions: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def take(self, rows: np.ndarray) -> list[str]:
        """Return the texts at these rows."""
        return self.texts.take(pa.array(rows)).to_pylist()

    def repetitions(self, run_words: int) -> tuple[np.ndarray, np.ndarray]:
        """Count the repetitions in all texts, as `comparison.repetitions`; cached for the next label."""
        if run_words not in self._repetitions:
            self._repetitions[run_words] = repetitions(self.folded, run_words)
        return self._repetitions[run_words]


class _Trial:
    """The variants of one label during the tests."""

    def __init__(self, sources: _Texts, candidates: Candidates) -> None:
        self.sources, self.variants, self.settings = sources, _Texts(candidates.variants), candidates.settings
        self.reasons = np.array(candidates.reasons.to_pylist(), object)
        self._accepted = as_mask(pc.is_null(candidates.reasons))
        self.similarity = np.full(len(self.reasons), np.nan)

    @property
    def remaining(self) -> np.ndarray:
        """(m,) int64: indices of the variants that no test has rejected so far."""
        return np.flatnonzero(self._accepted)

    def reject(self, rows: np.ndarray, reason: str) -> None:
        """Reject the variants at these rows."""
        self.reasons[rows], self._accepted[rows] = reason, False

    def result(self) -> JudgedVariants:
        """Return the kept and the rejected variants, after all tests."""
        kept, missing = pa.array(self._accepted), pa.scalar(None, pa.large_string())
        return JudgedVariants(
            kept=pc.if_else(kept, self.variants.texts, missing),
            rejected=pc.if_else(kept, missing, self.variants.texts),
            reasons=pa.array(self.reasons, pa.string()),
            similarity=pa.array(self.similarity.astype(np.float32), mask=np.isnan(self.similarity)),
        )


def _empty(trial: _Trial) -> None:
    """Reject variants without characters, and variants without words if their text has words."""
    remaining, normalized = trial.remaining, trial.variants.normalized
    wordless = pc.and_(pc.equal(normalized, "").fill_null(True), pc.not_equal(trial.sources.normalized, ""))
    empty = (trial.variants.lengths == 0) | as_mask(wordless)
    trial.reject(remaining[empty[remaining]], EMPTY)


def _identical(trial: _Trial) -> None:
    if not trial.settings.identical:
        remaining = trial.remaining
        same = as_mask(pc.equal(trial.variants.normalized, trial.sources.normalized))
        trial.reject(remaining[same[remaining]], IDENTICAL)


def _length(trial: _Trial) -> None:
    if trial.settings.length_ratio is None:
        return
    remaining, (low, high) = trial.remaining, trial.settings.length_ratio
    ratios = trial.variants.lengths[remaining] / np.maximum(trial.sources.lengths[remaining], 1)
    trial.reject(remaining[ratios < low], TOO_SHORT)
    trial.reject(remaining[ratios > high], TOO_LONG)


def _repetition(trial: _Trial) -> None:
    if trial.settings.repeats is None:
        return
    remaining, run_words = trial.remaining, trial.settings.repeat_words
    words, runs = repetitions(trial.variants.folded.take(pa.array(remaining)), run_words)
    text_words, text_runs = (counts[remaining] for counts in trial.sources.repetitions(run_words))
    repeated = (words > text_words) | (runs > np.maximum(text_runs, trial.settings.repeats))
    trial.reject(remaining[repeated], REPETITION)


def _language(trial: _Trial) -> None:
    if trial.settings.language is None:
        return
    remaining = trial.remaining
    languages = languages_of(trial.variants.take(remaining), trial.settings.languages)
    trial.reject(remaining[np.array(languages, object) != trial.settings.language], LANGUAGE)


def _similarity(trials: list[_Trial], vectors: Vectors | None) -> None:
    """Reject variants whose cosine with their text is out of bounds, or NaN because a vector is unusable."""
    # First the texts of the first trial, then its variants, then the texts of the second trial, and so on.
    texts_and_variants = list[str]()
    for trial in trials:
        texts_and_variants += trial.sources.take(trial.remaining)
        texts_and_variants += trial.variants.take(trial.remaining)
    texts, rows = deduplicate(texts_and_variants)
    if not texts:
        return
    assert vectors is not None, "a bound on the similarity needs an encoder"
    encoded = np.asarray(vectors(texts), np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        units = encoded / np.linalg.norm(encoded, axis=1, keepdims=True)
    for trial in trials:
        assert trial.settings.similarity is not None
        remaining, (low, high) = trial.remaining, trial.settings.similarity
        text_rows, variant_rows, rows = np.split(rows, [len(remaining), 2 * len(remaining)])
        cosines = np.clip((units[text_rows] * units[variant_rows]).sum(1), -1, 1)
        trial.similarity[remaining] = cosines
        trial.reject(remaining[~(cosines >= low)], UNLIKE)
        trial.reject(remaining[cosines > high], ALIKE)


def _duplicates(trials: list[_Trial]) -> None:
    """Reject variants that equal the kept variant of an earlier label."""
    for number, trial in enumerate(trials):
        if trial.settings.duplicates:
            continue
        for earlier in trials[:number]:
            both = np.intersect1d(trial.remaining, earlier.remaining, assume_unique=True)
            same = as_mask(pc.equal(trial.variants.normalized, earlier.variants.normalized))
            trial.reject(both[same[both]], DUPLICATE)
