"""Objectives warn about settings under which their two views are equal."""

import pytest

from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.objectives import OBJECTIVES
from pipeline.settings import EncoderSettings
from tests.models.folders import save_folder

CASES = {"consert": {"views": ("none", "none")}, "cert": {"queue": 8, "pairs": False}, "r_drop": {}}


@pytest.fixture(scope="module", params=[0.0, None])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrainableEncoder:
    """Return an encoder without dropout, or with the dropout of its folder."""
    folder = save_folder(tmp_path_factory.mktemp("encoders") / "bert", "bert")
    return load_trainable(open_folder(EncoderSettings(path=str(folder))), dropout=request.param)


@pytest.mark.parametrize("name", CASES)
def test_equal_views_without_dropout_are_warned_about(name: str, encoder: TrainableEncoder):
    found = OBJECTIVES[name](encoder, **CASES[name]).warnings()
    assert [f"{name}: " in warning and "train.dropout" in warning for warning in found] == [True] * (
        not encoder.backbone.has_dropout
    )


@pytest.mark.parametrize("name", ["contrastive_tension", "quickthoughts"])
def test_unit_vectors_are_warned_about_where_inner_products_are_compared(
    name: str, encoder: TrainableEncoder
):
    assert not OBJECTIVES[name](encoder).warnings()
    normalized = load_trainable(open_folder(EncoderSettings(path=str(encoder.folder.path), normalize=True)))
    assert "encoder.normalize" in OBJECTIVES[name](normalized).warnings()[0]


def test_one_encoder_for_both_sides_is_warned_about(encoder: TrainableEncoder):
    assert "all alike" in OBJECTIVES["quickthoughts"](encoder, second="same").warnings()[0]


def test_different_views_need_no_dropout(encoder: TrainableEncoder):
    assert not OBJECTIVES["consert"](encoder).warnings()
    assert not OBJECTIVES["cert"](encoder, queue=8).warnings()
    assert not OBJECTIVES["quickthoughts"](encoder).warnings()
