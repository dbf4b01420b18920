"""Which variants of a batch of texts are kept, and why the others are not."""

import functools
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.augment.language import check_languages, languages_of
from pipeline.settings.augment import KeepSettings

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
"""in the order in which they are looked for: cheap ones first, the encoder after them, and last what goes by which other variants are kept"""

Vectors = Callable[[list[str]], np.ndarray]
"""n texts -> (n, d) floats, of any length"""

_PUNCTUATION = r"\p{P}+"
_STOP = "."  # stands for punctuation among words
_BLANK = pa.scalar(" ", pa.large_string())


@dataclass(frozen=True)
class Candidates:
    """What a method made of n texts: n variants, null where it made none, n reasons, null where it had none to leave a text out, and which are to be kept."""

    variants: pa.Array
    reasons: pa.Array
    settings: KeepSettings


@dataclass(frozen=True)
class Judged:
    """Of n variants: kept (n large_strings, null where it is not), rejected (null where it is kept, or was never made), reasons (null where it is kept), similarity
    (float32, null where it was not measured)."""

    kept: pa.Array
    rejected: pa.Array
    reasons: pa.Array
    similarity: pa.Array

    def counts(self) -> dict[str, int]:
        """Variants that are kept, by the name kept, and those that are not by reason."""
        return {"kept": len(self.kept) - self.kept.null_count} | dict(
            sorted(Counter(self.reasons.drop_null().to_pylist()).items())
        )


def check_keep(settings: KeepSettings, where: str) -> None:
    """ConfigError, which begins with `where`, for a language that is not known, and where the package that tells languages is not installed."""
    if settings.language is not None:
        check_languages((settings.language, *settings.languages), f"{where}.language")


def judge(
    texts: pa.Array, made: Mapping[str, Candidates], vectors: Vectors | None = None
) -> dict[str, Judged]:
    """What is kept of the variants of n texts, by label. A rejected variant has one reason: the method's own, or the first of REASONS that holds. Where a variant
    equals one of another label, that of the earlier label stays.

    vectors: asked once, for distinct texts, and only about what nothing else rejects; needed where a similarity is bounded. ConfigError as of `check_keep`.
    """
    sources = _Sources(texts)
    trials = {label: _Trial(sources, candidates) for label, candidates in made.items()}
    for trial in trials.values():
        for test in (_empty, _identical, _length, _repetition, _language):
            test(trial)
    _similarity([trial for trial in trials.values() if trial.settings.similarity is not None], vectors)
    _duplicates(list(trials.values()))
    return {label: trial.judged() for label, trial in trials.items()}


def comparable(texts: pa.Array) -> pa.Array:
    """What texts are compared by: Unicode NFKC, case folded, punctuation left out, white space as one blank."""
    return _bare(_folded(texts))


def repetitions(texts: pa.Array, run: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,) int64 each: how often a word follows itself, no punctuation between, and how often the text's commonest run of `run` words occurs. No null among the texts."""
    return _repetitions(_folded(texts), run)


class _Sources:
    """The texts, and what is worked out of them once."""

    def __init__(self, texts: pa.Array) -> None:
        self.texts = texts.cast(pa.large_string())
        self.lengths = _lengths(self.texts)
        self._repetitions: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @functools.cached_property
    def folded(self) -> pa.Array:
        return _folded(self.texts)

    @functools.cached_property
    def bare(self) -> pa.Array:
        return _bare(self.folded)

    def repetitions(self, run: int) -> tuple[np.ndarray, np.ndarray]:
        if run not in self._repetitions:
            self._repetitions[run] = _repetitions(self.folded, run)
        return self._repetitions[run]


class _Trial:
    """The variants of one label while they are looked at."""

    def __init__(self, sources: _Sources, candidates: Candidates) -> None:
        self.sources, self.settings = sources, candidates.settings
        self.variants = candidates.variants.cast(pa.large_string())
        self.reasons = np.array(candidates.reasons.to_pylist(), object)
        self._is_in = _mask(pc.is_null(candidates.reasons))
        self.similarity = np.full(len(self.variants), np.nan)
        self.folded = _folded(self.variants)
        self.bare = _bare(self.folded)

    @property
    def left(self) -> np.ndarray:
        """(m,) int64: places of the variants that nothing rejects so far."""
        return np.flatnonzero(self._is_in)

    def reject(self, places: np.ndarray, reason: str) -> None:
        self.reasons[places], self._is_in[places] = reason, False

    def judged(self) -> Judged:
        kept, missing = pa.array(self._is_in), pa.scalar(None, pa.large_string())
        similarity = pa.array(self.similarity.astype(np.float32), mask=np.isnan(self.similarity))
        return Judged(
            pc.if_else(kept, self.variants, missing),
            pc.if_else(kept, missing, self.variants),
            pa.array(self.reasons, pa.string()),
            similarity,
        )


def _empty(trial: _Trial) -> None:
    """Nothing, or nothing but punctuation where the text has more."""
    left = trial.left
    missing = pc.equal(pc.utf8_trim_whitespace(trial.variants), "").fill_null(True)
    wordless = pc.and_(pc.equal(trial.bare, "").fill_null(True), pc.not_equal(trial.sources.bare, ""))
    trial.reject(left[_mask(pc.or_(missing, wordless))[left]], EMPTY)


def _identical(trial: _Trial) -> None:
    if not trial.settings.identical:
        left = trial.left
        trial.reject(left[_mask(pc.equal(trial.bare, trial.sources.bare))[left]], IDENTICAL)


