"""Settings of config.json that change vectors and are not computed are refused by name."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ModelError
from tests.models.config_fields import UNREAD
from tests.models.every_family import save_family
from tests.models.folders import TEXTS, edit_json, encoder_at, folder_at

_IGNORED = [
    *((family, key, value) for family, values in UNREAD.items() for key, value in values.items()),
    ("falcon", "output_attentions", True),
    ("gemma", "use_bidirectional_attention", True),
    ("xlnet", "bi_data", True),
    ("modernbert", "sliding_window", 9),
    ("gte", "position_embedding_type", "absolute_and_relative"),
    ("bert", "position_embedding_type", "relative_key"),
    ("roberta", "position_embedding_type", "rope"),
    ("electra", "position_embedding_type", "relative_key_query"),
    *((family, "is_causal", True) for family in ("bert", "electra", "eurobert", "gte", "mobilebert", "luke")),
]


@pytest.mark.parametrize(("family", "key", "value"), _IGNORED)
def test_a_setting_that_is_not_computed_is_refused_by_name(
    tmp_path: Path, family: str, key: str, value: object
):
    folder = save_family(family, tmp_path)
    folder_at(folder)
    edit_json(folder / "config.json", **{key: value})
    with pytest.raises(ModelError, match=rf"config\.json: .*{key}"):
        folder_at(folder)


@pytest.mark.parametrize(
    ("family", "positions"),
    [("bert", "absolute"), ("bert", None), ("modernbert", "absolute"), ("gte", "rope"), ("esm", "rotary")],
)
def test_positions_that_are_computed_are_accepted(tmp_path: Path, family: str, positions: str | None):
    folder = save_family(family, tmp_path)
    edit_json(folder / "config.json", position_embedding_type=positions)
    folder_at(folder)


def test_a_config_that_transformers_refuses_is_refused(tmp_path: Path):
    folder = save_family("qwen3", tmp_path)
    edit_json(folder / "config.json", num_hidden_layers=4)
    with pytest.raises(ModelError, match=r"a config.json that transformers reads, found .*layer_types"):
        encoder_at(folder)


@pytest.mark.parametrize("key", ["text_config", "decoder"])
def test_a_configuration_of_a_part_that_the_model_lacks_is_refused(tmp_path: Path, key: str):
    folder = save_family("t5", tmp_path)
    edit_json(folder / "config.json", **{key: {"hidden_size": 48}})
    with pytest.raises(ModelError, match=r"config\.json: expected no configuration of a part .* for t5"):
        encoder_at(folder)


def test_t5_has_the_same_vectors_whatever_form_its_output_has(tmp_path: Path):
    folder = save_family("t5", tmp_path)
    expected = encoder_at(folder).encode(TEXTS)
    edit_json(folder / "config.json", return_dict=False)
    np.testing.assert_array_equal(encoder_at(folder).encode(TEXTS), expected)


def test_half_of_modernberts_local_attention_is_accepted_as_its_sliding_window(tmp_path: Path):
    folder = save_family("modernbert", tmp_path)
    half = json.loads((folder / "config.json").read_text())["local_attention"] // 2
    edit_json(folder / "config.json", sliding_window=half)
    folder_at(folder)
