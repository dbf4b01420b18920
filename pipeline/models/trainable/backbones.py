"""Interface of trainable backbones: a request for a forward pass, and the hidden states that answer it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.errors import ModelError
from pipeline.models.layers.transfer import to_device
from pipeline.models.spec.pooling import Segments
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

    Half precision, checkpointing and compilation change neither the names of its parameters nor their type,
    float32.
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
        """Return hidden states of the wanted numbers, and the rows of each text in them."""
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
