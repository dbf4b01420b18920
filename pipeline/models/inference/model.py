"""The interface of backbones for inference."""

from typing import Protocol

import numpy as np
from torch import Tensor

from pipeline.models.layers.pooling import Segments
from pipeline.text.tokens.tokens import Tokens


class Model(Protocol):
    """A backbone: packed, padded, recurrent, or a table of words alone."""

    width: int
    layers: int

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Divide rows (numbers of texts) of the given lengths into forward passes of at most max_tokens tokens."""
        ...

    def states(
        self, tokens: Tokens, rows: np.ndarray, wanted: set[int], max_tokens: int, skip: int
    ) -> tuple[dict[int, Tensor], Segments]:
        """Compute hidden states of the texts `rows`.

        Args:
            wanted: numbers of the layers, 0 for the embedding layer.
            skip: leading tokens of each text that poolings leave out.

        Returns:
            (number of the layer -> (tokens, width), where the texts are in them).
        """
        ...
