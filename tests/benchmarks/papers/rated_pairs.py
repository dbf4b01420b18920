"""Rated pairs of sentences, and the score of vectors on them."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from pipeline.stats.correlation import spearman
from pipeline.stats.geometry import cosines


class RatedPairs(NamedTuple):
    """Rated pairs of sentences."""

    left: list[str]
    right: list[str]
    scores: np.ndarray

    @property
    def texts(self) -> list[str]:
        """All sentences, the left ones first."""
        return [*self.left, *self.right]

    def score(self, x: np.ndarray, rows: np.ndarray | None = None) -> float:
        """Return Spearman x 100 of all pairs or of some, for the vectors (2 n, d) of `texts`."""
        chosen = np.arange(len(self.scores)) if rows is None else np.flatnonzero(rows)
        left, right = x[chosen], x[len(self.scores) + chosen]
        return 100 * spearman(cosines(left, right), self.scores[chosen])


def read_pairs(file: Path) -> RatedPairs:
    """Read a set of rated pairs."""
    table = pq.read_table(file)
    left, right, scores = (table[name].to_pylist() for name in ("sentence1", "sentence2", "score"))
    return RatedPairs(left, right, np.array(scores))
