"""New weights of an architecture: drawn as it begins, from torch's generator alone."""

import pytest
import torch
from transformers import AutoModel

from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.settings import EncoderSettings
from tests.models.folders import FAMILIES, edit_json, save_folder

NORMS = ("LayerNorm", "layer_norm")


def fresh(path, seed=0, **changes):
    torch.manual_seed(seed)
    return load_trainable(open_folder(EncoderSettings(path=str(path), **changes)), fresh=True)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet"])
def test_new_weights_are_normal_with_zero_biases_and_identity_norms(folders, family):
    backbone = fresh(folders[family]).backbone
    drawn = []
    for name, parameter in backbone.named_parameters():
        if any(norm in name for norm in NORMS):
            assert (parameter == (1 if name.endswith("weight") else 0)).all(), name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        else:
            drawn.append(parameter[parameter != 0])
            assert abs(parameter.std() / 0.02 - 1) < 0.2, name
    values = torch.cat(drawn)
    assert abs(values.mean()) < 3 * 0.02 / len(values) ** 0.5
    assert abs(values.std() / 0.02 - 1) < 0.02
    assert not backbone.word_table[backbone.shape.pad_id].any()


def test_the_standard_deviation_is_that_of_the_configuration(tmp_path):
    folder = save_folder(tmp_path / "wide", "bert")
    edit_json(folder / "config.json", initializer_range=0.5)
    assert abs(fresh(folder).backbone.word_table.std() / 0.5 - 1) < 0.05


def test_other_architectures_start_as_in_transformers(folders):
    torch.manual_seed(4)
    encoder, config = fresh(folders["electra"], seed=4), AutoModel.from_pretrained(folders["electra"]).config
    torch.manual_seed(4)
    reference = AutoModel.from_config(config)
    for name, parameter in reference.named_parameters():
        assert torch.equal(parameter, dict(encoder.backbone.model.named_parameters())[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_seeds_give_equal_new_encoders(folders, family):
    first, again, other = (
        dict(fresh(folders[family], seed, pooling="cls_mlp").named_parameters()) for seed in (1, 1, 2)
    )
    own = dict(load_trainable(open_folder(EncoderSettings(path=str(folders[family])))).named_parameters())
    for name, parameter in first.items():
        assert torch.equal(parameter, again[name]), name
        if parameter.dim() == 2:
            assert not torch.equal(parameter, other[name]), name
            assert name not in own or not torch.equal(parameter, own[name]), name
