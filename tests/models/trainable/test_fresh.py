"""New weights have the distribution with which an architecture starts, and follow from torch's generator."""

import pytest
import torch
from transformers import AutoModel

from pipeline.models.trainable.encoder import load_trainable
from tests.models.folders import FAMILIES, edit_json, folder_at, save_folder

NORMS = ("LayerNorm", "layer_norm")


def fresh(path, seed=0, **changes):
    """Load the encoder of a folder with new weights instead of its own."""
    torch.manual_seed(seed)
    return load_trainable(folder_at(path, **changes), fresh=True)


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
    config = AutoModel.from_pretrained(folders["electra"]).config
    found = dict(fresh(folders["electra"], seed=4).backbone.model.named_parameters())
    torch.manual_seed(4)
    expected = dict(AutoModel.from_config(config).named_parameters())
    assert found.keys() == expected.keys()
    for name, parameter in expected.items():
        assert torch.equal(parameter, found[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_new_weights_follow_from_the_seed_and_replace_those_of_the_folder(folders, family):
    first, same, other = (
        dict(fresh(folders[family], seed, pooling="cls_mlp").named_parameters()) for seed in (1, 1, 2)
    )
    stored = dict(load_trainable(folder_at(folders[family])).named_parameters())
    assert len(first.keys() & stored.keys()) > 10
    for name, parameter in first.items():
        assert torch.equal(parameter, same[name]), name
        if parameter.dim() == 2:
            assert not torch.equal(parameter, other[name]), name
            assert name not in stored or not torch.equal(parameter, stored[name]), name
