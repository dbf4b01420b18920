"""Hubness matches counting by hand, and finds a planted hub."""

import numpy as np
import pytest
from scipy.stats import skew

from pipeline.errors import DataError
from pipeline.stats import space as module
from pipeline.stats.space import hubness, nearest_rows


def counts_by_sorting(x: np.ndarray, k: int) -> np.ndarray:
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    similarity = u @ u.T
    np.fill_diagonal(similarity, -2)
    return np.bincount(np.argsort(-similarity, axis=1)[:, :k].ravel(), minlength=len(x))


@pytest.mark.parametrize("block", [1, 7, 512])
def test_counts_match_sorting_all_similarities(block: int, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", block)
    x = np.random.default_rng(0).normal(loc=0.2, size=(60, 5))
    found = hubness(x, 4)
    np.testing.assert_array_equal(found.counts, counts_by_sorting(x, 4))
    assert found.counts.mean() == 4
    assert found.skewness == pytest.approx(skew(found.counts))


def test_a_planted_hub_and_antihubs_are_found():
    x = np.vstack(
        [np.ones(40), np.eye(40)]
    )  # the first is nearest to each of the others, which are orthogonal
    found = hubness(x, 1)
    assert found.counts[0] == 40
    assert found.largest_proportion == 1.0
    assert found.antihub_proportion == pytest.approx(39 / 41)  # the hub itself has one of them as its nearest
    assert found.skewness > 5


def test_vectors_on_a_circle_have_no_hubs():
    angles = np.linspace(0, 2 * np.pi, 30, endpoint=False)
    found = hubness(np.stack([np.cos(angles), np.sin(angles)], axis=1), 2)
    assert set(found.counts.tolist()) == {2}
    assert (found.skewness, found.antihub_proportion) == (0.0, 0.0)


def test_a_row_is_never_its_own_neighbour():
    others = [[other for other in range(6) if other != row] for row in range(6)]
    assert np.sort(nearest_rows(np.ones((6, 3)), 5), axis=1).tolist() == others


def test_too_few_vectors_are_refused():
    with pytest.raises(DataError, match="more than 4 vectors"):
        hubness(np.eye(4), 4)
