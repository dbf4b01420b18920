"""Sample rows of a corpus by the hash of their ids, so that the sample does not depend on their order."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline.store.records.unit_sample import UnitSample

# Rows of each unit that are stored as its sample, by the salt of their hash. If a billion rows are in 30,000
# units, an index is trained on a few hundred rows of each unit, and few units have a query.
SAMPLE_SIZES = {"train": 1_024, "queries": 64, "held out": 64}
# Smaller units have no sample: it would be as large as a quarter of the unit.
LEAST_SAMPLED_ROWS = 4 * sum(SAMPLE_SIZES.values())


def apportion(rows: Sequence[int], total: int) -> np.ndarray:
    """Return how many of `total` samples to draw from each unit, in proportion to its rows.

    Rounding is by largest remainders; of equal remainders the earlier unit is first. If there are fewer than
    `total` rows, all are drawn.

    Args:
        rows: number of rows of each unit.
    """
    sizes = np.asarray(rows, dtype=np.int64)
    total = min(total, int(sizes.sum()))
    if total <= 0:
        return np.zeros(len(sizes), dtype=np.int64)
    quotas = sizes * (total / sizes.sum())
    counts = np.floor(quotas).astype(np.int64)
    rounded_up = np.argsort(counts - quotas, kind="stable")[: total - int(counts.sum())]
    counts[rounded_up] += 1
    return counts


def sample_rows(ids: pa.Array | pa.ChunkedArray, count: int, salt: str) -> np.ndarray:
    """Return the numbers (ascending int64) of the `count` rows whose ids have the lowest hashes.

    A different `salt` gives an independent sample.
    """
    if count >= len(ids):
        return np.arange(len(ids))
    return np.sort(hash_order(id_bytes(ids), salt)[:count])


def id_bytes(ids: pa.Array | pa.ChunkedArray) -> list[bytes]:
    """Return the bytes by which ids are hashed: their text in UTF-8."""
    return [str(value).encode("utf-8", "surrogatepass") for value in ids.to_pylist()]


def hash_order(ids: Sequence[bytes], salt: str) -> np.ndarray:
    """Return the numbers (n,) of ids in the order of their hashes with `salt`; the sort is stable."""
    key = salt.encode()[: hashlib.blake2b.MAX_KEY_SIZE]
    hashes = (hashlib.blake2b(value, digest_size=8, key=key).digest() for value in ids)
    return np.argsort(np.frombuffer(b"".join(hashes), dtype=">u8"), kind="stable")


def rows_to_store(ids: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return the numbers (ascending int64) of the rows to store as a unit's sample, as SAMPLE_SIZES says."""
    encoded_ids = id_bytes(ids)
    chosen = [hash_order(encoded_ids, salt)[:size] for salt, size in SAMPLE_SIZES.items()]
    return np.unique(np.concatenate(chosen))


def choose_from_sample(
    sample: UnitSample, candidates: np.ndarray, count: int, salt: str
) -> np.ndarray | None:
    """Return the positions, in a stored sample, of the rows that `sample_rows` would choose from the unit.

    Args:
        candidates: (n,) bool, whether a row of the sample may be chosen.

    Returns:
        Ascending int64; None if rows that the sample lacks might be among the chosen ones.
    """
    # the sample has the unit's rows with the lowest hashes, so no row outside the sample precedes them
    lowest = hash_order(id_bytes(sample.ids), salt)[: sample.sizes.get(salt, 0)]
    chosen = lowest[candidates[lowest]][:count]
    return np.sort(chosen) if len(chosen) == count else None
