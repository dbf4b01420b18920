"""WhiteningDecision vectors have mean 0 and covariance I for any split; oracles: hand computations, numpy,
scikit-learn.
"""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from sklearn.covariance import OAS
from sklearn.decomposition import PCA

from pipeline.errors import DataError
from pipeline.stats.moments import Moments, merge_tree
from pipeline.stats.tensors import pack, unpack
from pipeline.transforms.transform import TRANSFORMS, load_transform
from pipeline.transforms.whitening import Whitening, fit_whitening, oas_shrinkage

X = np.array([[2.0, 0], [0, 1], [-2, 1], [4, 2]])


def fit(x: np.ndarray, k: int | None = None) -> Whitening:
    return fit_whitening(Moments.of(x), k, space_id="a space")


def cosines(x: np.ndarray) -> np.ndarray:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return unit @ unit.T


def vectors(rows: int, dim: int = 32, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(rows, dim)) @ rng.normal(size=(dim, dim)) + 1).astype(np.float32)


def test_four_points_match_a_hand_computation() -> None:
    whiten = fit(X)
    np.testing.assert_allclose(whiten.eigenvalues, [5.054886, 0.445114], atol=1e-6)
    y = whiten(X)
    gram = [[2.888889, -0.444444, -1.333333, -1.111111], [-0.444444, 0.222222, 0.666667, -0.444444]]
    gram += [[-1.333333, 0.666667, 2, -1.333333], [-1.111111, -0.444444, -1.333333, 2.888889]]
    np.testing.assert_allclose(y @ y.T, gram, atol=1e-5)
    np.testing.assert_allclose(cosines(y)[0], [1, -0.554700, -0.554700, -0.384615], atol=1e-5)
    np.testing.assert_allclose(y.T @ y / 4, np.eye(2), atol=1e-6)
    unseen = whiten(np.array([[3.0, 3.0]]))[0]
    assert unseen @ unseen == pytest.approx(8, abs=1e-5)
    assert cosines(np.stack([unseen, y[0]]))[0, 1] == pytest.approx(-0.832050, abs=1e-5)


def test_one_component_of_four_points_matches_a_hand_computation() -> None:
    y = fit(X, 1)(X)[:, 0]
    np.testing.assert_allclose(
        y * -np.sign(y[0]), [-0.393590, 0.442123, 1.326370, -1.374903], atol=1e-5
    )  # up to the sign


def test_full_rank_on_few_points_gives_a_shortage() -> None:
    whiten = fit(np.array([[1.0, 0, 0, 2], [0, 1, 0, 1], [0, 0, 3, 1]]))
    assert whiten.k == 2
    assert whiten.shortage is not None
    y = whiten(np.array([[1.0, 0, 0, 2], [0, 1, 0, 1], [0, 0, 3, 1]]))
    np.testing.assert_allclose(cosines(y)[~np.eye(3, dtype=bool)], -0.5, atol=1e-5)


@pytest.mark.parametrize("k", [None, 1, 7, 32])
def test_fitted_vectors_are_white(k: int | None) -> None:
    x = vectors(2_000)
    y = fit(x, k)(x)
    assert y.dtype == np.float32
    assert y.shape == (2_000, k or 32)
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(np.cov(y.T, bias=True).reshape(y.shape[1], -1), np.eye(y.shape[1]), atol=1e-4)


def test_shards_in_any_order_give_the_same_cosines() -> None:
    x = vectors(2_000)
    parts = [Moments.of(part) for part in np.split(x, [10, 11, 700])]
    sharded = fit_whitening(merge_tree(parts[::-1]))
    np.testing.assert_allclose(sharded.eigenvalues, fit(x).eigenvalues, rtol=1e-9)
    np.testing.assert_allclose(cosines(sharded(x[:50])), cosines(fit(x)(x[:50])), atol=1e-5)


def test_constant_and_dependent_dimensions_are_dropped() -> None:
    x = vectors(2_000)
    x[:, 3], x[:, 9], x[:, 20] = 0.25, 0, 1e-8
    x[:, 30] = x[:, 31]
    whiten = fit(x, 32)
    assert (whiten.k, whiten.rank) == (28, 28)
    assert np.isfinite(whiten(x)).all()
    assert whiten.notes == ("whiten.k=32 was lowered to 28; the vectors vary in 28 of 32 directions only",)
    assert fit(x).notes[0].startswith("28 of 32 components are kept")


