"""GPT-2 names the sizes in its config.json n_embd, n_layer, n_head and n_positions."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from pipeline.errors import ModelError
from tests.models.folders import (
    LONG,
    TEXTS,
    add_noise,
    byte_level,
    edit_json,
    encoder_at,
    folder_at,
    hidden_states,
)

SENTENCES = [text for text in TEXTS if text]  # GPT-2 adds no special tokens, so "" has no token at all


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=300, n_embd=48, n_layer=3, n_head=4, n_positions=66, bos_token_id=3, eos_token_id=3
    )
    model = transformers.GPT2Model(config)
    add_noise(model, 0.15)
    model.save_pretrained(folder)
    tokenizer = byte_level()
    tokenizer.post_processor = None
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", model_max_length=1024
    ).save_pretrained(folder)
    return folder


def test_gpt2_encodes_with_the_dimension_and_the_positions_of_its_config(gpt2: Path):
    encoder = encoder_at(gpt2, pooling="mean")
    assert (encoder.dim, encoder.folder.max_length) == (48, 66)
    texts = [*SENTENCES, LONG]
    for text, vector in zip(texts, encoder.encode(texts), strict=True):
        expected = hidden_states(gpt2, text, max_length=66)[-1].mean(0)
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_the_hidden_states_of_gpt2_equal_those_of_transformers(gpt2: Path):
    states = encoder_at(gpt2).hidden_states()
    assert (states.width, states.layers) == (48, 3)
    tokens = states.tokens([SENTENCES[0]])
    (batch,) = states.states(tokens)
    for found, expected in zip(batch.layers, hidden_states(gpt2, SENTENCES[0]), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["n_embd", "n_layer", "n_head"])
def test_a_size_that_is_not_a_number_is_named(gpt2: Path, tmp_path: Path, name: str):
    (tmp_path / "config.json").write_bytes((gpt2 / "config.json").read_bytes())
    edit_json(tmp_path / "config.json", **{name: "many"})
    with pytest.raises(ModelError, match=f"expected a whole number as {name}"):
        folder_at(tmp_path)
