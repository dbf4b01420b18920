"""Padded forward pass through transformers, for architectures without a packed one: one of the kinds of
`Model`.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from pipeline.log import announce
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.identity import state_width
from pipeline.models.layers.backbones import Model
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.transformers_model import (
    ModuleState,
    encoder_of,
    hidden_states,
    load_model,
    padding_id,
)
from pipeline.text.tokens.budget import longest_first
from pipeline.text.tokens.tokens import Tokens

_LENGTH_MULTIPLE = 16  # padded lengths are multiples of this: few shapes, less than 16 wasted tokens per text
# encoder-decoders whose decoder states sentence-transformers pools
_POOLED_DECODERS = (
    *(
        "bart",
        "bigbird_pegasus",
        "blenderbot",
        "blenderbot-small",
        "led",
        "m2m_100",
        "marian",
        "mbart",
        "mvp",
    ),
    *("pegasus", "pegasus_x", "plbart", "prophetnet"),
)


class PaddedModel(Model):
    """Transformers model on a device.

    All batches of texts padded to L tokens have the same number of rows, max_tokens // L but at least
    one; dummy rows fill a batch up. If tokens would see padding, L is the texts' own length, or the shortest
    length that the model computes. Shapes, and therefore a text's bits, do not depend on the other texts, as
    in the packed forward pass. A text may be longer than max_tokens. In a mixture of experts, one product has
    the tokens of all rows that chose an expert, so each text has a pass of its own. On a GPU, a batch of
    several rows gets one more dummy row: transformers drops a mask without padding, and without a mask a GPU
    computes attention by another kernel.
    """

    def __init__(self, folder: EncoderFolder, arithmetic: Arithmetic) -> None:
        model = load_model(folder, arithmetic.torch_dtype)
        self._model = encoder_of(model).to(arithmetic.torch_device).eval()
        self._state = ModuleState(self._model)
        self._has_types = "token_type_ids" in inspect.signature(self._model.forward).parameters
        config = getattr(self._model, "config", model.config).get_text_config()
        if config.model_type in _POOLED_DECODERS:
            announce(
                f"{folder.path}: the states of the encoder are pooled; sentence-transformers pools those of "
                f"the decoder of {config.model_type}, which gives other vectors"
            )
        self.width, self.layers = state_width(config.to_dict()), int(config.num_hidden_layers)
        self.device, self._longest = arithmetic.torch_device, folder.max_length
        self._is_alone = _has_experts(config.to_dict())
        self._multiple = 1 if folder.sees_padding or self._is_alone else _LENGTH_MULTIPLE
        self._shortest = _shortest(config)
        self._pad_id = padding_id(config)
        self._dummy_rows = 1 if self.device.type == "cuda" else 0  # rows beyond max_tokens

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Group texts into forward passes of one padded length each; see `Model.plan`."""
        order = longest_first(lengths)
        order = order[lengths[order] > 0]
        padded = self._padded_lengths(lengths[order])
        batches: list[np.ndarray] = []
        for length in np.unique(padded)[::-1]:
            chosen, rows = order[padded == length], self._rows(int(length), max_tokens)
            batches += np.split(chosen, range(rows, len(chosen), rows))
        return batches

    def forward(
        self, tokens: Tokens, wanted: set[int], max_tokens: int
    ) -> tuple[dict[int, Tensor], np.ndarray]:
        """Compute the hidden states (batch * L, d) of texts of one padded length L."""
        lengths, width = tokens.lengths, int(self._padded_lengths(tokens.lengths[:1])[0])
        is_token = np.arange(width) < lengths[:, None]
        rows = self._rows(width, max_tokens)
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
        states = hidden_states(self._model, self.layers, inputs, wanted, self._state)
        return states, np.arange(len(lengths)) * width

    def _rows(self, length: int, max_tokens: int) -> int:
        return 1 if self._is_alone else max(1, max_tokens // length)

    def _padded_lengths(self, lengths: np.ndarray) -> np.ndarray:
        padded = np.minimum(
            -(-lengths // self._multiple) * self._multiple,
            max(self._longest, int(lengths.max(initial=0))),
        )
        return np.maximum(padded, self._shortest)


def _shortest(config: Any) -> int:
    """Return the least number of tokens that a model computes; shorter texts are padded to it."""
    match config.model_type:
        case "canine":  # stride of the model's downsampling convolution
            return int(config.downsampling_rate)
        case "funnel":  # every block but the first halves the tokens after the first one
            return 2 ** (len(config.block_sizes) - 1) + 1
    return 1


def _has_experts(config: Mapping[str, Any]) -> bool:
    """Return whether a model, or a part of it, is a mixture of experts."""
    return any(
        _has_experts(value)
        if isinstance(value, Mapping)
        else "expert" in str(name) and type(value) is int and value > 1
        for name, value in config.items()
    )
