"""Samples over all units by hash of id: the same rows whatever the order, number and size of the units."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def apportion(rows: Sequence[int], total: int) -> np.ndarray:
    """Divide `total` samples among units in proportion to their rows, by largest remainders.

    Of equal remainders the earlier unit is first. The sum is `total`, or the number of all rows if there are
    fewer.
    """
    sizes = np.asarray(rows, dtype=np.int64)
    total = min(total, int(sizes.sum()))
    if total <= 0:
        return np.zeros(len(sizes), dtype=np.int64)
    quotas = sizes * (total / sizes.sum())
    counts = np.floor(quotas).astype(np.int64)
    rest = np.argsort(counts - quotas, kind="stable")[: total - int(counts.sum())]
    counts[rest] += 1
    return counts


def sample_rows(ids: pa.Array | pa.ChunkedArray, count: int, salt: str) -> np.ndarray:
    """Return the `count` rows of a unit whose ids have the lowest hashes, ascending (int64).

    Another `salt` gives an independent sample.
    """
    if count >= len(ids):
        return np.arange(len(ids))
    key = salt.encode()[: hashlib.blake2b.MAX_KEY_SIZE]
    hashes = (
        hashlib.blake2b(str(value).encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest()
        for value in ids.to_pylist()
    )
    order = np.argsort(np.frombuffer(b"".join(hashes), dtype=">u8"), kind="stable")
    return np.sort(order[:count])
