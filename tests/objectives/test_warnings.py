"""Objectives warn about settings under which they learn little."""

from pathlib import Path

import pytest

from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.objectives import OBJECTIVES
from pipeline.settings import EncoderSettings
from tests.models.folders import save_folder

# Options with which the two views of a text differ by dropout alone.
EQUAL_VIEWS = {"consert": {"views": ("none", "none")}, "cert": {"queue": 8, "pairs": False}, "r_drop": {}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an encoder whose folder sets a dropout of 0.1."""
    return save_folder(tmp_path_factory.mktemp("encoders") / "bert", "bert")


def encoder_of(folder: Path, dropout: float | None = 0.0, **settings: object) -> TrainableEncoder:
    return load_trainable(open_folder(EncoderSettings(path=str(folder), **settings)), dropout=dropout)


@pytest.mark.parametrize("name", EQUAL_VIEWS)
def test_equal_views_without_dropout_are_warned_about(name: str, folder: Path):
    (warning,) = OBJECTIVES[name](encoder_of(folder, dropout=0.0), **EQUAL_VIEWS[name]).warnings()
    assert warning.startswith(f"{name}: the encoder has no dropout")
    assert "train.dropout" in warning


@pytest.mark.parametrize("dropout", [None, 0.2])
@pytest.mark.parametrize("name", EQUAL_VIEWS)
def test_views_that_differ_by_dropout_are_not_warned_about(name: str, dropout: float | None, folder: Path):
    assert not OBJECTIVES[name](encoder_of(folder, dropout=dropout), **EQUAL_VIEWS[name]).warnings()


@pytest.mark.parametrize(
    ("name", "options"), [("consert", {}), ("cert", {"queue": 8}), ("quickthoughts", {})]
)
def test_views_that_differ_without_dropout_are_not_warned_about(
    name: str, options: dict[str, object], folder: Path
):
    assert not OBJECTIVES[name](encoder_of(folder, dropout=0.0), **options).warnings()


@pytest.mark.parametrize("name", ["contrastive_tension", "quickthoughts"])
def test_unit_vectors_are_warned_about_where_inner_products_are_compared(name: str, folder: Path):
    assert not OBJECTIVES[name](encoder_of(folder)).warnings()
    (warning,) = OBJECTIVES[name](encoder_of(folder, normalize=True)).warnings()
    assert "set encoder.normalize to false" in warning


def test_one_encoder_for_both_sides_is_warned_about(folder: Path):
    (warning,) = OBJECTIVES["quickthoughts"](encoder_of(folder), second="same").warnings()
    assert "vectors that are all alike" in warning
