"""Objectives whose two views would be one say so before the first step."""

import pytest

from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.objectives import OBJECTIVES
from pipeline.settings import EncoderSettings
from tests.models.folders import save_folder

CASES = {"consert": {"views": ("none", "none")}, "cert": {"queue": 8, "pairs": False}, "r_drop": {}}


@pytest.fixture(scope="module", params=[0.0, None])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrainableEncoder:
    """Without dropout, or with the folder's."""
    folder = save_folder(tmp_path_factory.mktemp("encoders") / "bert", "bert")
    return load_trainable(open_folder(EncoderSettings(path=str(folder))), dropout=request.param)


@pytest.mark.parametrize("name", CASES)
def test_without_dropout_two_views_are_one(name: str, encoder: TrainableEncoder):
    told = OBJECTIVES[name](encoder, **CASES[name]).doubts()
    assert [f"{name}: " in doubt and "train.dropout" in doubt for doubt in told] == [True] * (
        not encoder.backbone.drops
    )


@pytest.mark.parametrize("name", ["contrastive_tension", "quickthoughts"])
def test_inner_products_want_vectors_of_any_length(name: str, encoder: TrainableEncoder):
    assert not OBJECTIVES[name](encoder).doubts()
    short = load_trainable(open_folder(EncoderSettings(path=str(encoder.folder.path), normalize=True)))
    assert "encoder.normalize" in OBJECTIVES[name](short).doubts()[0]


def test_one_encoder_on_both_sides_is_told_of(encoder: TrainableEncoder):
    assert "all alike" in OBJECTIVES["quickthoughts"](encoder, second="same").doubts()[0]


def test_views_that_differ_need_no_dropout(encoder: TrainableEncoder):
    assert not OBJECTIVES["consert"](encoder).doubts()
    assert not OBJECTIVES["cert"](encoder, queue=8).doubts()
    assert not OBJECTIVES["quickthoughts"](encoder).doubts()
