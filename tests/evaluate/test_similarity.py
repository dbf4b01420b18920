"""Similarities match closed forms, and the block-wise form matches the paired one."""

import numpy as np
import pytest

from pipeline.errors import ModelError
from pipeline.evaluate.similarity import prepare_vectors, row_similarities, similarity_matrix, vectors_of

KINDS = ("cosine", "angular", "euclidean", "manhattan", "dot")


def test_angular_similarity_matches_a_hand_computation():
    left = np.array([[1, 0], [1, 0], [0.1, 0.3], [1, 2]], np.float32)
    right = np.array([[0, 1], [1, 1], [0.1, 0.3], [-1, -2]], np.float32)
    np.testing.assert_allclose(row_similarities("angular", left, right), [0.5, 0.75, 1.0, 0.0], atol=1e-6)


def test_angular_similarity_of_equal_vectors_is_finite():
    x = np.random.default_rng(0).normal(size=(2_000, 7)).astype(np.float32)
    for found in (
        row_similarities("angular", x, x),
        row_similarities("angular", x, -x),
        np.diag(similarity_matrix("angular", *2 * (prepare_vectors("angular", x),))),
    ):
        assert np.isfinite(found).all()


def test_pairs_of_equal_vectors_tie():
    x = np.random.default_rng(0).normal(size=(500, 37)).astype(np.float32)
    assert set(row_similarities("cosine", x, x)) == {1.0}
    assert np.ptp(row_similarities("angular", x, x)) == 0


def test_cosine_with_a_zero_vector_is_0():
    zero, some = np.zeros((1, 3), np.float32), np.ones((1, 3), np.float32)
    assert row_similarities("cosine", zero, some)[0] == 0
    assert row_similarities("cosine", zero, zero)[0] == 0
    assert (
        similarity_matrix("cosine", prepare_vectors("cosine", zero), prepare_vectors("cosine", some))[0, 0]
        == 0
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_has_the_similarities_of_single_rows(kind: str):
    rng = np.random.default_rng(1)
    left = rng.normal(size=(5, 16)).astype(np.float32)
    right = 1e3 + rng.normal(size=(4, 16)).astype(np.float32)
    found = similarity_matrix(kind, prepare_vectors(kind, left), prepare_vectors(kind, right))
    expected = [
        [row_similarities(kind, left[i : i + 1], right[j : j + 1])[0] for j in range(4)] for i in range(5)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_euclidean_is_minus_the_distance():
    assert row_similarities("euclidean", np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]]))[0] == -5


def test_manhattan_is_minus_the_sum_of_absolute_differences():
    assert row_similarities("manhattan", np.array([[0.0, 1.0]]), np.array([[3.0, -3.0]]))[0] == -7


@pytest.mark.parametrize(
    ("given", "message"),
    [(np.ones((1, 2)), "one vector per sentence, for 2"), (np.array([[1, 2], [np.nan, 1]]), "first for 'b'")],
)
def test_invalid_vectors_are_refused(given: np.ndarray, message: str):
    with pytest.raises(ModelError, match=message):
        vectors_of(lambda _: given, ["a", "b"], "STS12")
