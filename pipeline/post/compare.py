"""Comparison of raw and transformed vectors on the same task, to decide whether a transform helps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.errors import DataError
from pipeline.stats import correlation
from pipeline.stats.geometry import unit_rows

Map = Callable[[np.ndarray], np.ndarray]

MIN_WORDS = 8  # a half of fewer than four words says too little about its text
TIE = 1e-6  # cosines of equal vectors differ by rounding within a matrix product
QUERY_ROWS = 1_024  # queries per block of similarities


@dataclass(frozen=True)
class Comparison:
    """Scores of raw and transformed vectors on one task; larger is better.

    Attributes:
        task: description of the task.
        metric: name of the score.
        count: number of texts or pairs.
        raw: score of the raw vectors.
        whitened: score of the transformed vectors.
        transform: name of the transform.
    """

    task: str
    metric: str
    count: int
    raw: float
    whitened: float
    transform: str = "whitening"

    @property
    def uses_whitening(self) -> bool:
        """True if the transform is not worse, so that it is used."""
        return self.whitened >= self.raw

    def numbers(self) -> dict[str, float | int | None]:
        """Return the scores by name."""
        name = self.metric.lower()
        return {f"{name}_raw": self.raw, f"{name}_whitened": self.whitened, "count": self.count}

    @property
    def sentence(self) -> str:
        """The decision, with its scores."""
        verdict = "is used: it is not worse" if self.uses_whitening else "is not used: it is worse"
        moved = "whitened" if self.transform == "whitening" else "transformed"
        return (
            f"{subject(self.transform)} {verdict}. {self.task}, {self.count:,}: "
            f"{self.metric} {self.raw:.4f} raw, {self.whitened:.4f} {moved}."
        )


def noun(transform: str) -> str:
    """Return the name of a transform for use after an article."""
    return "whitening" if transform == "whitening" else f"transform {transform}"


def subject(transform: str) -> str:
    """Return the name of a transform for the beginning of a sentence."""
    return "Whitening" if transform == "whitening" else f"The {noun(transform)}"


@dataclass(frozen=True, eq=False)
class Halves:
    """Split-half retrieval: the first half of each text should find its second half.

    Attributes:
        first: (n, d) vectors of the first halves.
        second: (n, d) vectors of the second halves.
    """

    metric: ClassVar[str] = "MRR"
    first: np.ndarray
    second: np.ndarray

    @property
    def task(self) -> str:
        """Description of the task."""
        return "First half of a text finds its second half among those of the other sampled texts"

    @property
    def count(self) -> int:
        """Number of texts."""
        return len(self.first)

    def score(self, transform: Map | None = None) -> float:
        """Compute the mean reciprocal rank of transformed vectors, or of raw ones without a transform."""
        first, second = (
            (self.first, self.second)
            if transform is None
            else (transform(self.first), transform(self.second))
        )
        return mean_reciprocal_rank(first, second)


@dataclass(frozen=True, eq=False)
class DevPairs:
    """Semantic textual similarity of pairs of vectors.

    Attributes:
        left: (n, d).
        right: (n, d).
        gold: (n,) scores by people.
        name: name of the data, for sentences.
    """

    metric: ClassVar[str] = "Spearman"
    left: np.ndarray
    right: np.ndarray
    gold: np.ndarray
    name: str = "the dev pairs"

    @property
    def task(self) -> str:
        """Description of the task."""
        return f"Cosine against human scores on {self.name}"

    @property
    def count(self) -> int:
        """Number of pairs."""
        return len(self.gold)

    def score(self, transform: Map | None = None) -> float:
        """Compute the Spearman correlation (-1 to 1) of transformed vectors, or of raw ones."""
        left, right = (
            (self.left, self.right) if transform is None else (transform(self.left), transform(self.right))
        )
        return spearman(left, right, self.gold)


DevTask = Halves | DevPairs


def compare(dev: DevTask, transform: Map, name: str = "whitening") -> Comparison:
    """Score raw and transformed vectors on the same task."""
    return Comparison(dev.task, dev.metric, dev.count, dev.score(), dev.score(transform), name)


def split_halves(text: str) -> tuple[str, str] | None:
    """Split a text into halves of its words, at white space; None if it has fewer than eight."""
    words = text.split()
    if len(words) < MIN_WORDS:
        return None
    middle = len(words) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


def mean_reciprocal_rank(queries: np.ndarray, targets: np.ndarray) -> float:
    """Mean of 1 / rank of target i among all targets, by cosine to query i.

    Ties count against the query: the rank is the worst one.

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
        _ranks(queries[start : start + QUERY_ROWS], targets, start)
        for start in range(0, len(queries), QUERY_ROWS)
    ]
    return float((1.0 / np.concatenate(ranks)).mean())


def spearman(left: np.ndarray, right: np.ndarray, gold: np.ndarray) -> float:
    """Spearman correlation of cosine(left[i], right[i]) with gold[i]; DataError if either is constant."""
    cosines = (unit_rows(left) * unit_rows(right)).sum(axis=1)
    if np.isnan(found := correlation.spearman(cosines, gold)):
        raise DataError(
            "whiten.dev",
            "at least two pairs with different scores and different cosines",
            f"{len(gold)} pairs",
            "use another dev file",
        )
    return found


def _ranks(queries: np.ndarray, targets: np.ndarray, start: int) -> np.ndarray:
    similarities = queries @ targets.T
    own = np.diagonal(similarities, offset=start)
    # The target itself is included, so that ranks start at 1.
    return (similarities >= own[:, None] - TIE).sum(axis=1)
