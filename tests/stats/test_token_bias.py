"""The plane of a table equals scikit-learn's principal components; groups and ranks equal those by hand."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from pipeline.stats.token_bias import (
    TokenAttribute,
    between_groups,
    groups_of,
    principal_plane,
    rank_attribute,
)


def test_the_plane_is_that_of_the_first_two_principal_components():
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(300, 12)) * np.arange(1, 13) + 100).astype(np.float32)
    points, explained = principal_plane(rows)
    reference = PCA(2).fit(rows.astype(np.float64))
    expected = reference.transform(rows.astype(np.float64))
    signs = np.sign(reference.components_[[0, 1], np.abs(reference.components_).argmax(axis=1)])
    np.testing.assert_allclose(points, expected * signs, atol=1e-8)
    np.testing.assert_allclose(explained, reference.explained_variance_ratio_, atol=1e-10)


def test_equal_rows_have_no_variance_to_explain():
    points, explained = principal_plane(np.ones((5, 4), np.float32))
    assert not points.any()
    assert not explained.any()
    assert between_groups(points, np.array([0, 0, 1, 1, 1])) == 0


def test_the_proportion_between_groups_is_one_minus_the_proportion_within():
    rng = np.random.default_rng(1)
    points, codes = rng.normal(size=(60, 2)), rng.integers(0, 3, 60)
    points[codes == 1] += 3
    within = sum(
        ((points[codes == code] - points[codes == code].mean(axis=0)) ** 2).sum() for code in range(3)
    )
    total = ((points - points.mean(axis=0)) ** 2).sum()
    assert between_groups(points, codes) == pytest.approx(1 - within / total)
    assert between_groups(points, np.zeros(60)) == pytest.approx(0)
    assert between_groups(np.repeat([[0.0, 1.0], [2.0, 0.0]], 5, axis=0), np.repeat([4, 2], 5)) == 1


def test_ranks_are_by_count_and_tokens_that_do_not_occur_are_apart():
    counts = np.arange(12_000)[::-1].copy()
    counts[11_990:] = 0
    shuffled = np.random.default_rng(2).permutation(12_000)
    groups, codes = rank_attribute(counts[shuffled])
    assert groups == (
        "rank 1 to 100",
        "rank 101 to 1,000",
        "rank 1,001 to 10,000",
        "rank 10,001 and more",
        "not in the texts",
    )
    assert np.bincount(codes).tolist() == [100, 900, 9_000, 1_990, 10]
    assert codes[shuffled.argsort()[[0, 99, 100, 999, 1_000, 9_999, 10_000]]].tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
    ]


def test_groups_have_their_means_and_empty_ones_are_left_out():
    points, norms = np.array([[0.0, 1.0], [2.0, 3.0], [10.0, 10.0]]), np.array([1.0, 2.0, 7.0])
    attribute = TokenAttribute(("a", "b", "c"), np.array([2, 2, 0]))
    first, last = groups_of(points, norms, {"kind": attribute})
    assert (first.name, first.code, first.tokens, first.x, first.y, first.norm) == ("a", 0, 1, 10, 10, 7)
    assert (last.name, last.code, last.tokens, last.x, last.y, last.norm) == ("c", 2, 2, 1, 2, 1.5)
