"""Moments are exact under any split, merge in a fixed tree, can be subtracted, and survive a file bit for
bit.
"""

from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError, Defect
from pipeline.stats.moments import BLOCK_ROWS, Moments, merge_tree


def sample(rows: int, dim: int, *, loc: float = 0.0, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, dim)) @ rng.normal(size=(dim, dim)) + loc


def assert_same(found: Moments, x: np.ndarray, rtol: float = 1e-10) -> None:
    assert found.count == len(x)
    np.testing.assert_allclose(found.mean, x.mean(0), rtol=rtol, atol=rtol)
    expected = np.cov(x.T, bias=True)
    np.testing.assert_allclose(found.covariance(), expected, atol=rtol * np.abs(expected).max())


def test_two_merged_parts_match_a_hand_computation() -> None:
    a, b = Moments.of(np.array([[1.0, 2], [3, 4]])), Moments.of(np.array([[5.0, 0], [7, 6], [0, 1]]))
    np.testing.assert_allclose(a.scatter, [[2, 2], [2, 2]])
    np.testing.assert_allclose(b.scatter, [[26, 14], [14, 20.666667]], atol=1e-6)
    both = a.merge(b)
    assert both.count == 5
    np.testing.assert_allclose(both.mean, [3.2, 2.6])
    np.testing.assert_allclose(both.scatter, [[32.8, 14.4], [14.4, 23.2]])
    np.testing.assert_allclose(both.covariance(), [[6.56, 2.88], [2.88, 4.64]])


@given(cuts=st.lists(st.integers(0, 1_000), max_size=12), shuffle=st.integers(0, 2**32 - 1))
def test_moments_do_not_depend_on_split_or_order(cuts: list[int], shuffle: int) -> None:
    x = sample(1_000, 8, loc=1e4)  # far from zero: the textbook formula is off by 2e-7 here
    parts = [Moments.of(part) for part in np.split(x, sorted(cuts))]
    order = np.random.default_rng(shuffle).permutation(len(parts))
    assert_same(reduce(Moments.merge, [parts[index] for index in order]), x)


@pytest.mark.parametrize("rows", [1, 2, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS + 5])
def test_block_boundaries_do_not_matter(rows: int) -> None:
    x = sample(rows, 5)
    found = Moments.of(x)
    centred = x - x.mean(0)
    np.testing.assert_allclose(found.scatter, centred.T @ centred, atol=1e-10 * rows)
    assert (found.scatter == found.scatter.T).all()


def test_float32_far_from_zero_is_exact_unlike_the_textbook_formula() -> None:
    x = np.random.default_rng(0).normal(loc=1e4, size=(4_000, 3)).astype(np.float32)
    column = [Fraction(float(value)) for value in x[:, 0]]
    mean = sum(column) / len(column)
    exact = float(sum((value - mean) ** 2 for value in column) / len(column))
    assert Moments.of(x).covariance()[0, 0] == pytest.approx(exact, rel=1e-12)
    assert abs(float((x[:, 0] ** 2).mean() - x[:, 0].mean() ** 2) - exact) > 0.1


def test_memory_layout_does_not_matter() -> None:
    x = sample(3_000, 12)
    for other in (np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2], np.hstack([x, x])[:, :12]):
        np.testing.assert_allclose(Moments.of(other).scatter, Moments.of(x).scatter, rtol=1e-10)
    frozen = x.copy()
    frozen.flags.writeable = False  # as a memory-mapped column is
    assert (Moments.of(frozen).scatter == Moments.of(x).scatter).all()


def test_empty_moments_are_neutral() -> None:
    moments = Moments.of(sample(10, 4))
    for both in (moments.merge(Moments.empty(4)), Moments.empty(4).merge(moments)):
        assert (both.scatter == moments.scatter).all()
        assert both.count == 10
    assert Moments.of(np.zeros((0, 4), np.float32)).count == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(bad: float) -> None:
    x = sample(2_000, 4).astype(np.float32)
    x[1_500, 2] = bad
    with pytest.raises(DataError, match="1 rows with NaN"):
        Moments.of(x)


@pytest.mark.parametrize(("dead", "rtol"), [(1, 1e-11), (100, 1e-11), (900, 1e-9)])
def test_removed_rows_can_be_subtracted(dead: int, rtol: float) -> None:
    x = sample(1_000, 6, loc=3.0)
    assert_same(Moments.of(x).without(Moments.of(x[:dead])), x[dead:], rtol)


def test_subtracting_too_many_rows_is_refused() -> None:
    x = sample(1_000, 6)
    with pytest.raises(Defect, match="from its rows"):
        Moments.of(x).without(Moments.of(x[:901]))


@pytest.mark.parametrize("units", [1, 2, 63, 64, 65, 200])
def test_the_merge_tree_is_deterministic_and_exact(units: int) -> None:
    x = sample(units * 7, 5, loc=10.0)
    parts = [Moments.of(part) for part in np.split(x, units)]
    once, again = merge_tree(parts), merge_tree(iter(parts))
    assert (once.scatter == again.scatter).all()
    assert_same(once, x)


def test_groups_merged_separately_give_the_same_bits() -> None:
    parts = [Moments.of(part) for part in np.split(sample(200 * 7, 5), 200)]
    groups = [
        merge_tree(parts[start : start + 64]) for start in range(0, 200, 64)
    ]  # as cached groups of units would be
    assert (merge_tree(groups).scatter == merge_tree(parts).scatter).all()


def test_a_file_preserves_every_bit() -> None:
    moments = Moments.of(sample(50, 9))
    content = moments.to_bytes()
    back = Moments.from_bytes(content)
    assert (back.count, back.to_bytes()) == (50, content)
    assert (back.mean == moments.mean).all()
    assert (back.scatter == moments.scatter).all()


def test_damaged_files_and_other_dimensions_are_refused() -> None:
    content = Moments.of(sample(50, 9)).to_bytes()
    for broken in (b"", content[:40], content[:-3], b"{}" * 40):
        with pytest.raises(DataError, match="moments file"):
            Moments.from_bytes(broken)
    with pytest.raises(DataError, match="9 dimensions"):
        Moments.of(sample(5, 9)).merge(Moments.of(sample(5, 8)))
    with pytest.raises(DataError, match="at least one row with a vector, found none; check the corpus"):
        merge_tree([])


def test_mapping_moments_matches_mapping_rows() -> None:
    rng = np.random.default_rng(0)
    x, matrix, bias = rng.normal(loc=1e3, size=(500, 8)), rng.normal(size=(3, 8)), rng.normal(size=3)
    moved, oracle = Moments.of(x).transform(matrix, bias), Moments.of(x @ matrix.T + bias)
    assert moved.count == 500
    np.testing.assert_allclose(moved.mean, oracle.mean, rtol=1e-12)
    np.testing.assert_allclose(moved.scatter, oracle.scatter, rtol=1e-9)
    assert (moved.scatter == moved.scatter.T).all()
