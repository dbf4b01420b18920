"""Decide which variants of a batch of texts are kept, and why the others are rejected."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.augment.comparison import as_mask, case_fold, repetitions, text_lengths, without_punctuation
from pipeline.augment.language import check_languages, languages_of
from pipeline.settings.augment import KeepSettings
from pipeline.text.tokens.budget import distinct

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
"""in the order of the tests: cheap ones first, then the encoder, last the comparison with other variants"""

Vectors = Callable[[list[str]], np.ndarray]
"""a function from n texts to (n, d) floats of any norm"""


@dataclass(frozen=True)
class Candidates:
    """The variants of n texts by one method.

    variants: n, null if there is none; reasons: n, why the method made none, null if it made one; settings:
    which variants are kept.
    """

    variants: pa.Array
    reasons: pa.Array
    settings: KeepSettings


@dataclass(frozen=True)
class JudgedVariants:
    """n variants after the tests.

    kept: n large_strings, null if rejected; rejected: null if kept or never made; reasons: null if kept;
    similarity: float32 cosine with the text, null if it was not measured.
    """

    kept: pa.Array
    rejected: pa.Array
    reasons: pa.Array
    similarity: pa.Array

    def counts(self) -> dict[str, int]:
        """Number of variants under "kept", and of rejected ones by reason."""
        reasons = Counter(self.reasons.drop_null().to_pylist())
        return {"kept": len(self.kept) - self.kept.null_count} | dict(sorted(reasons.items()))


def check_keep(settings: KeepSettings, where: str) -> None:
    """Check the languages of a setting.

    Raises:
        ConfigError: a language is unknown, or the package that identifies languages is missing; begins with
            `where`.
    """
    if settings.language is not None:
        check_languages((settings.language, *settings.languages), f"{where}.language")


def judge(
    texts: pa.Array, made: Mapping[str, Candidates], vectors: Vectors | None = None
) -> dict[str, JudgedVariants]:
    """Decide which variants of n texts are kept, by label.

    A rejected variant has one reason: the method's own, or the first of REASONS that applies. If variants of
    two labels are equal, the earlier label's is kept.

    Args:
        texts: the texts.
        made: the variants by label.
        vectors: the encoder; called once with distinct texts, and only about variants that passed the other
            tests. Required if a similarity is bounded.

    Raises:
        ConfigError: as by `check_keep`.
    """
    sources = _Texts(texts)
    trials = {label: _Trial(sources, candidates) for label, candidates in made.items()}
    for trial in trials.values():
        for test in (_empty, _identical, _length, _repetition, _language):
            test(trial)
    _similarity([trial for trial in trials.values() if trial.settings.similarity is not None], vectors)
    _duplicates(list(trials.values()))
    return {label: trial.judged() for label, trial in trials.items()}


class _Texts:
    """Texts or variants, in the forms in which they are compared; null if there is none."""

    def __init__(self, texts: pa.Array) -> None:
        self.texts = texts.cast(pa.large_string())
        self.lengths = text_lengths(self.texts)
        self.folded = case_fold(self.texts)
        self.bare = without_punctuation(self.folded)
        self._repetitions: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def take(self, rows: np.ndarray) -> list[str]:
        """The texts at these rows."""
        return self.texts.take(pa.array(rows)).to_pylist()

    def repetitions(self, run: int) -> tuple[np.ndarray, np.ndarray]:
        """Repetitions in all texts; they are counted once."""
        if run not in self._repetitions:
            self._repetitions[run] = repetitions(self.folded, run)
        return self._repetitions[run]


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

    def judged(self) -> JudgedVariants:
        """The variants as they are after all tests."""
        kept, missing = pa.array(self._accepted), pa.scalar(None, pa.large_string())
        return JudgedVariants(
            kept=pc.if_else(kept, self.variants.texts, missing),
            rejected=pc.if_else(kept, missing, self.variants.texts),
            reasons=pa.array(self.reasons, pa.string()),
            similarity=pa.array(self.similarity.astype(np.float32), mask=np.isnan(self.similarity)),
        )


def _empty(trial: _Trial) -> None:
    """Reject variants without text, or with punctuation only if the text has words."""
    remaining, bare = trial.remaining, trial.variants.bare
    wordless = pc.and_(pc.equal(bare, "").fill_null(True), pc.not_equal(trial.sources.bare, ""))
    empty = (trial.variants.lengths == 0) | as_mask(wordless)
    trial.reject(remaining[empty[remaining]], EMPTY)


def _identical(trial: _Trial) -> None:
    if not trial.settings.identical:
        remaining, same = trial.remaining, as_mask(pc.equal(trial.variants.bare, trial.sources.bare))
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
    remaining, run = trial.remaining, trial.settings.repeat_words
    words, runs = repetitions(trial.variants.folded.take(pa.array(remaining)), run)
    own_words, own_runs = (found[remaining] for found in trial.sources.repetitions(run))
    repeated = (words > own_words) | (runs > np.maximum(own_runs, trial.settings.repeats))
    trial.reject(remaining[repeated], REPETITION)


def _language(trial: _Trial) -> None:
    if trial.settings.language is None:
        return
    remaining = trial.remaining
    found = languages_of(trial.variants.take(remaining), trial.settings.languages)
    trial.reject(remaining[np.array(found, object) != trial.settings.language], LANGUAGE)


def _similarity(trials: list[_Trial], vectors: Vectors | None) -> None:
    """Test the cosines; NaN, for a text without a usable vector, counts as not similar.

    Each distinct text is encoded once.
    """
    sides = (each.take(trial.remaining) for trial in trials for each in (trial.sources, trial.variants))
    texts, rows = distinct(list(chain.from_iterable(sides)))
    if not texts:
        return
    assert vectors is not None, "a bound on the similarity needs an encoder"
    made = np.asarray(vectors(texts), np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        units = made / np.linalg.norm(made, axis=1, keepdims=True)
    parts = np.split(rows, np.cumsum(np.repeat([len(trial.remaining) for trial in trials], 2))[:-1])
    for trial, own, others in zip(trials, parts[::2], parts[1::2], strict=True):
        cosines = np.clip((units[own] * units[others]).sum(1), -1, 1)
        assert trial.settings.similarity is not None
        remaining, (low, high) = trial.remaining, trial.settings.similarity
        trial.similarity[remaining] = cosines
        trial.reject(remaining[~(cosines >= low)], UNLIKE)
        trial.reject(remaining[cosines > high], ALIKE)


def _duplicates(trials: list[_Trial]) -> None:
    for number, trial in enumerate(trials):
        if trial.settings.duplicates:
            continue
        for before in trials[:number]:
            both = np.intersect1d(trial.remaining, before.remaining, assume_unique=True)
            trial.reject(both[as_mask(pc.equal(trial.variants.bare, before.variants.bare))[both]], DUPLICATE)
