"""A sample is taken from every unit in proportion to its rows, by hash of id."""

import numpy as np
import pyarrow as pa
import pytest

from pipeline.index.build.sample import apportion, sample_rows


@pytest.mark.parametrize(
    ("rows", "total"),
    [
        ([100, 100, 100], 30),
        ([1, 1_000, 0, 17], 50),
        ([3, 3], 100),
        ([5], 0),
        ([7] * 99, 100),
        ([10**12, 1], 10),
    ],
)
def test_samples_per_unit_are_proportional_and_add_up(rows, total):
    counts = apportion(rows, total)
    assert counts.sum() == min(total, sum(rows))
    assert (counts <= rows).all()
    np.testing.assert_allclose(counts, np.array(rows) * counts.sum() / sum(rows), atol=1)


def test_sampled_rows_cover_all_positions_and_do_not_depend_on_them():
    ids = np.array([f"row-{number}" for number in range(5_000)])
    shuffled = np.random.default_rng(0).permutation(ids)
    chosen = set(ids[sample_rows(pa.array(ids), 500, "train")])
    assert chosen == set(shuffled[sample_rows(pa.array(shuffled), 500, "train")])
    rows = sample_rows(pa.array(ids), 500, "train")
    assert (np.diff(rows) > 0).all()
    assert np.histogram(rows, bins=5, range=(0, 5_000))[0].min() > 70  # 100 expected, standard deviation 9


def test_salts_give_independent_samples_of_integer_ids_too():
    ids = pa.array(range(5_000))
    both = np.intersect1d(sample_rows(ids, 500, "train"), sample_rows(ids, 500, "queries"))
    assert 20 < len(both) < 90  # 50 expected, standard deviation 6
    assert len(sample_rows(ids, 9_999, "train")) == 5_000
