"""Families without a packed forward pass."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.inference.padded import PaddedModel
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folders import TEXTS, save_folder


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
