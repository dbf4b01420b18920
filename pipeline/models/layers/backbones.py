"""Interfaces of models without pooling, from tokens to hidden states, with gradients or without."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.errors import ModelError
from pipeline.models.layers.transfer import to_device
from pipeline.models.spec.pooling import Segments, find_segments
from pipeline.text.tokens.budget import longest_first, plan_buffers
from pipeline.text.tokens.tokens import Tokens

AtEmbedding = Callable[[Tensor, Segments], Tensor]
"""Function that changes the embedding layer's output before the first layer. It gets the output (tokens, d)
and the rows of each text in it, prompt and special tokens included, and returns (tokens, d)."""


@dataclass(frozen=True)
class ForwardRequest:
    """Input of one forward pass, and the hidden states wanted."""

    tokens: Tokens
    """texts of at least one token each"""
    wanted: set[int]
    """numbers of hidden states, as `layers_of` gives them"""
    skip: int = 0
    """leading tokens of each text that are not pooled"""
    positions: np.ndarray | None = None
    """(tokens,) position of each token in its text, from 0; None: 0, 1, 2 ..."""
    at_embedding: AtEmbedding | None = None


class Backbone(nn.Module):
    """Model without pooling.

    Half precision, checkpointing and compilation do not change the names of its parameters, nor their type,
    which is float32.
    """

    width: int
    """values of a hidden state"""
    depth: int
    """number of layers, which is also the number of the last hidden state"""
    checkpointing = False
    """compute activations again in the backward pass, with the same dropout, instead of storing them"""
    precision = torch.float32
    """type of matrix products; half precision works through autocast, which leaves normalizations and the
    sums over layers in float32"""

    def __call__(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return the wanted hidden states by number, and the rows of each text in them."""
        with self.autocast():
            states: tuple[dict[int, Tensor], Segments] = super().__call__(request)
        return states

    def autocast(self) -> torch.autocast:
        """Return a context in which matrix products are computed in `precision`."""
        device, is_half = next(self.parameters()).device.type, self.precision != torch.float32
        return torch.autocast(device, self.precision if is_half else None, enabled=is_half)

    @property
    def word_table(self) -> Tensor:
        """Word embeddings (vocabulary, d), which the head of a language model shares."""
        raise NotImplementedError

    @property
    def has_dropout(self) -> bool:
        """True if two passes over one text differ in train()."""
        return any(isinstance(module, nn.Dropout) and module.p > 0 for module in self.modules())

    @property
    def hidden_dropout(self) -> float:
        """Rate of dropout of hidden states in train(); 0 without dropout."""
        return max((module.p for module in self.modules() if isinstance(module, nn.Dropout)), default=0.0)

    def draw(self) -> None:
        """Draw new weights from torch's generator, as for a new model of the architecture."""
        raise NotImplementedError

    def compile_layers(self) -> None:
        """Compile the layers in place.

        Raises:
            ModelError: the backbone has no layers that can be compiled.
        """
        raise ModelError(
            type(self).__name__, "layers that can be compiled", "none", "set train.compile to false"
        )

    def _run_layer(self, layer: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """Call a layer, under activation checkpointing if that is set."""
        if self.checkpointing and torch.is_grad_enabled():
            return cast(Tensor, checkpoint(layer, *arguments, use_reentrant=False))
        return layer(*arguments)

    def _put(self, values: np.ndarray) -> Tensor:
        return to_device(values, next(self.parameters()).device)


class Model:
    """Backbone that inference runs: packed, padded, recurrent, convolutional, or vectors without layers."""

    width: int
    """values of a hidden state"""
    layers: int
    device: torch.device
    has_token_states = True
    """whether each token has one hidden state; then all other states of a buffer are padding"""

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Group texts into forward passes of at most max_tokens tokens; a longer text has a pass of its own.

        Args:
            lengths: (n,) tokens of each text.
            max_tokens: limit of one pass of several texts.

        Returns:
            Row numbers of the texts of each pass, by decreasing length; texts without tokens are left out.
        """
        lengths = np.asarray(lengths)
        longer = lengths > max_tokens
        others = np.flatnonzero(~longer)
        alone = longest_first(lengths)[: int(longer.sum())]
        buffers = plan_buffers(lengths[others], max_tokens)
        return [*np.split(alone, len(alone)), *(others[rows] for rows in buffers)] if len(alone) else buffers

    def states(
        self, tokens: Tokens, rows: np.ndarray, wanted: set[int], max_tokens: int, skip: int
    ) -> tuple[dict[int, Tensor], Segments]:
        """Compute hidden states of some texts in one forward pass.

        Args:
            tokens: all texts.
            rows: numbers of the texts to compute, from `plan`.
            wanted: numbers of the hidden states, as `layers_of` gives them.
            max_tokens: the limit given to `plan`.
            skip: leading tokens of each text that are not pooled.

        Returns:
            Hidden states (tokens, width) by number, and the pooled tokens of each text in them.
        """
        part = tokens.of_rows(rows)
        states, starts = self.forward(part, wanted, max_tokens)
        return states, find_segments(starts, part.lengths, skip, self.put, part.kept)

    def forward(
        self, tokens: Tokens, wanted: set[int], max_tokens: int
    ) -> tuple[dict[int, Tensor], np.ndarray]:
        """Compute hidden states of the texts of one pass.

        Returns:
            Hidden states (tokens, width) by number, and the first token of each text in them, (n,).
        """
        raise NotImplementedError

    def put(self, values: np.ndarray) -> Tensor:
        """Copy an array to the device."""
        return to_device(values, self.device)
