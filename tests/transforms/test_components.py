"""Common directions are removed and nothing else; oracles: published examples, numpy, scikit-learn."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from pipeline.errors import DataError
from pipeline.stats.moments import Moments, merge_tree
from pipeline.transforms.components import Components, fit_components
from pipeline.transforms.transform import load_transform


def vectors(rows: int = 1_500, dim: int = 24, seed: int = 0) -> np.ndarray:
    """Return rows far from zero with two directions of large variance."""
    rng = np.random.default_rng(seed)
    scales = np.r_[9.0, 5.0, np.linspace(1, 0.2, dim - 2)]
    return (
        rng.normal(size=(rows, dim))
        * scales
        @ np.linalg.qr(np.random.default_rng(9).normal(size=(dim, dim)))[0]
        + 3
    ).astype(np.float32)


def test_sif_matches_a_hand_computation() -> None:
    v = np.array([[0.004320, 0.000998], [0.007201, -0.003663], [0.003322, 0.003311]])
    sif = fit_components(Moments.of(v), 1, centred=False)
    np.testing.assert_allclose(
        np.abs(sif.directions[0]), [0.982447, 0.186543], atol=2e-4
    )  # the vectors above are rounded
    assert np.prod(sif.directions[0]) < 0
    np.testing.assert_allclose(
        sif(v), [[0.000333, 0.001755], [-0.000421, -0.002216], [0.000722, 0.003805]], atol=1e-6
    )


def test_all_but_the_top_matches_a_hand_computation() -> None:
    x = np.array([[2.0, 0], [0, 1], [-2, 1], [4, 2]])
    expected = [[0.120372, -1.096559], [-0.011906, 0.108465], [-0.035719, 0.325396], [-0.072746, 0.662698]]
    np.testing.assert_allclose(fit_components(Moments.of(x), 1)(x), expected, atol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_the_remainder_matches_scikit_learn(count: int) -> None:
    x, unseen = vectors().astype(np.float64), vectors(40, seed=1).astype(np.float64)
    fitted = fit_components(merge_tree(Moments.of(part) for part in np.split(x, [2, 700])), count)
    pca = PCA(count, svd_solver="full").fit(x) if count else None
    centred = unseen - x.mean(axis=0)
    np.testing.assert_allclose(
        fitted(unseen), centred - (centred @ pca.components_.T @ pca.components_ if pca else 0), atol=1e-5
    )
    assert fitted.share == pytest.approx(pca.explained_variance_ratio_.sum() if pca else 0)


@pytest.mark.parametrize("count", [1, 3])
def test_without_centring_singular_vectors_are_removed(count: int) -> None:
    x, unseen = vectors().astype(np.float64), vectors(40, seed=1).astype(np.float64)
    fitted = fit_components(
        merge_tree(Moments.of(part) for part in np.split(x, [2, 700])), count, centred=False
    )
    top = np.linalg.svd(x, full_matrices=False)[2][:count]
    np.testing.assert_allclose(fitted(unseen), unseen - unseen @ top.T @ top, atol=1e-5)
    assert not fitted.mean.any()


def test_removed_directions_have_no_variance() -> None:
    fitted = fit_components(Moments.of(vectors()), 2)
    assert np.abs(fitted(vectors(100, seed=2)) @ fitted.directions.T).max() < 1e-5
    assert fitted.notes[0].startswith("2 principal directions removed, with 9")


def test_notes_describe_the_removal() -> None:
    moments = Moments.of(vectors())
    assert (
        fit_components(moments, 1, centred=False).notes[0].startswith("1 singular direction removed, with ")
    )
    assert fit_components(moments, 0).notes == ("0 principal directions removed, with 0.0% of the variance",)


@pytest.mark.parametrize("centred", [True, False])
def test_the_affine_map_equals_the_transform(centred: bool) -> None:
    fitted = fit_components(Moments.of(vectors()), 2, centred=centred)
    affine = fitted.affine()
    unseen = vectors(40, seed=1)
    np.testing.assert_allclose(unseen @ affine.matrix.T + affine.bias, fitted(unseen), atol=5e-5)


def test_a_file_preserves_every_bit() -> None:
    fitted = fit_components(Moments.of(vectors()), 3, space_id="a space")
    back = load_transform(fitted.to_bytes())
    assert isinstance(back, Components)
    assert (back.to_bytes(), back.transform_id, back.centred, back.share) == (
        fitted.to_bytes(),
        fitted.transform_id,
        True,
        fitted.share,
    )
    others = [
        fit_components(Moments.of(vectors()), 3, space_id=space, centred=centred)
        for space, centred in (("b", True), ("a space", False))
    ]
    assert len({fitted.transform_id, *(other.transform_id for other in others)}) == 3


@pytest.mark.parametrize(
    ("x", "count", "centred"),
    [
        (np.ones((1, 4)), 0, True),
        (np.ones((60, 4)), 0, True),
        (np.ones((60, 4)), 1, False),
        (np.zeros((60, 4)), 0, False),
        (np.eye(4), 3, True),
        (np.eye(4), 4, False),
        (np.eye(4), -1, True),
    ],
)
def test_removing_too_many_directions_is_refused(x: np.ndarray, count: int, centred: bool) -> None:
    with pytest.raises(DataError):
        fit_components(Moments.of(x), count, centred=centred)


def test_too_few_rows_give_a_shortage() -> None:
    assert fit_components(Moments.of(vectors(15)), 3).shortage is None
    assert "14 rows are too few for 3 directions: at least 15" in (
        fit_components(Moments.of(vectors(14)), 3).shortage or ""
    )


def test_invalid_vectors_are_refused() -> None:
    with pytest.raises(DataError, match=r"shape \(n, 24\)"):
        fit_components(Moments.of(vectors()))(np.ones((2, 23)))
    with pytest.raises(DataError, match="1 rows with NaN"):
        fit_components(Moments.of(vectors()))(np.r_[np.ones((2, 24)), np.full((1, 24), np.inf)])
