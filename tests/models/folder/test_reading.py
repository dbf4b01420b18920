"""Settings of Transformer modules have the effect that they have in sentence-transformers, or are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from pipeline.errors import ModelError
from tests.models.folder.saved import save_sentence_transformer
from tests.models.folders import TEXTS, edit_json, encoder_at, folder_at
from tests.models.rotary_folders import peer_of, save_rotary, texts_of

SETTINGS = "sentence_bert_config.json"
FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}


@pytest.fixture
def saved(folders: dict[str, Path], tmp_path: Path) -> Path:
    """Folder that sentence-transformers has written."""
    save_sentence_transformer(folders["bert"], tmp_path / "st", dense=False)
    return tmp_path / "st"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"query_length": 8}, "expected no query_length, found 8"),
        ({"document_length": 8}, "expected no document_length, found 8"),
        ({"query_expansion": {"strategy": "fixed", "length": 20}}, "expected no query_expansion"),
        (
            {"modality_config": {"text": {**FORWARD, "method_output_name": ["hidden_states", -2]}}},
            r"expected last_hidden_state of forward .*'hidden_states', -2\]",
        ),
        (
            {"modality_config": {"text": FORWARD}, "module_output_name": "sentence_embedding"},
            r"expected last_hidden_state .* as sentence_embedding",
        ),
        ({"modality_config": {"image": FORWARD}}, "for text, found None as token_embeddings"),
        ({"modality_config": {"text": FORWARD, "message": FORWARD}}, "found a modality_config with message"),
        ({"modality_config": {"text": 3}}, "expected a mapping to mappings as modality_config"),
        ({"processing_kwargs": {"text": {"add_special_tokens": False}}}, "found add_special_tokens: False"),
        ({"processing_kwargs": {"common": {"truncation": False}}}, "found truncation: False"),
        (
            {"config_kwargs": {"num_hidden_layers": 2}},
            "no num_hidden_layers in config_kwargs, found 2; write",
        ),
        (
            {"tokenizer_args": {"do_lower_case": True}},
            "no do_lower_case in tokenizer_args, found True; write",
        ),
        ({"model_args": {"hidden_act": "relu"}}, "no hidden_act in model_args, found 'relu'; write"),
        ({"tokenizer_name_or_path": "other"}, "no tokenizer_name_or_path, found 'other'; copy"),
        ({"lower": True}, "settings of a Transformer module, found lower: True; remove"),
    ],
)
def test_settings_that_change_vectors_and_are_not_supported_are_refused(
    saved: Path, settings: dict[str, Any], message: str
):
    edit_json(saved / SETTINGS, **settings)
    with pytest.raises(ModelError, match=rf"{SETTINGS}: .*{message}"):
        folder_at(saved)


@pytest.mark.parametrize(
    ("settings", "max_length"),
    [
        ({"processing_kwargs": {"text": {"max_length": 20}, "common": {"max_length": 10}}}, 10),
        ({"processing_kwargs": {"text": {"padding": "max_length", "truncation": True}}}, 40),
        ({"config_kwargs": {"num_hidden_layers": 3, "attn_implementation": "eager"}}, 40),
        ({"modality_config": {"text": FORWARD, "image": FORWARD}}, 40),
    ],
)
def test_settings_with_the_effect_that_is_computed_are_accepted(
    saved: Path, settings: dict[str, Any], max_length: int
):
    texts = [text * 3 for text in TEXTS]
    edit_json(saved / SETTINGS, **settings)
    encoder = encoder_at(saved)
    assert encoder.max_length == max_length
    peer = SentenceTransformer(str(saved), device="cpu")
    np.testing.assert_allclose(encoder.encode(texts), peer.encode(texts), atol=1e-5)


@pytest.mark.parametrize("name", ["query_length", "modality_config", "processing_kwargs", "tokenizer_args"])
def test_null_is_like_a_missing_setting(saved: Path, name: str):
    before = encoder_at(saved).encode(TEXTS)
    edit_json(saved / SETTINGS, **{name: None})
    np.testing.assert_array_equal(encoder_at(saved).encode(TEXTS), before)


@pytest.mark.parametrize("name", ["qwen3", "nomic_bert"])
def test_rotary_positions_may_be_more_than_those_of_training(tmp_path: Path, name: str):
    folder, texts = save_rotary(name, tmp_path / name), texts_of([1, 60, 90])
    edit_json(folder / "config.json", max_position_embeddings=32)
    assert folder_at(folder, pooling="mean").max_length == 32
    (folder / SETTINGS).write_text('{"max_seq_length": 100}')
    encoder = encoder_at(folder, pooling="mean")
    assert (encoder.max_length, folder_at(folder, max_length=70).max_length) == (100, 70)
    peer = peer_of(folder, "mean")
    peer.max_seq_length = 100
    np.testing.assert_allclose(encoder.encode(texts), peer.encode(texts), atol=1e-5)


def test_a_table_of_positions_limits_what_a_folder_says(saved: Path):
    edit_json(saved / SETTINGS, max_seq_length=100)
    assert folder_at(saved).max_length == 66


@pytest.mark.parametrize("is_causal", [..., False])
@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen2Model"])
def test_a_plain_folder_has_the_pooling_that_sentence_transformers_chooses(
    tmp_path: Path, architecture: str, is_causal: Any
):
    folder = save_rotary("qwen2", tmp_path / "qwen2")
    edit_json(folder / "config.json", architectures=[architecture], is_causal=is_causal)
    peer = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(encoder_at(folder).encode(TEXTS), peer.encode(TEXTS), atol=1e-5)