def test_too_few_rows_give_a_shortage() -> None:
    assert fit(vectors(5 * 32)).shortage is None
    assert "159 rows are too few to whiten 32 components: at least 160" in (fit(vectors(159)).shortage or "")
    assert fit(vectors(159), 16).shortage is None


@pytest.mark.parametrize("x", [np.ones((1, 4)), np.ones((0, 4)), np.ones((60, 4))])
def test_equal_rows_are_refused(x: np.ndarray) -> None:
    with pytest.raises(DataError):
        fit(x)


def test_vectors_of_another_dimension_are_refused() -> None:
    with pytest.raises(DataError, match=r"shape \(n, 32\)"):
        fit(vectors(200))(np.ones((2, 31), np.float32))


def test_a_file_preserves_every_bit_and_its_kind() -> None:
    whiten = fit(vectors(500), 20)
    loaded = load_transform(whiten.to_bytes())
    assert isinstance(loaded, Whitening)
    assert loaded.to_bytes() == whiten.to_bytes()
    assert (loaded.transform_id, loaded.space_id, loaded.fitted_rows, loaded.requested) == (
        whiten.transform_id,
        "a space",
        500,
        20,
    )
    assert (loaded(vectors(9)) == whiten(vectors(9))).all()


def test_another_process_writes_the_same_bytes() -> None:
    program = (
        "from tests.transforms.test_whitening import *; "
        "print(hashlib.sha256(fit(vectors(500)).to_bytes()).hexdigest())"
    )
    runs = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(runs) == 1


def test_the_id_depends_on_the_space_and_the_fit() -> None:
    moments = Moments.of(vectors(500))
    same, other_space, other_k = (
        fit_whitening(moments, k, space_id=space).transform_id
        for k, space in [(None, "a"), (None, "b"), (9, "a")]
    )
    assert len({same, other_space, other_k}) == 3
    assert fit_whitening(moments, space_id="a").transform_id == same


def test_damaged_files_are_refused() -> None:
    content = fit(vectors(500)).to_bytes()
    flipped = content[:-9] + bytes([content[-9] ^ 64]) + content[-8:]
    cases = {b"": "tensor file", content[:200]: "tensor file", pack({"a": X}, {"kind": "spell"}): "spell"}
    cases |= {pack({"a": X}, {"kind": "whitening"}): "no tensor matrix"}
    cases |= {
        pack(dict.fromkeys(("matrix", "bias", "eigenvalues"), X), {"kind": "whitening"}): "no rank, condition"
    }
    for broken, message in cases.items():
        with pytest.raises(DataError, match=message):
            load_transform(broken)
    with pytest.raises(DataError, match=r"damaged"):
        load_transform(flipped)


@pytest.mark.parametrize("k", [None, 20, 5])
def test_zca_has_the_cosines_of_pca(k: int | None) -> None:
    moments, x = Moments.of(vectors(2_000)), vectors(60, seed=1)
    pca, zca = fit_whitening(moments, k), fit_whitening(moments, k, rotation="zca")
    assert (zca.k, zca.components, zca.shortage) == (32, k or 32, None)
    np.testing.assert_allclose(cosines(zca(x)), cosines(pca(x)), atol=1e-4)
    np.testing.assert_allclose(zca.matrix, zca.matrix.T, atol=1e-4)
    values, axes = np.linalg.eigh(np.cov(vectors(2_000).astype(np.float64).T, bias=True))
    kept = axes[:, ::-1][:, : k or 32]
    expected = (
        (x - vectors(2_000).astype(np.float64).mean(axis=0))
        @ (kept / np.sqrt(values[::-1][: k or 32]))
        @ kept.T
    )
    np.testing.assert_allclose(zca(x), expected, atol=5e-3)
    assert load_transform(zca.to_bytes()).notes == zca.notes


