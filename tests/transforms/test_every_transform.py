"""Every registered transform maps rows one by one, is stored bit for bit, and refuses invalid input."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest

from pipeline.errors import DataError
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.transforms.chain import fit_transform
from pipeline.transforms.transform import TRANSFORMS, FromMoments, Transform, load_transform
from tests.transforms.test_flow import DIM, fit, vectors

ROWS = 600
FITS: dict[str, Callable[[], Transform]] = {  # transforms that are not fitted from moments alone
    "flow": fit,
    "chain": lambda: fit_transform(
        Moments.of(vectors(ROWS)), WhitenSettings(transform="standardize+components"), "a space"
    ),
}

pytestmark = pytest.mark.parametrize("name", TRANSFORMS.names())


def fitted(name: str, space_id: str = "a space") -> Transform:
    kind = TRANSFORMS[name]
    if isinstance(kind, FromMoments):
        return kind.of_moments(Moments.of(vectors(ROWS)), WhitenSettings(transform=name), space_id)
    return FITS[name]()


def test_rows_become_finite_float32_of_the_named_width(name: str):
    transform, x = fitted(name), vectors(50, seed=3)
    before = x.copy()
    for rows in (0, 1, 50):
        y = transform(x[:rows])
        assert (y.shape, y.dtype) == ((rows, transform.k), np.float32)
        assert np.isfinite(y).all()
    np.testing.assert_array_equal(x, before)


def test_rows_do_not_depend_on_each_other(name: str):
    transform, x = fitted(name), vectors(50, seed=3)
    np.testing.assert_allclose(transform(x)[20:30], transform(x[20:30]), rtol=1e-4, atol=1e-4)


def test_equal_fits_give_equal_bytes(name: str):
    assert fitted(name).to_bytes() == fitted(name).to_bytes()


def test_a_file_preserves_every_bit(name: str):
    transform, x = fitted(name), vectors(50, seed=3)
    back = load_transform(transform.to_bytes())
    assert type(back) is type(transform)
    assert transform.kind == name
    assert back.to_bytes() == transform.to_bytes()
    for fact in ("space_id", "transform_id", "fitted_rows", "k", "shortage", "notes"):
        assert getattr(back, fact) == getattr(transform, fact), fact
    assert (back.space_id, len(back.transform_id)) == ("a space", 64)
    for other in (back, pickle.loads(pickle.dumps(transform))):
        np.testing.assert_array_equal(other(x), transform(x))


def test_the_identity_depends_on_the_space_of_the_fit(name: str):
    if name in FITS:
        pytest.skip("the space is that of the first step, or of the training rows")
    assert fitted(name, "another space").transform_id != fitted(name).transform_id


def test_the_matrix_and_bias_give_the_same_vectors_as_the_transform(name: str):
    transform, x = fitted(name), vectors(50, seed=3)
    affine = transform.affine()
    assert (affine is not None) or not isinstance(TRANSFORMS[name], FromMoments)
    if affine is not None:
        assert (affine.matrix.shape, affine.bias.shape) == ((transform.k, DIM), (transform.k,))
        np.testing.assert_allclose(x @ affine.matrix.T + affine.bias, transform(x), rtol=1e-3, atol=1e-3)


def test_unsuitable_vectors_are_refused(name: str):
    transform, x = fitted(name), vectors(4, seed=3)
    with pytest.raises(DataError, match=rf"shape \(n, {DIM}\)"):
        transform(x[:, 1:])
    x[2, 5] = np.nan
    with pytest.raises(DataError, match="1 rows with NaN or infinity"):
        transform(x)


def test_damaged_files_are_refused(name: str):
    content = fitted(name).to_bytes()
    damaged = content[:-1] + bytes([content[-1] ^ 1])
    for other in (content[:-1], content[: len(content) // 2], b"", damaged):
        with pytest.raises(DataError):
            load_transform(other)
