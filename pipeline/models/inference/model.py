"""Base class of the backbones that inference runs: tokens in, hidden states out."""

import numpy as np
import torch
from torch import Tensor

from pipeline.models.layers.transfer import to_device
from pipeline.models.spec.pooling import Segments, find_segments
from pipeline.text.tokens.budget import longest_first, plan_buffers
from pipeline.text.tokens.tokens import Tokens


class Model:
    """Backbone of an encoder: packed, padded, recurrent, convolutional, or vectors without layers."""

    width: int
    """values of a hidden state"""
    layers: int
    device: torch.device
    has_token_states = True
    """whether there is one hidden state for each token; other states in a buffer are padding"""

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Group texts into forward passes of at most max_tokens tokens; longer texts are alone in theirs.

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
