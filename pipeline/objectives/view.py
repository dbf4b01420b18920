"""Views of a batch: texts as one encoder reads them."""

from dataclasses import dataclass, replace
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.models.trainable.backbones import AtEmbedding
from pipeline.models.trainable.perturbations import PerText
from pipeline.text.tokens.tokens import Tokens


class ViewEncoder(Protocol):
    """Encoder module that can encode a view."""

    dim: int

    def __call__(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """Encode n texts: (n, dim). See `View` for positions and at_embedding."""
        ...


@dataclass(frozen=True, eq=False)
class View:
    """The n texts of a batch as one encoder reads them, one text per row.

    Attributes:
        encoder: a `ViewEncoder`.
        tokens: tokens of the n texts.
        grad: False for a momentum encoder or a teacher.
        at_embedding: change of the states behind the embedding layer; None for none. A change that depends on
            the text belongs to this view alone.
        positions: (tokens,) int64 position of each token; None: 0, 1, 2 ... in each text.
        whole_batch_reason: why the rows cannot be encoded in chunks, for an error message; None if they can.
    """

    encoder: nn.Module
    tokens: Tokens
    grad: bool = True
    at_embedding: AtEmbedding | None = None
    positions: np.ndarray | None = None
    whole_batch_reason: str | None = None

    def of_rows(self, indices: np.ndarray) -> "View":
        """Select texts."""
        positions = None
        if self.positions is not None:
            starts = self.tokens.offsets
            chosen = [np.arange(starts[index], starts[index + 1]) for index in indices]
            positions = self.positions[np.concatenate(chosen)]
        change = self.at_embedding
        if isinstance(change, PerText):
            change = change.of_rows(indices)
        return replace(self, tokens=self.tokens.of_rows(indices), positions=positions, at_embedding=change)

    def encode(self) -> Tensor:
        """Encode the texts: (n, dim)."""
        with torch.set_grad_enabled(self.grad and torch.is_grad_enabled()):
            return cast(ViewEncoder, self.encoder)(
                self.tokens, positions=self.positions, at_embedding=self.at_embedding
            )
