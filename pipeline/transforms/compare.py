"""Comparison of raw and transformed vectors on the same task, to decide whether a transform helps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.errors import DataError
from pipeline.stats import correlation
from pipeline.stats.geometry import unit_rows

Map = Callable[[np.ndarray], np.ndarray]
"""function from vectors (n, d) to vectors (n, k)"""

MIN_WORDS = 8  # fewest words of a text; halves of fewer than four words say too little about the text
_TIE = 1e-6  # tolerance of ties: cosines of equal vectors differ by rounding within a matrix product
_QUERY_ROWS = 1_024  # queries per block of similarities


@dataclass(frozen=True)
class Comparison:
    """Scores of raw and transformed vectors on one task; larger is better."""

    task: str
    """description of the task"""
    metric: str
    """name of the score"""
    count: int
    """number of texts or pairs"""
    raw: float
    """score of the raw vectors"""
    whitened: float
    """score of the transformed vectors"""
    transform: str = "whitening"
    """name of the transform"""

    @property
    def uses_whitening(self) -> bool:
        """True if transformed vectors score at least as well as raw ones, so that the transform is used."""
        return self.whitened >= self.raw

    def numbers(self) -> dict[str, float | int | None]:
        """Return the scores by name, for reports."""
        name = self.metric.lower()
        return {f"{name}_raw": self.raw, f"{name}_whitened": self.whitened, "count": self.count}

    @property
    def sentence(self) -> str:
        """Sentence for reports: whether the transform is used, and the scores."""
        verdict = "is used: it is not worse" if self.uses_whitening else "is not used: it is worse"
        transformed = "whitened" if self.transform == "whitening" else "transformed"
        return (
            f"{subject(self.transform)} {verdict}. {self.task}, {self.count:,}: "
            f"{self.metric} {self.raw:.4f} raw, {self.whitened:.4f} {transformed}."
        )


def noun(transform: str) -> str:
    """Return the name of a transform for use after an article."""
    return "whitening" if transform == "whitening" else f"transform {transform}"


def subject(transform: str) -> str:
    """Return the name of a transform for the beginning of a sentence."""
    return "Whitening" if transform == "whitening" else f"The {noun(transform)}"


@dataclass(frozen=True, eq=False)
class Halves:
    """Split-half retrieval: the first half of each text should find its second half."""

    metric: ClassVar[str] = "MRR"
    unit: ClassVar[str] = "texts"
    task: ClassVar[str] = "First half of a text finds its second half among those of the other sampled texts"
    first: np.ndarray
    """(n, d) vectors of the first halves"""
    second: np.ndarray
    """(n, d) vectors of the second halves"""

    @property
    def count(self) -> int:
        """Number of texts."""
        return len(self.first)

    def score(self, transform: Map = np.asarray) -> float:
        """Compute the mean reciprocal rank of transformed vectors; by default of raw vectors."""
        return mean_reciprocal_rank(transform(self.first), transform(self.second))


@dataclass(frozen=True, eq=False)
class DevPairs:
    """Semantic textual similarity of pairs of vectors."""

    metric: ClassVar[str] = "Spearman"
    unit: ClassVar[str] = "pairs"
    left: np.ndarray
    """(n, d) vectors"""
    right: np.ndarray
    """(n, d) vectors"""
    gold: np.ndarray
    """(n,) similarity scores given by people"""
    name: str = "the dev pairs"
    """name of the data, for reports"""

    @property
    def task(self) -> str:
        """Description of the task."""
        return f"Cosine against human scores on {self.name}"

    @property
    def count(self) -> int:
        """Number of pairs."""
        return len(self.gold)

    def score(self, transform: Map = np.asarray) -> float:
        """Compute the Spearman correlation, -1 to 1, of transformed vectors; by default of raw vectors."""
        return spearman(transform(self.left), transform(self.right), self.gold)


DevTask = Halves | DevPairs


def compare(dev: DevTask, transform: Map, name: str = "whitening") -> Comparison:
    """Score raw and transformed vectors on the same task."""
    return Comparison(dev.task, dev.metric, dev.count, dev.score(), dev.score(transform), name)


def split_halves(text: str) -> tuple[str, str] | None:
    """Split a text at white space into two halves of its words; None if it has fewer than MIN_WORDS words."""
    words = text.split()
    if len(words) < MIN_WORDS:
        return None
    middle = len(words) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


def mean_reciprocal_rank(queries: np.ndarray, targets: np.ndarray) -> float:
    """Compute the mean over i of 1 / rank of target i among all targets, ranked by cosine to query i.

    If other targets have the same cosine as target i, it is ranked last among them.

    Args:
        queries: (n, d).
        targets: (n, d).

    Raises:
        DataError: no rows, or different numbers of rows.
    """
    if not len(queries) or len(queries) != len(targets):
        raise DataError(
            "split-half retrieval",
            "as many queries as targets, at least one",
            f"{len(queries)} and {len(targets)}",
            "use longer texts",
        )
    queries, targets = unit_rows(queries), unit_rows(targets)
    ranks = [
        _ranks(queries[start : start + _QUERY_ROWS], targets, start)
        for start in range(0, len(queries), _QUERY_ROWS)
    ]
    return float((1.0 / np.concatenate(ranks)).mean())


def spearman(left: np.ndarray, right: np.ndarray, gold: np.ndarray) -> float:
    """Spearman correlation of cosine(left[i], right[i]) with gold[i]; DataError if either is constant."""
    cosines = (unit_rows(left) * unit_rows(right)).sum(axis=1)
    if np.isnan(score := correlation.spearman(cosines, gold)):
        raise DataError(
            "whiten.dev",
            "at least two pairs with different scores and different cosines",
            f"{len(gold)} pairs",
            "use another dev file",
        )
    return score


def _ranks(queries: np.ndarray, targets: np.ndarray, start: int) -> np.ndarray:
    """Return the rank of target start + i for each query i: the number of targets at least as near."""
    similarities = queries @ targets.T
    to_target = np.diagonal(similarities, offset=start)
    return (similarities >= to_target[:, None] - _TIE).sum(axis=1)
