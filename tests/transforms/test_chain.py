"""A chain fitted from the moments of raw vectors equals fitting each step on the transformed vectors in
memory.
"""

from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.settings import WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.stats.tensors import pack
from pipeline.transforms.chain import Chain, check_transform, fit_transform, name_of, steps_of
from pipeline.transforms.standardize import fit_standardize
from pipeline.transforms.transform import TRANSFORMS, Affine, Transform, load_transform, space_after
from pipeline.transforms.whitening import Whitening, fit_whitening


def vectors(rows: int = 1_500, dim: int = 16, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(rows, dim)) @ np.random.default_rng(7).normal(size=(dim, dim)) + np.arange(dim)
    ).astype(np.float32)


def standardized(x: np.ndarray, fit: np.ndarray) -> np.ndarray:
    return (x - fit.mean(axis=0)) / fit.std(axis=0)


def without_top(x: np.ndarray, fit: np.ndarray, count: int) -> np.ndarray:
    top = np.linalg.svd(fit - fit.mean(axis=0), full_matrices=False)[2][:count]
    return (x - fit.mean(axis=0)) @ (np.eye(x.shape[1]) - top.T @ top)


def test_one_pass_fits_every_affine_step() -> None:
    x, unseen = vectors().astype(np.float64), vectors(30, seed=1).astype(np.float64)
    chain = fit_transform(Moments.of(x), WhitenSettings(transform="standardize+components", remove=3), "raw")
    expected = without_top(standardized(unseen, x), standardized(x, x), 3)
    np.testing.assert_allclose(chain(unseen), expected, atol=1e-5)
    affine = chain.affine()
    assert affine is not None
    assert affine.matrix.dtype == affine.bias.dtype == np.float32
    np.testing.assert_allclose(unseen @ affine.matrix.T + affine.bias, expected, atol=2e-5)


def test_whitening_after_a_removal_excludes_the_removed_directions() -> None:
    x = vectors()
    chain = fit_transform(Moments.of(x), WhitenSettings(transform="components+whitening", remove=2), "raw")
    assert chain.k == 14
    np.testing.assert_allclose(np.cov(chain(x).T, bias=True), np.eye(14), atol=1e-4)
    affine = chain.affine()
    assert affine is not None
    assert affine.matrix.shape == (14, 16)
    assert chain.notes[0].startswith("components: 2 principal directions removed")
    assert (
        chain.notes[1]
        == "whitening: 14 of 16 components are kept; the vectors vary in 14 of 16 directions only"
    )


def test_a_single_name_gives_the_transform_itself() -> None:
    moments = Moments.of(vectors())
    assert (
        fit_transform(moments, WhitenSettings(k=9), "raw").to_bytes()
        == fit_whitening(moments, 9, space_id="raw").to_bytes()
    )


def test_a_file_preserves_every_step() -> None:
    chain = fit_transform(
        Moments.of(vectors()), WhitenSettings(transform="standardize+components+whitening"), "raw"
    )
    back = load_transform(chain.to_bytes())
    assert isinstance(back, Chain)
    assert (back.to_bytes(), back.transform_id, back.space_id, back.fitted_rows) == (
        chain.to_bytes(),
        chain.transform_id,
        "raw",
        1_500,
    )
    assert name_of(back) == "standardize+components+whitening"
    assert [step.space_id for step in steps_of(back)][1:] == [
        space_after(step) for step in steps_of(back)[:-1]
    ]
    assert (back(vectors(9)) == chain(vectors(9))).all()


def test_damaged_files_are_refused() -> None:
    chain = fit_transform(Moments.of(vectors()), WhitenSettings(transform="standardize+components"), "raw")
    assert isinstance(chain, Chain)
    files = {str(number): np.frombuffer(step.to_bytes(), np.uint8) for number, step in enumerate(chain.steps)}
    header = {"kind": "chain", "steps": ["standardize", "components"], "transform_id": chain.transform_id}
    load_transform(pack(files, header))
    cases = {
        pack({"0": files["0"]}, header): "one tensor per step",
        pack({"0": files["1"], "1": files["0"]}, header): "damaged",
    }
    cases |= {
        pack(files, {"kind": "chain"}): "no steps",
        pack({"0": files["0"], "1": files["1"][:40]}, header): "tensor file",
    }
    for content, message in cases.items():
        with pytest.raises(DataError, match=message):
            load_transform(content)


