"""Samples and histograms for reports: rows sampled by hash, cosines of random pairs, singular values."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Random pairs: the mean cosine has a standard error below 0.002 for a standard deviation of 0.25.
PAIRS = 20_000
COSINE_BINS = 80  # 0.025 wide
SEED = 0


@dataclass(frozen=True)
class Histogram:
    """Histogram of values, and their mean. Bin i is [edges[i], edges[i + 1]); the last bin is closed."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    mean: float

    @property
    def total(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @classmethod
    def of(cls, values: np.ndarray, edges: np.ndarray) -> "Histogram":
        """Count values (n,) by ascending edges; the mean of no values is 0."""
        counts = np.histogram(values, edges)[0]
        mean = values.mean() if len(values) else 0.0
        return cls(tuple(edges.tolist()), tuple(counts.tolist()), float(mean))


def sample_by_key(keys: Sequence[bytes] | np.ndarray, size: int, seed: int = SEED) -> np.ndarray:
    """Return the indices, ascending, of the `size` keys with the smallest hash.

    The sample does not depend on the order of the keys. To sample a corpus in parts, sample each part, then
    the union of these samples.

    Args:
        keys: 16 uniformly distributed bytes each. Of equal keys, the earlier is taken first.
        size: number of keys to sample; all if there are fewer.
        seed: seed of the hash.

    >>> keys = [number.to_bytes(16, "little") for number in range(10)]
    >>> sampled = [keys[index] for index in sample_by_key(keys, 3)]
    >>> again = [keys[::-1][index] for index in sample_by_key(keys[::-1], 3)]
    >>> sorted(sampled) == sorted(again)
    True
    """
    words = np.frombuffer(b"".join(keys), dtype="<u8").reshape(-1, 2)[:, 0]
    hashes = _mix(words ^ _mix(np.array([seed], np.uint64)))
    return np.sort(np.argsort(hashes, kind="stable")[:size])


def random_pairs(rows: int, pairs: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the indices, below `rows`, of pairs of different rows: (pairs,) for each side."""
    left = rng.integers(rows, size=pairs)
    return left, (left + rng.integers(1, rows, size=pairs)) % rows


def cosine_histogram(x: np.ndarray, pairs: int = PAIRS, seed: int = SEED) -> Histogram:
    """Histogram of the cosines of random pairs of different rows of x (n, d), n >= 2, over [-1, 1].

    The mean estimates the anisotropy (Jiang et al. 2022, PromptBERT, eq. 1). Equal seeds draw the same
    pairs, so that raw and whitened vectors can be compared.
    """
    left, right = random_pairs(len(x), pairs, np.random.default_rng(seed))
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    cosines = np.einsum("nd,nd->n", unit[left], unit[right], dtype=np.float64)
    return Histogram.of(np.clip(cosines, -1, 1), np.linspace(-1, 1, COSINE_BINS + 1))


def singular_spectrum(x: np.ndarray, centred: bool = False) -> np.ndarray:
    """Singular values of x (n, d), largest first, divided by the largest: (min(n, d),).

    The flatter they are, the more isotropic is the space (Gao et al. 2021, SimCSE, fig. 3).

    >>> singular_spectrum(np.array([[4.0, 0.0], [0.0, 2.0]])).round(4).tolist()
    [1.0, 0.5]
    """
    x = x.astype(np.float64)
    values = np.linalg.svd(x - x.mean(axis=0) if centred else x, compute_uv=False)
    return np.asarray(values / max(values[0], np.finfo(np.float64).tiny))


def _mix(words: np.ndarray) -> np.ndarray:
    """Permute 64-bit words pseudo-randomly: the finalizer of SplitMix64 (Steele et al. 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))