@pytest.mark.parametrize("rows", [40, 200, 5_000])
def test_automatic_shrinkage_matches_scikit_learn(rows: int) -> None:
    x = vectors(rows).astype(np.float64)
    oracle = OAS().fit(x)
    assert oas_shrinkage(Moments.of(x)) == pytest.approx(oracle.shrinkage_, rel=1e-9)
    whiten = fit_whitening(Moments.of(x), shrinkage="auto")
    expected = np.linalg.inv(oracle.covariance_)
    np.testing.assert_allclose(whiten.matrix.T @ whiten.matrix, expected, atol=1e-5 * np.abs(expected).max())
    assert f"shrunk to a multiple of the identity by {oracle.shrinkage_:.4g}" in ". ".join(whiten.notes)


def test_isotropic_vectors_give_full_shrinkage() -> None:
    assert (
        oas_shrinkage(Moments(8, np.zeros(4), 8 * np.eye(4)))
        == OAS().fit(np.r_[np.eye(4), -np.eye(4)] * 2).shrinkage_
        == 1
    )


@pytest.mark.parametrize(("shrinkage", "ridge"), [(0.2, 0.0), (0.0, 0.1), (0.3, 0.05), (1.0, 0.0)])
def test_regularised_whitening_inverts_the_regularised_covariance(shrinkage: float, ridge: float) -> None:
    x = vectors(200).astype(np.float64)
    covariance = np.cov(x.T, bias=True)
    mean = np.trace(covariance) / 32
    whiten = fit_whitening(Moments.of(x), shrinkage=shrinkage, ridge=ridge)
    expected = np.linalg.inv((1 - shrinkage) * covariance + (shrinkage + ridge) * mean * np.eye(32))
    np.testing.assert_allclose(whiten.matrix.T @ whiten.matrix, expected, atol=1e-5 * np.abs(expected).max())


def test_a_ridge_gives_every_direction_a_variance() -> None:
    x = vectors(20).astype(np.float64)  # 20 points span 19 of 32 directions
    assert fit_whitening(Moments.of(x)).k == 19
    ridged = fit_whitening(Moments.of(x), ridge=0.1)
    assert (ridged.k, ridged.rank) == (32, 19)
    assert np.isfinite(ridged(x)).all()
    assert "20 rows are no more than the 32 dimensions" in ". ".join(ridged.notes)


def test_a_fit_without_options_has_a_fixed_file() -> None:
    whiten = fit(vectors(500), 20)
    old = {
        "rank",
        "condition",
        "effective_rank",
        "fitted_rows",
        "requested",
        "space_id",
        "transform_id",
        "kind",
    }
    tensors, header = unpack(whiten.to_bytes())
    assert (set(header), set(tensors)) == (old, {"matrix", "bias", "eigenvalues"})
    parts = hashlib.sha256(b'["whitening","a space",20,32]' + whiten.matrix.tobytes() + whiten.bias.tobytes())
    assert whiten.transform_id == parts.hexdigest()
    options = fit_whitening(
        Moments.of(vectors(500)), 20, space_id="a space", shrinkage=0.1, ridge=0.2, rotation="zca"
    )
    assert set(unpack(options.to_bytes())[1]) - old == {"kept", "shrinkage", "ridge"}
    loaded = load_transform(options.to_bytes())
    assert isinstance(loaded, Whitening)
    assert (loaded.kept, loaded.shrinkage, loaded.ridge, loaded.components) == (20, 0.1, 0.2, 20)


def test_far_from_zero_the_merged_fit_matches_the_fit_in_memory() -> None:
    x = (
        np.random.default_rng(0).normal(size=(3_000, 24)) @ np.diag(np.linspace(0.01, 0.05, 24)) + 50
    )  # the mean is a thousand times the spread
    streamed = fit_whitening(merge_tree(Moments.of(part) for part in np.split(x, [1, 500, 501, 2_000])))
    pca = PCA(whiten=True, svd_solver="full").fit(x)
    np.testing.assert_allclose(
        streamed.eigenvalues, pca.explained_variance_ * (len(x) - 1) / len(x), rtol=1e-10
    )


def test_the_registry_finds_whitening() -> None:
    assert TRANSFORMS["whitening"] is Whitening
