"""Padded forward pass through transformers, for architectures without a packed forward pass."""

import inspect
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.log import say
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.pretrained import load_complete, load_config
from pipeline.models.inference.model import Model
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.pooling import TABLE_STATE
from pipeline.text.tokens.budget import longest_first
from pipeline.text.tokens.tokens import Tokens

_LENGTH_MULTIPLE = 16  # lengths are padded to multiples: few shapes, less than 16 wasted tokens per text
# encoder-decoders of which sentence-transformers pools the decoder's states
_POOLED_DECODERS = ("bart", "bigbird_pegasus", "led", "mbart", "mvp", "plbart")
_ENCODER_ONLY = ("t5", "mt5", "umt5")  # sentence encoders of these types are stored without their decoder


class PaddedModel(Model):
    """Transformers model on a device.

    All batches of texts padded to L tokens have the same number of rows, max_tokens // L but at least
    one; dummy rows fill a batch up. If tokens would see padding, L is the length of the texts. Shapes, and
    therefore a text's bits, do not depend on the other texts, as in the packed forward pass. A text may be
    longer than max_tokens. On a GPU, several rows have one more dummy row: transformers drops a mask without
    padding, and without a mask a GPU computes attention by another kernel.
    """

    def __init__(self, folder: EncoderFolder, arithmetic: Arithmetic) -> None:
        self._model = (
            encoder_of(load_model(folder, arithmetic.torch_dtype)).to(arithmetic.torch_device).eval()
        )
        self._has_types = "token_type_ids" in inspect.signature(self._model.forward).parameters
        config = self._model.config.get_text_config()
        if config.model_type in _POOLED_DECODERS:
            say(
                f"{folder.path}: the states of the encoder are pooled; sentence-transformers pools those of "
                f"the decoder of {config.model_type}, which gives other vectors"
            )
        self.width, self.layers = int(config.hidden_size), int(config.num_hidden_layers)
        self.device, self._longest = arithmetic.torch_device, folder.max_length
        self._multiple = 1 if folder.sees_padding else _LENGTH_MULTIPLE
        self._pad_id = int(getattr(config, "pad_token_id", None) or 0)
        self._dummy_rows = 1 if self.device.type == "cuda" else 0  # beyond those of max_tokens

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Group texts into forward passes of one padded length each; see `Model.plan`."""
        order = longest_first(lengths)
        order = order[lengths[order] > 0]
        padded = self._padded_lengths(lengths[order])
        batches: list[np.ndarray] = []
        for length in np.unique(padded)[::-1]:
            chosen, rows = order[padded == length], max(1, max_tokens // int(length))
            batches += np.split(chosen, range(rows, len(chosen), rows))
        return batches

    def forward(
        self, tokens: Tokens, wanted: set[int], max_tokens: int
    ) -> tuple[dict[int, Tensor], np.ndarray]:
        """Compute the hidden states (batch * L, d) of texts of one padded length L."""
        lengths, width = tokens.lengths, int(self._padded_lengths(tokens.lengths[:1])[0])
        is_token = np.arange(width) < lengths[:, None]
        rows = max(1, max_tokens // width)
        rows += self._dummy_rows if rows > 1 else 0
        ids = np.full((rows, width), self._pad_id, np.int64)
        ids[: len(is_token)][is_token] = tokens.ids
        mask = np.zeros_like(ids)
        mask[:, 0] = 1  # a dummy row attends to one token: attention over no token gives NaN
        mask[: len(is_token)] = is_token
        inputs = {"input_ids": self.put(ids), "attention_mask": self.put(mask)}
        if tokens.types is not None and self._has_types:
            types = np.zeros_like(ids)
            types[: len(is_token)][is_token] = tokens.types
            inputs["token_type_ids"] = self.put(types)
        return hidden_states(self._model, inputs, wanted), np.arange(len(lengths)) * width

    def _padded_lengths(self, lengths: np.ndarray) -> np.ndarray:
        return np.minimum(
            -(-lengths // self._multiple) * self._multiple,
            max(self._longest, int(lengths.max(initial=0))),
        )


def encoder_of(model: Any) -> Any:
    """Return the encoder of a transformers model that may have a decoder, too."""
    return model.get_encoder() if model.config.is_encoder_decoder else model


def hidden_states(encoder: Any, inputs: dict[str, Tensor], wanted: set[int]) -> dict[int, Tensor]:
    """Run a transformers encoder.

    Args:
        encoder: model of transformers.
        inputs: arguments of its call, (rows, L) each.
        wanted: numbers of hidden states, as `layers_of` gives them.

    Returns:
        Hidden states (rows * L, d) by number.
    """
    last = int(encoder.config.get_text_config().num_hidden_layers)
    states: dict[int, Tensor] = {}
    if TABLE_STATE in wanted:  # the table itself: some models scale its rows before the first layer
        states[TABLE_STATE] = F.embedding(inputs["input_ids"], encoder.get_input_embeddings().weight)
    if wanted - {TABLE_STATE}:
        needs_inner = bool(wanted - {TABLE_STATE, last})
        output = encoder(**inputs, output_hidden_states=needs_inner, return_dict=True)
        states |= dict(enumerate(output.hidden_states or ())) | {last: output.last_hidden_state}
    return {number: states[number].flatten(0, 1) for number in wanted}


def load_model(folder: EncoderFolder, dtype: torch.dtype, dropout: float | None = None) -> Any:
    """Load the transformers model of a folder.

    Args:
        folder: the encoder's folder.
        dtype: type of the weights.
        dropout: rate of all dropout layers; None: the rates of config.json.

    Raises:
        ModelError: transformers cannot load it, or weights are missing.
    """
    import transformers

    path = folder.path / folder.transformer
    config = load_config(path)
    for name, value in config.to_dict().items():
        if dropout is not None and isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(config, name, dropout)
    return load_complete(
        transformers.AutoModelForTextEncoding
        if config.model_type in _ENCODER_ONLY
        else transformers.AutoModel,
        path,
        "a model that transformers loads",
        unused=("pooler.",),
        config=config,
        dtype=dtype,
    )