def _length(trial: _Trial) -> None:
    if trial.settings.length_ratio is None:
        return
    left, (low, high) = trial.left, trial.settings.length_ratio
    ratios = _lengths(trial.variants)[left] / np.maximum(trial.sources.lengths[left], 1)
    trial.reject(left[ratios < low], TOO_SHORT)
    trial.reject(left[ratios > high], TOO_LONG)


def _repetition(trial: _Trial) -> None:
    if trial.settings.repeats is None:
        return
    left, run = trial.left, trial.settings.repeat_words
    words, runs = _repetitions(trial.folded.take(pa.array(left)), run)
    own_words, own_runs = (found[left] for found in trial.sources.repetitions(run))
    trial.reject(
        left[(words > own_words) | (runs > np.maximum(own_runs, trial.settings.repeats))], REPETITION
    )


def _language(trial: _Trial) -> None:
    if trial.settings.language is None:
        return
    left = trial.left
    found = languages_of(trial.variants.take(pa.array(left)).to_pylist(), trial.settings.languages)
    trial.reject(left[np.array(found, object) != trial.settings.language], LANGUAGE)


def _similarity(trials: list[_Trial], vectors: Vectors | None) -> None:
    """Every text is encoded once, though it stands in several places."""
    places: dict[str, int] = {}
    pairs = []
    for trial in trials:
        couples = [
            (each.take(pa.array(trial.left)).to_pylist()) for each in (trial.sources.texts, trial.variants)
        ]
        pairs.append([[places.setdefault(text, len(places)) for text in texts] for texts in couples])
    if not places:
        return
    assert vectors is not None, "who bounds a similarity gives vectors"
    made = np.asarray(vectors(list(places)), np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        units = made / np.linalg.norm(made, axis=1, keepdims=True)
    for trial, (own, others) in zip(trials, pairs, strict=True):
        _bounded(trial, np.clip((units[own] * units[others]).sum(1), -1, 1))


def _bounded(trial: _Trial, cosines: np.ndarray) -> None:
    """cosines: of the variants that are left; one that is no number, of a text without a usable vector, is like nothing."""
    assert trial.settings.similarity is not None
    left, (low, high) = trial.left, trial.settings.similarity
    trial.similarity[left] = cosines
    trial.reject(left[~(cosines >= low)], UNLIKE)
    trial.reject(left[cosines > high], ALIKE)


def _duplicates(trials: list[_Trial]) -> None:
    for number, trial in enumerate(trials):
        if trial.settings.duplicates:
            continue
        for before in trials[:number]:
            both = np.intersect1d(trial.left, before.left, assume_unique=True)
            trial.reject(both[_mask(pc.equal(trial.bare, before.bare))[both]], DUPLICATE)


def _mask(found: pa.Array) -> np.ndarray:
    """(n,) bool, null as false."""
    return np.array(found.fill_null(False).to_numpy(zero_copy_only=False), bool)


def _lengths(texts: pa.Array) -> np.ndarray:
    """(n,) int64: characters, without white space at either end; 0 for null."""
    return np.asarray(
        pc.utf8_length(pc.utf8_trim_whitespace(texts)).fill_null(0).to_numpy(zero_copy_only=False)
    )


def _folded(texts: pa.Array) -> pa.Array:
    """NFKC, case folded: Arrow has lower case alone, which leaves the two spellings of a German double s apart."""
    return pa.array(
        [
            None if text is None else unicodedata.normalize("NFKC", text).casefold()
            for text in texts.to_pylist()
        ],
        pa.large_string(),
    )


def _bare(folded: pa.Array) -> pa.Array:
    return pc.binary_join(
        pc.utf8_split_whitespace(
            pc.utf8_trim_whitespace(pc.replace_substring_regex(folded, _PUNCTUATION, ""))
        ),
        _BLANK,
    )


def _repetitions(folded: pa.Array, run: int) -> tuple[np.ndarray, np.ndarray]:
    """As of `repetitions`, of texts that are folded."""
    parts = pc.utf8_split_whitespace(
        pc.utf8_trim_whitespace(pc.replace_substring_regex(folded, _PUNCTUATION, f" {_STOP} "))
    )
    coded = pc.list_flatten(parts).dictionary_encode()
    rows, codes = (
        pc.list_parent_indices(parts).to_numpy(),
        coded.indices.to_numpy(zero_copy_only=False).astype(np.int64),
    )
    spoken = codes != coded.dictionary.index(_STOP).as_py()
    follows = (codes[1:] == codes[:-1]) & (rows[1:] == rows[:-1]) & spoken[1:]
    return np.bincount(rows[1:][follows], minlength=len(folded)), _commonest(
        rows[spoken], codes[spoken], run, len(folded)
    )


def _commonest(rows: np.ndarray, codes: np.ndarray, run: int, texts: int) -> np.ndarray:
    """(texts,) int64: how often each text's commonest run occurs; 0 where it has fewer words. rows, codes: the text and the number of each word."""
    most, runs = np.zeros(texts, np.int64), codes
    for further in range(1, run):
        following = codes[further:]
        runs = np.unique(
            runs[: len(following)] * (codes.max(initial=0) + 1) + following, return_inverse=True
        )[1]
    begin = rows[: len(runs)]
    whole = begin == rows[len(rows) - len(runs) :]
    keys, times = np.unique(begin[whole] * (runs.max(initial=0) + 1) + runs[whole], return_counts=True)
    np.maximum.at(most, keys // (runs.max(initial=0) + 1), times)
    return most
