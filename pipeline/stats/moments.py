"""Count, mean and scatter of vectors: exact under any split, so whitening needs one pass over any number of rows on any number of workers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import chain, islice

import numpy as np

from pipeline.errors import DataError, Defect
from pipeline.stats.tensors import pack, unpack

BLOCK_ROWS = 384  # 1.2 MB of float64 at d = 384: still in cache between centring and product; best or near it among 192 to 4,096
GROUP = 64  # a partial of 768 x 768 float64 is 4.7 MB: 300 MB at the driver for 4,096 units
MOST_DEAD = 0.9  # un-merging 99 % of the rows still keeps 13 digits, 99.99 % none; beyond this share the unit is read again


@dataclass(frozen=True, eq=False)
class Moments:
    """count rows; mean (d,); scatter (d, d) = sum of (x - mean)(x - mean)^T, symmetric; both float64. Population covariance = scatter / count."""

    count: int
    mean: np.ndarray
    scatter: np.ndarray

    @property
    def dim(self) -> int:
        return len(self.mean)

    @classmethod
    def empty(cls, dim: int) -> "Moments":
        """The neutral element of `merge`."""
        return cls(0, np.zeros(dim), np.zeros((dim, dim)))

    @classmethod
    def of(cls, x: np.ndarray) -> "Moments":
        """Moments of the rows of x (n, d), float32 or float64: the mean first, then products of centred blocks (two-pass: nothing cancels).

        DataError if a value is not finite.
        """
        if not len(x):
            return cls.empty(x.shape[1])
        mean = x.mean(axis=0, dtype=np.float64)
        if not np.isfinite(mean).all():  # one bad value anywhere in a column shows in its mean
            raise DataError(
                "vectors",
                "finite values",
                f"{int((~np.isfinite(x)).any(axis=1).sum())} rows with NaN or infinity",
                "quarantine them",
            )
        return cls(len(x), mean, _scatter(x, mean))

    def merge(self, other: "Moments") -> "Moments":
        """Moments of both samples together; associative up to rounding. Chan, Golub & LeVeque 1979, eq. 2.1."""
        if self.dim != other.dim:
            raise DataError(
                "moments",
                f"vectors of {self.dim} dimensions",
                f"{other.dim}",
                "merge moments of one space only",
            )
        if not self.count or not other.count:
            return self if self.count else other
        count, delta = self.count + other.count, other.mean - self.mean
        between = np.outer(delta, delta) * (self.count * other.count / count)
        return Moments(
            count, self.mean + delta * (other.count / count), self.scatter + other.scatter + between
        )

    def without(self, part: "Moments") -> "Moments":
        """Moments of the rows that are left when `part`, some of these very rows, goes: the inverse of `merge`.

        Digits are lost in proportion to count / left, so Defect beyond MOST_DEAD: compute the moments of the rest from its rows then.
        """
        if part.count > MOST_DEAD * self.count:
            raise Defect(
                "moments",
                f"at most {MOST_DEAD:.0%} of {self.count} rows to go",
                f"{part.count}",
                "compute the moments of the rest from its rows",
            )
        if not part.count:
            return self
        left = self.count - part.count
        delta = (self.mean - part.mean) * (self.count / left)
        between = np.outer(delta, delta) * (left * part.count / self.count)
        return Moments(left, part.mean + delta, self.scatter - part.scatter - between)

    def mapped(self, matrix: np.ndarray, bias: np.ndarray | float = 0.0) -> "Moments":
        """Moments of y = x @ matrix.T + bias, matrix (k, d): mean A m + b and scatter A S A^T, in float64. No row is read."""
        matrix = matrix.astype(np.float64)
        scatter = matrix @ self.scatter @ matrix.T
        return Moments(self.count, matrix @ self.mean + bias, (scatter + scatter.T) / 2)

    def covariance(self) -> np.ndarray:
        """Population covariance (d, d); DataError without rows."""
        if not self.count:
            raise DataError("moments", "at least one row", "none", "give vectors")
        return self.scatter / self.count

    def to_bytes(self) -> bytes:
        """A safetensors file with the upper triangle of the scatter: half the size; equal moments give equal bytes."""
        upper = self.scatter[np.triu_indices(self.dim)]
        return pack({"mean": self.mean, "scatter_upper": upper}, {"kind": "moments", "count": self.count})

    @classmethod
    def from_bytes(cls, content: bytes) -> "Moments":
        """What `to_bytes` wrote, bit for bit; DataError if it is something else."""
        tensors, header = unpack(content, "mean", "scatter_upper", kind="moments")
        mean = tensors["mean"]
        scatter = np.zeros((len(mean), len(mean)))
        scatter[np.triu_indices(len(mean))] = tensors["scatter_upper"]
        return cls(int(header["count"]), mean, _mirrored(scatter))


def merge_tree(parts: Iterable[Moments]) -> Moments:
    """All parts as one, merged in groups of 64 in the order given, then the groups likewise: the same bits however many workers made the parts.

    Holds one part and one partial per group, not all parts. DataError without parts.
    """
    level = list(_grouped(parts))
    while len(level) > 1:
        level = list(_grouped(level))
    if not level:
        raise DataError("moments", "at least one unit", "none", "encode something first")
    return level[0]


def _grouped(parts: Iterable[Moments]) -> Iterator[Moments]:
    rest = iter(parts)
    for first in rest:
        yield reduce(Moments.merge, chain([first], islice(rest, GROUP - 1)))


def _scatter(x: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Sum of (x - mean)(x - mean)^T over rows (d, d): a symmetric rank-k update per block, added in place (half the work of a full product)."""
    from scipy.linalg.blas import dsyrk  # a tenth of a search's start, which needs none of it

    dim = x.shape[1]
    upper = np.zeros((dim, dim), order="F")
    centred = np.empty((min(BLOCK_ROWS, len(x)), dim))
    for start in range(0, len(x), BLOCK_ROWS):
        block = x[start : start + BLOCK_ROWS]
        rows = np.subtract(block, mean, out=centred[: len(block)])
        upper = dsyrk(
            1.0, rows.T, beta=1.0, c=upper, overwrite_c=1
        )  # rows.T is column-major as BLAS wants it: no copy
    return _mirrored(upper)


def _mirrored(upper: np.ndarray) -> np.ndarray:
    """The symmetric matrix with this upper triangle; below the diagonal `upper` holds zeros."""
    whole = np.ascontiguousarray(upper + upper.T)
    np.fill_diagonal(whole, upper.diagonal())
    return whole
