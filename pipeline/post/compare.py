"""Does a transform help this encoder on this text? Raw and transformed vectors on the same task, side by side."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.errors import DataError
from pipeline.stats import correlation

Map = Callable[[np.ndarray], np.ndarray]

MIN_WORDS = 8  # a half of fewer than four words hardly says what its text is about
TIE = 1e-6  # cosines of equal vectors differ by a few float32 roundings between places in a matrix product
QUERY_ROWS = 1_024  # queries whose similarities are held at once


@dataclass(frozen=True)
class Comparison:
    """Figures of one task, larger is better. task: what was measured, as a phrase; count: texts or pairs behind it; transform: what was compared, by name."""

    task: str
    metric: str
    count: int
    raw: float
    whitened: float
    transform: str = "whitening"

    @property
    def uses_whitening(self) -> bool:
        """The transform is used only where it is not worse."""
        return self.whitened >= self.raw

    def numbers(self) -> dict[str, float | int | None]:
        """The figures by name."""
        name = self.metric.lower()
        return {f"{name}_raw": self.raw, f"{name}_whitened": self.whitened, "count": self.count}

    @property
    def sentence(self) -> str:
        """The decision with its numbers."""
        verdict = "is used: it is not worse" if self.uses_whitening else "is not used: it is worse"
        moved = "whitened" if self.transform == "whitening" else "transformed"
        return f"{subject(self.transform)} {verdict}. {self.task}, {self.count:,}: {self.metric} {self.raw:.4f} raw, {self.whitened:.4f} {moved}."


def noun(transform: str) -> str:
    """A transform in a sentence, behind an article."""
    return "whitening" if transform == "whitening" else f"transform {transform}"


def subject(transform: str) -> str:
    """A transform at the beginning of a sentence."""
    return "Whitening" if transform == "whitening" else f"The {noun(transform)}"


@dataclass(frozen=True, eq=False)
class Halves:
    """Split-half retrieval: row i of first (n, d) should find row i of second (n, d), the other half of its text."""

    metric: ClassVar[str] = "MRR"
    first: np.ndarray
    second: np.ndarray

    @property
    def task(self) -> str:
        return "First half of a text finds its second half among those of the other sampled texts"

    @property
    def count(self) -> int:
        return len(self.first)

    def score(self, transform: Map | None = None) -> float:
        """Mean reciprocal rank, of raw vectors without a transform."""
        return (
            mean_reciprocal_rank(self.first, self.second)
            if transform is None
            else mean_reciprocal_rank(transform(self.first), transform(self.second))
        )


@dataclass(frozen=True, eq=False)
class Pairs:
    """Semantic textual similarity: left and right (n, d), gold (n,) the scores of people. name: of the file, for sentences."""

    metric: ClassVar[str] = "Spearman"
    left: np.ndarray
    right: np.ndarray
    gold: np.ndarray
    name: str = "the dev pairs"

    @property
    def task(self) -> str:
        return f"Cosine against the scores of people on {self.name}"

    @property
    def count(self) -> int:
        return len(self.gold)

    def score(self, transform: Map | None = None) -> float:
        """Spearman correlation (-1 to 1), of raw vectors without a transform."""
        left, right = (
            (self.left, self.right) if transform is None else (transform(self.left), transform(self.right))
        )
        return spearman(left, right, self.gold)


Dev = Halves | Pairs


def compare(dev: Dev, transform: Map, name: str = "whitening") -> Comparison:
    """Raw against transformed on the same task."""
    return Comparison(dev.task, dev.metric, dev.count, dev.score(), dev.score(transform), name)


def split_halves(text: str) -> tuple[str, str] | None:
    """First and second half of the words of a text, or None if it has fewer than eight (white space separates words)."""
    words = text.split()
    if len(words) < MIN_WORDS:
        return None
    middle = len(words) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


def mean_reciprocal_rank(queries: np.ndarray, targets: np.ndarray) -> float:
    """Mean of 1 / rank of target i among all targets by cosine to query i; both (n, d). A tie counts against: the rank is the worst one.

    DataError without rows.
    """
    if not len(queries) or len(queries) != len(targets):
        raise DataError(
            "split-half retrieval",
            "as many queries as targets, at least one",
            f"{len(queries)} and {len(targets)}",
            "give longer texts",
        )
    queries, targets = _unit(queries), _unit(targets)
    ranks = [
        _ranks(queries[start : start + QUERY_ROWS], targets, start)
        for start in range(0, len(queries), QUERY_ROWS)
    ]
    return float((1.0 / np.concatenate(ranks)).mean())


def spearman(left: np.ndarray, right: np.ndarray, gold: np.ndarray) -> float:
    """Spearman correlation (average ranks for ties) of cosine(left[i], right[i]) with gold[i]; DataError if either is constant."""
    cosines = (_unit(left) * _unit(right)).sum(axis=1)
    if np.isnan(found := correlation.spearman(cosines, gold)):
        raise DataError(
            "whiten.dev",
            "at least two pairs with different scores and different cosines",
            f"{len(gold)} pairs",
            "give another dev file",
        )
    return found


def _ranks(queries: np.ndarray, targets: np.ndarray, start: int) -> np.ndarray:
    similarities = queries @ targets.T
    own = similarities[np.arange(len(queries)), start + np.arange(len(queries))]
    return (similarities >= own[:, None] - TIE).sum(
        axis=1
    )  # counts the own target too: rank 1 if no other comes near


def _unit(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))
