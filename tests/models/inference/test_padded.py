"""Families without a packed forward pass."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from torch import Tensor

from pipeline.log import listening
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.inference.padded import PaddedModel
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folders import (
    SIZES,
    TEXTS,
    add_noise,
    encoder_at,
    hidden_states,
    save_folder,
    save_tokenizer,
    word_piece,
)

OTHERS: dict[str, dict[str, int]] = {
    "convbert": {"embedding_size": 48},
    "fnet": {},
    "mobilebert": {"embedding_size": 48, "intra_bottleneck_size": 48},
    "nystromformer": {},
    "yoso": {},
    "codegen": {"n_embd": 48, "n_head": 4, "n_layer": 3, "rotary_dim": 8},
    "albert": {"embedding_size": 24},
}
"""settings of small models by model_type; tokens of the first five see padding, codegen has no such token"""

LAYERS = {"layers": 2, "attention_heads": 4, "ffn_dim": 96}


def test_no_mask_is_without_padding_if_there_is_a_dummy_row(tmp_path: Path):
    """As on a GPU, where transformers would drop the mask of a full batch and torch take another kernel."""
    path = str(save_folder(tmp_path, "electra"))
    masks: list[Tensor] = []

    def opened(dummy_rows: int) -> Encoder:
        encoder = load_encoder(EncoderSettings(path=path), EncodeSettings(max_tokens=512), "cpu")
        assert isinstance(encoder._model, PaddedModel)
        encoder._model._dummy_rows = dummy_rows
        return encoder

    def keep(model: object, arguments: object, options: dict[str, Any]) -> None:
        masks.append(options["attention_mask"])

    expected, encoder = opened(0).encode(TEXTS), opened(1)
    encoder._model._model.register_forward_pre_hook(keep, with_kwargs=True)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)
    assert any(len(mask) > 1 for mask in masks)
    assert all(len(mask) == 1 or (mask[-1, 1:] == 0).all() for mask in masks)


@pytest.mark.parametrize("name", OTHERS)
def test_a_text_has_the_vector_that_it_has_alone(tmp_path: Path, name: str):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **SIZES, **OTHERS[name])
    model = transformers.AutoModel.from_config(config).eval()
    add_noise(model, 0.15)
    model.save_pretrained(tmp_path)
    save_tokenizer(word_piece(), tmp_path)
    encoder = encoder_at(tmp_path, pooling="mean")
    assert isinstance(encoder._model, PaddedModel)
    assert encoder.folder.sees_padding == (name in list(OTHERS)[:5])
    expected = np.stack([hidden_states(tmp_path, text)[-1].mean(dim=0).numpy() for text in TEXTS])
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-4 * np.abs(expected).max())


def test_it_is_said_that_another_library_pools_a_decoder(tmp_path: Path):
    sizes = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in LAYERS.items()}
    config = transformers.BartConfig(vocab_size=300, d_model=48, max_position_embeddings=66, **sizes)
    torch.manual_seed(0)
    transformers.BartModel(config).save_pretrained(tmp_path)
    save_tokenizer(word_piece(), tmp_path)
    with listening() as said:
        vectors = encoder_at(tmp_path).encode(TEXTS[:1])
    assert "the states of the encoder are pooled" in "".join(said)
    peer = SentenceTransformer(str(tmp_path), device="cpu").encode(list(TEXTS[:1]))
    assert np.abs(vectors - peer).max() > 1e-3
