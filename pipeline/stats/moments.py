"""Count, mean and scatter of vectors; the moments of parts merge, so that whitening needs one pass."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import chain, islice

import numpy as np

from pipeline.errors import DataError, Defect
from pipeline.stats.tensors import pack, unpack

# Rows centred at a time: 1.2 MB of float64 at d = 384 stay in the cache until their product is computed. No
# size from 192 to 4,096 was measured to be clearly faster.
BLOCK_ROWS = 384
# Parts merged at once by `merge_tree`. A result of 768 x 768 float64 is 4.7 MB: 300 MB for 4,096 units.
MERGE_GROUP = 64
# Largest proportion of the rows that `without` may remove, because removing more loses digits: 13 digits are
# correct after removing 99 %, none after 99.99 %.
MAX_REMOVED = 0.9
_NO_ROWS = ("at least one row with a vector", "none", "check the corpus and its quarantine")


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of a sample of vectors, in float64. The population covariance is scatter / count."""

    count: int
    """number of rows"""
    mean: np.ndarray
    """(d,)"""
    scatter: np.ndarray
    """(d, d) sum of (x - mean)(x - mean)^T, symmetric"""

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return len(self.mean)

    @classmethod
    def empty(cls, dim: int) -> "Moments":
        """Return the neutral element of `merge`."""
        return cls(0, np.zeros(dim), np.zeros((dim, dim)))

    @classmethod
    def of(cls, x: np.ndarray) -> "Moments":
        """Compute the moments of the rows of x (n, d), float32 or float64.

        Uses two passes, the mean and then the products of centred blocks, which avoids cancellation.

        Raises:
            DataError: values that are not finite.
        """
        if not len(x):
            return cls.empty(x.shape[1])
        # Added up in float64: in float32 the mean of 200,000 values near 10 is wrong by 1e-4.
        mean = x.mean(axis=0, dtype=np.float64)
        if not np.isfinite(mean).all():  # one invalid value makes its column's mean invalid
            raise DataError(
                "vectors",
                "finite values",
                f"{int((~np.isfinite(x)).any(axis=1).sum())} rows with NaN or infinity",
                "quarantine them",
            )
        return cls(len(x), mean, _scatter(x, mean))

    def merge(self, other: "Moments") -> "Moments":
        """Combine the moments of two samples; associative up to rounding.

        Source: Chan, Golub & LeVeque 1979, eq. 2.1.

        >>> both = Moments.of(np.array([[0.0], [2.0]])).merge(Moments.of(np.array([[4.0]])))
        >>> both.count, both.mean.tolist(), both.scatter.tolist()
        (3, [2.0], [[8.0]])
        """
        if self.dim != other.dim:
            raise DataError(
                "moments",
                f"vectors of {self.dim} dimensions",
                f"{other.dim}",
                "merge moments of the same space only",
            )
        if not self.count or not other.count:
            return self if self.count else other
        # Counts are Python's integers, whose product cannot overflow. If both means are equal, delta is 0 and
        # the mean keeps its bits.
        count, delta = self.count + other.count, other.mean - self.mean
        between = np.outer(delta, delta) * (self.count * other.count / count)
        return Moments(
            count, self.mean + delta * (other.count / count), self.scatter + other.scatter + between
        )

    def without(self, part: "Moments") -> "Moments":
        """Remove the rows of `part` from the sample: the inverse of `merge`.

        Digits are lost in proportion to count / remaining.

        Raises:
            Defect: more than MAX_REMOVED of the rows are removed. Compute the moments of the rest from its
                rows instead.

        >>> part = Moments.of(np.array([[4.0]]))
        >>> rest = Moments.of(np.array([[0.0], [2.0], [4.0]])).without(part)
        >>> rest.count, rest.mean.tolist(), rest.scatter.tolist()
        (2, [1.0], [[2.0]])
        """
        if part.count > MAX_REMOVED * self.count:
            raise Defect(
                "moments",
                f"at most {MAX_REMOVED:.0%} of {self.count} rows to remove",
                f"{part.count}",
                "compute the moments of the rest from its rows",
            )
        if not part.count:
            return self
        rest = self.count - part.count
        delta = (self.mean - part.mean) * (self.count / rest)
        between = np.outer(delta, delta) * (rest * part.count / self.count)
        return Moments(rest, part.mean + delta, self.scatter - part.scatter - between)

    def transform(self, matrix: np.ndarray, bias: np.ndarray | float = 0.0) -> "Moments":
        """Compute the moments of x @ matrix.T + bias, where matrix is (k, d), from the moments of x.

        >>> moments = Moments.of(np.array([[0.0, 1.0], [2.0, 1.0]]))
        >>> total = moments.transform(np.array([[1.0, 3.0]]), bias=0.5)
        >>> total.mean.tolist(), total.scatter.tolist()
        ([4.5], [[2.0]])
        """
        matrix = matrix.astype(np.float64)
        # The product is symmetric up to rounding only, and `to_bytes` stores one triangle.
        scatter = matrix @ self.scatter @ matrix.T
        return Moments(self.count, matrix @ self.mean + bias, (scatter + scatter.T) / 2)

    def covariance(self) -> np.ndarray:
        """Return the population covariance (d, d); raise DataError if there are no rows."""
        if not self.count:
            raise DataError("moments", *_NO_ROWS)
        return self.scatter / self.count

    def to_bytes(self) -> bytes:
        """Write a safetensors file with the upper triangle of the scatter; equal moments give equal bytes."""
        return pack(
            {"mean": self.mean, "scatter_upper": self.scatter[np.triu_indices(self.dim)]},
            {"kind": "moments", "count": self.count},
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> "Moments":
        """Read the output of `to_bytes`, bit for bit; raise DataError for other content."""
        tensors, header = unpack(content, "mean", "scatter_upper", kind="moments")
        mean = tensors["mean"]
        scatter = np.zeros((len(mean), len(mean)))
        scatter[np.triu_indices(len(mean))] = tensors["scatter_upper"]
        return cls(int(header["count"]), mean, _symmetric(scatter))


def merge_tree(parts: Iterable[Moments]) -> Moments:
    """Merge all parts, in order, in groups of MERGE_GROUP, and the results again until one is left.

    The fixed order gives the same bits for any number of workers. Memory holds one part at a time and one
    result per group.

    Raises:
        DataError: there are no parts.
    """
    level = list(_merge_groups(parts))
    while len(level) > 1:
        level = list(_merge_groups(level))
    if not level:
        raise DataError("moments", *_NO_ROWS)
    return level[0]


def _merge_groups(parts: Iterable[Moments]) -> Iterator[Moments]:
    """Yield the merged moments of every MERGE_GROUP consecutive parts."""
    remaining = iter(parts)
    for first in remaining:
        yield reduce(Moments.merge, chain([first], islice(remaining, MERGE_GROUP - 1)))


def _scatter(x: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Sum of (x - mean)(x - mean)^T over rows: (d, d).

    Each block is a symmetric rank-k update in place (BLAS dsyrk): half the work of a full product.
    """
    from scipy.linalg.blas import dsyrk  # slow to import, and most commands do not need it

    dim = x.shape[1]
    upper = np.zeros((dim, dim), order="F")
    centred = np.empty((min(BLOCK_ROWS, len(x)), dim))
    for start in range(0, len(x), BLOCK_ROWS):
        block = x[start : start + BLOCK_ROWS]
        rows = np.subtract(block, mean, out=centred[: len(block)])
        # rows.T is column-major, as BLAS requires, so that it is not copied.
        upper = dsyrk(1.0, rows.T, beta=1.0, c=upper, overwrite_c=1)
    return _symmetric(upper)


def _symmetric(upper: np.ndarray) -> np.ndarray:
    """Return the symmetric matrix with this upper triangle; `upper` is zero below the diagonal."""
    full = np.ascontiguousarray(upper + upper.T)
    np.fill_diagonal(full, upper.diagonal())
    return full
