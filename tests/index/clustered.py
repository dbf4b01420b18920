"""Vectors in clusters, like those of texts, and cosines by numpy in float64."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.index.measure.truth import Queries

DIM = 32
UNIT_ROWS = 500


@dataclass(frozen=True, eq=False)
class Map:
    """An affine transform, such as a whitening."""

    matrix: np.ndarray
    bias: np.ndarray


@dataclass(frozen=True, eq=False)
class Vectors:
    """Raw vectors (n, d) float32 with their addresses (n,) int64."""

    addresses: np.ndarray
    raw: np.ndarray

    def batches(self, unit_rows: int = UNIT_ROWS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (addresses, vectors) of one unit after the other."""
        for start in range(0, len(self.raw), unit_rows):
            yield self.addresses[start : start + unit_rows], self.raw[start : start + unit_rows]

    def part(self, rows: slice) -> "Vectors":
        """Return some of the rows."""
        return Vectors(self.addresses[rows], self.raw[rows])

    def queries(self, step: int) -> Queries:
        """Return every `step`-th row as a query."""
        return Queries(self.addresses[::step], self.raw[::step])


def clustered(rows: int, seed: int = 0, dim: int = DIM) -> Vectors:
    """Make vectors around 40 centres."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(40, dim))
    raw = (centres[rng.integers(0, 40, rows)] + 0.7 * rng.normal(size=(rows, dim)) + 0.5).astype(np.float32)
    return Vectors((np.arange(rows) // UNIT_ROWS << 32) | np.arange(rows) % UNIT_ROWS, raw)


def some_map(dim_out: int = DIM - 4, seed: int = 1) -> Map:
    """Make a random map from DIM to `dim_out` dimensions."""
    rng = np.random.default_rng(seed)
    return Map(
        rng.normal(size=(dim_out, DIM)).astype(np.float32), rng.normal(size=dim_out).astype(np.float32)
    )


def cosines(queries: np.ndarray, raw: np.ndarray, transform: Map | None) -> np.ndarray:
    """Compute the cosines (q, n) float64 of transformed queries and rows."""

    def unit(x: np.ndarray) -> np.ndarray:
        y = (
            x.astype(np.float64)
            if transform is None
            else x.astype(np.float64) @ transform.matrix.T.astype(np.float64) + transform.bias
        )
        return y / np.linalg.norm(y, axis=1, keepdims=True)

    return np.asarray(unit(queries) @ unit(raw).T)
