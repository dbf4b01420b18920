"""Views of a batch: the texts of a column, the encoder for them, and perturbations."""

from dataclasses import dataclass, replace
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.models.layers.backbones import AtEmbedding
from pipeline.models.trainable.perturbations import PerTextChange
from pipeline.text.tokens.tokens import Tokens


class ViewEncoder(Protocol):
    """Encoder that accepts the perturbations of a view."""

    dim: int

    def __call__(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """Encode n texts: (n, dim). See `View` for positions and at_embedding."""


@dataclass(frozen=True, eq=False)
class View:
    """Instruction to encode n texts, one per row of a batch."""

    encoder: nn.Module
    """a `ViewEncoder`"""
    tokens: Tokens
    """tokens of the n texts"""
    grad: bool = True
    """False for a momentum encoder or a teacher"""
    at_embedding: AtEmbedding | None = None
    """function that changes the output of the embedding layer, or None"""
    positions: np.ndarray | None = None
    """(tokens,) int64 position of each token; None for 0, 1, 2 ... in each text"""
    whole_batch_reason: str | None = None
    """reason why the rows cannot be encoded in chunks, for an error message; None if they can"""

    def of_rows(self, indices: np.ndarray) -> "View":
        """Select texts, with their positions and changes."""
        positions = None
        if self.positions is not None:
            offsets = self.tokens.offsets
            tokens = [np.arange(offsets[index], offsets[index + 1]) for index in indices]
            positions = self.positions[np.concatenate(tokens)]
        change = self.at_embedding
        if isinstance(change, PerTextChange):
            change = change.of_rows(indices)
        return replace(self, tokens=self.tokens.of_rows(indices), positions=positions, at_embedding=change)

    def encode(self) -> Tensor:
        """Encode the texts: (n, dim)."""
        with torch.set_grad_enabled(self.grad and torch.is_grad_enabled()):
            return cast(ViewEncoder, self.encoder)(
                self.tokens, positions=self.positions, at_embedding=self.at_embedding
            )
