"""Forward passes that can be trained: a request, and the hidden states that a backbone returns for it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.layers.pooling import Segments
from pipeline.models.layers.transfer import to_device
from pipeline.text.tokens.tokens import Tokens

AtEmbedding = Callable[[Tensor, Segments], Tensor]
"""Change of the embedding layer's output: (H[0] (tokens, d), the rows of each text) -> the input (tokens, d)
of the first layer. Prompt and special tokens are included; only rows that the segments name are used."""


@dataclass(frozen=True)
class ForwardRequest:
    """Input of one forward pass, and the hidden states wanted."""

    tokens: Tokens
    """texts of at least one token each"""
    wanted: set[int]
    """numbers of hidden states, as in `pool`"""
    skip: int = 0
    """leading tokens of each text that are not pooled"""
    positions: np.ndarray | None = None
    """(tokens,) position of each token in its text, from 0; None: 0, 1, 2 ..."""
    at_embedding: AtEmbedding | None = None


class Backbone(nn.Module):
    """Model without pooling. Precision, checkpointing and compilation change neither the names of its
    parameters nor their float32.
    """

    width: int
    """values of a hidden state"""
    layers: int
    checkpointing = False
    """compute activations of the layers again in the backward pass, with the same dropout, instead of keeping
    them"""
    precision = torch.float32
    """of matrix products, through autocast if it is half; sums over the layers and normalizations stay
    float32"""

    def __call__(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return hidden states of the wanted numbers, and the rows of each text in them."""
        kind, half = next(self.parameters()).device.type, self.precision != torch.float32
        with torch.autocast(kind, self.precision if half else None, enabled=half):
            found: tuple[dict[int, Tensor], Segments] = super().__call__(request)
        return found

    @property
    def words(self) -> Tensor:
        """(vocabulary, d) rows of the word table, which a language model's decoder shares."""
        raise NotImplementedError

    @property
    def has_dropout(self) -> bool:
        """True if two passes over one text differ in train()."""
        return any(isinstance(module, nn.Dropout) and module.p > 0 for module in self.modules())

    def draw(self) -> None:
        """Draw new weights from torch's generator, as for a new model of the architecture."""
        raise NotImplementedError

    def compile_layers(self) -> None:
        """Compile the layers, in place. Raises ModelError if the backbone has none that can be compiled."""
        raise ModelError(
            type(self).__name__, "layers that can be compiled", "none", "leave train.compile out"
        )

    def _put(self, values: np.ndarray) -> Tensor:
        return to_device(values, next(self.parameters()).device)
