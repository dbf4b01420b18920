"""Numbers of distinct values are exact if small, and estimated within a few percent if large."""

import numpy as np
import pytest

from pipeline.stats.distinct import KEPT, estimate_distinct, smallest_distinct


@pytest.mark.parametrize(
    ("distinct", "tolerance"), [(0, 0), (1, 0), (KEPT - 1, 0), (KEPT, 0.06), (200_000, 0.06)]
)
def test_distinct_hashes_are_counted_also_over_parts(distinct: int, tolerance: float):
    rng = np.random.default_rng(3)
    hashes = rng.integers(0, 2**64, distinct, dtype=np.uint64)
    repeated = rng.permutation(np.concatenate([hashes, hashes[: distinct // 2]]))
    parts = [smallest_distinct(part) for part in np.array_split(repeated, 7)]
    joined = smallest_distinct(np.concatenate(parts))
    np.testing.assert_array_equal(joined, smallest_distinct(repeated))
    assert abs(estimate_distinct(joined) - distinct) <= tolerance * distinct