class Cube:
    """y = x^3: a transform that is not affine."""

    kind = "cube"
    transform_id, k, fitted_rows, shortage, notes = "cubes", 16, 900, None, ("cubed",)

    def __init__(self, space_id: str) -> None:
        self.space_id = space_id

    def affine(self) -> Affine | None:
        return None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x**3)

    def to_bytes(self) -> bytes:
        return pack({}, {"kind": "cube", "space_id": self.space_id})

    @classmethod
    def from_bytes(cls, content: bytes) -> "Cube":
        raise NotImplementedError


@pytest.fixture
def cube(monkeypatch: pytest.MonkeyPatch) -> None:
    TRANSFORMS.names()
    monkeypatch.setitem(TRANSFORMS._entries, "cube", Cube)


@pytest.mark.usefixtures("cube")
def test_a_step_that_is_not_affine_is_trained_last() -> None:
    seen = []

    def train(name: str, before: Transform | None, space_id: str) -> Transform:
        seen.append((name, before and name_of(before), space_id))
        return Cube(space_id)

    x = vectors()
    chain = fit_transform(Moments.of(x), WhitenSettings(transform="standardize+cube"), "raw", train)
    first = fit_standardize(Moments.of(x), space_id="raw")
    assert seen == [("cube", "standardize", space_after(first))]
    assert chain.affine() is None
    assert chain.fitted_rows == 900
    np.testing.assert_array_equal(chain(x), first(x) ** 3)
    with pytest.raises(ConfigError, match="fitted from moments"):
        fit_transform(Moments.of(x), WhitenSettings(transform="cube"), "raw")


@pytest.mark.usefixtures("cube")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transform": "whitenin"}, "did you mean 'whitening'"),
        ({"transform": "standardize+sif"}, "no such name"),
        ({"transform": "standardize+"}, "join them by"),
        ({"transform": "chain"}, r"join them by \+"),
        ({"transform": "cube"}, "which a faiss index can hold.*manta evaluate"),
        ({"transform": "standardize+cube"}, "which a faiss index can hold"),
        ({"transform": "standardize", "k": "dev"}, "whiten.k: expected whitening among"),
        ({"transform": "standardize", "k": 64}, "whiten.k: expected whitening among"),
        ({"remove": "dev"}, "whiten.remove: expected components among"),
    ],
)
def test_transforms_that_an_index_cannot_hold_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_transform(WhitenSettings(**settings), indexed=True)


@pytest.mark.usefixtures("cube")
def test_outside_an_index_the_last_step_need_not_be_affine() -> None:
    check_transform(WhitenSettings(transform="standardize+cube"), indexed=False)
    check_transform(WhitenSettings(transform="components+whitening", k="dev", remove="dev"), indexed=True)
    with pytest.raises(ConfigError, match="cube as the last step"):
        check_transform(WhitenSettings(transform="cube+standardize"), indexed=False)


@pytest.mark.parametrize(
    "name", ["whitening", "standardize", "components", "standardize+components", "components+whitening"]
)
def test_the_fit_does_not_depend_on_the_number_of_workers(name: str) -> None:
    x = vectors().astype(np.float64) * 1e-3 + 10  # far from zero, so that cancellation would show
    settings = WhitenSettings(transform=name)
    whole = fit_transform(Moments.of(x), settings, "raw")
    for cuts in ([700], [1, 2, 3], list(range(50, 1_500, 50))):
        parts = Moments.empty(16)
        for part in np.split(x, cuts):
            parts = parts.merge(Moments.of(part))
        np.testing.assert_allclose(fit_transform(parts, settings, "raw")(x[:40]), whole(x[:40]), atol=2e-3)


def test_a_file_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(DataError, match="use the version of manta"):
        load_transform(pack({}, {"kind": "spell"}))
    assert isinstance(load_transform(fit_whitening(Moments.of(vectors())).to_bytes()), Whitening)
