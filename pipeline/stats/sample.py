"""What the report draws of vectors and texts: samples by hash, cosines of random pairs, token lengths, singular values."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PAIRS = 20_000  # standard error of the mean cosine below 0.002 even for a standard deviation of 0.25
COSINE_BINS = 80  # 0.025 each
SEED = 0


@dataclass(frozen=True)
class Histogram:
    """counts[i] values lie in [edges[i], edges[i + 1]), the last bin closed; mean of all values."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    mean: float

    @property
    def total(self) -> int:
        return sum(self.counts)


def sample_by_key(keys: Sequence[bytes] | np.ndarray, size: int, seed: int = SEED) -> np.ndarray:
    """Places of the `size` keys (16 uniform bytes each) with the smallest hash, ascending; all of them if there are fewer.

    A key's chance does not depend on where it stands. Samples of parts combine: sample each part, then the union of the samples. Equal keys
    tie, the earlier place wins.
    """
    words = np.frombuffer(b"".join(keys), dtype="<u8").reshape(-1, 2)[:, 0]
    hashes = _mix(words ^ _mix(np.array([seed], np.uint64)))
    return np.sort(np.argsort(hashes, kind="stable")[:size])


def cosine_histogram(x: np.ndarray, pairs: int = PAIRS, seed: int = SEED) -> Histogram:
    """Cosines of `pairs` random pairs of distinct rows of x (n, d), n >= 2, in 80 bins over [-1, 1]. The mean estimates the anisotropy
    (Jiang et al. 2022, PromptBERT, eq. 1); equal seeds draw equal pairs, so raw and whitened vectors are compared on the same ones.
    """
    rng = np.random.default_rng(seed)
    left = rng.integers(len(x), size=pairs)
    right = (left + rng.integers(1, len(x), size=pairs)) % len(x)
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    cosines = np.einsum("nd,nd->n", unit[left], unit[right], dtype=np.float64)
    return _histogram(np.clip(cosines, -1, 1), np.linspace(-1, 1, COSINE_BINS + 1))


def length_histogram(lengths: np.ndarray, limit: int, bins: int = 128) -> Histogram:
    """Tokens per text (n,), special tokens included, before truncation, in bins of equal whole width up to `limit`; longer ones are in the last bin,
    which begins just above the limit.
    """
    width = -(-limit // bins)
    edges = np.append(np.arange(0, limit, width), [limit + 1, limit + 1 + width])
    inside = np.minimum(lengths, limit + 1)
    counts, _ = np.histogram(inside, edges)
    return Histogram(
        tuple(map(float, edges)), tuple(map(int, counts)), float(np.mean(lengths)) if len(lengths) else 0.0
    )


def singular_spectrum(x: np.ndarray, centred: bool = False) -> np.ndarray:
    """Singular values of x (n, d), largest first, divided by the largest (min(n, d),): the flatter, the more isotropic (Gao et al. 2021, SimCSE, fig. 3)."""
    x = x.astype(np.float64)
    values = np.linalg.svd(x - x.mean(axis=0) if centred else x, compute_uv=False)
    return np.asarray(values / max(values[0], np.finfo(np.float64).tiny))


def _histogram(values: np.ndarray, edges: np.ndarray) -> Histogram:
    counts, _ = np.histogram(values, edges)
    return Histogram(tuple(map(float, edges)), tuple(map(int, counts)), float(values.mean()))


def _mix(words: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit words whose bits look independent: the finalizer of SplitMix64 (Steele et al. 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))
