"""The interface of backbones for inference."""

from typing import Protocol

import numpy as np
from torch import Tensor

from pipeline.models.layers.pooling import Segments
from pipeline.text.tokens.tokens import Tokens


class Model(Protocol):
    """Backbone of an encoder: packed, padded, recurrent, or a word table without layers."""

    width: int
    layers: int

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Group texts into forward passes of at most max_tokens tokens.

        Args:
            lengths: (n,) tokens of each text.
            max_tokens: limit of one pass.

        Returns:
            Row numbers of the texts of each pass; texts without tokens are in none.
        """
        ...

    def states(
        self, tokens: Tokens, rows: np.ndarray, wanted: set[int], max_tokens: int, skip: int
    ) -> tuple[dict[int, Tensor], Segments]:
        """Compute hidden states of some texts in one forward pass.

        Args:
            tokens: all texts.
            rows: numbers of the texts to compute, from `plan`.
            wanted: numbers of the layers, 0 for the embedding layer.
            max_tokens: limit that `plan` got.
            skip: leading tokens of each text that are not pooled.

        Returns:
            Hidden states (tokens, width) by number, and the pooled tokens of each text in them.
        """
        ...
