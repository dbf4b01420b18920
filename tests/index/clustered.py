"""Vectors in clusters, as texts have them, and the oracle: exact search in numpy float64."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.index.truth import Queries

DIM = 32
UNIT_ROWS = 500


@dataclass(frozen=True, eq=False)
class Map:
    """An affine transform, as a whitening is one."""

    matrix: np.ndarray
    bias: np.ndarray


@dataclass(frozen=True, eq=False)
class Vectors:
    addresses: np.ndarray
    raw: np.ndarray

    def batches(self, unit_rows: int = UNIT_ROWS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(self.raw), unit_rows):
            yield self.addresses[start : start + unit_rows], self.raw[start : start + unit_rows]

    def part(self, rows: slice) -> "Vectors":
        return Vectors(self.addresses[rows], self.raw[rows])

    def queries(self, step: int) -> Queries:
        return Queries(self.addresses[::step], self.raw[::step])


def clustered(rows: int, seed: int = 0, dim: int = DIM) -> Vectors:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(40, dim))
    raw = (centres[rng.integers(0, 40, rows)] + 0.7 * rng.normal(size=(rows, dim)) + 0.5).astype(np.float32)
    return Vectors((np.arange(rows) // UNIT_ROWS << 32) | np.arange(rows) % UNIT_ROWS, raw)


def some_map(dim_out: int = DIM - 4, seed: int = 1) -> Map:
    rng = np.random.default_rng(seed)
    return Map(
        rng.normal(size=(dim_out, DIM)).astype(np.float32), rng.normal(size=dim_out).astype(np.float32)
    )


def cosines(queries: np.ndarray, raw: np.ndarray, transform: Map | None) -> np.ndarray:
    """(q, n) float64: what the index compares by."""

    def unit(x: np.ndarray) -> np.ndarray:
        y = (
            x.astype(np.float64)
            if transform is None
            else x.astype(np.float64) @ transform.matrix.T.astype(np.float64) + transform.bias
        )
        return y / np.linalg.norm(y, axis=1, keepdims=True)

    return np.asarray(unit(queries) @ unit(raw).T)
