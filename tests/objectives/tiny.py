"""A small encoder and small batches for tests of objectives."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.models.layers.pooling import find_segments
from pipeline.models.trainable.backbones import AtEmbedding
from pipeline.objectives import NO_PEERS, Batch, Column, Peers
from pipeline.text.tokens.tokens import Tokens

WORDS = 32


def tokenize(texts: Sequence[str]) -> Tokens:
    """Return one token per character."""
    ids = [[ord(character) % WORDS for character in text] for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in ids])]).astype(np.int64)
    return Tokens(np.concatenate(ids).astype(np.int32), offsets, np.zeros(len(ids), bool))


class Tiny(nn.Module):
    """Word and position embeddings, dropout, one layer, dropout, mean over tokens; float64."""

    def __init__(self, dim: int = 6, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.dim = dim
        generator = torch.Generator().manual_seed(seed)
        self.words = nn.Parameter(torch.randn(WORDS, dim, generator=generator, dtype=torch.float64))
        self.position_embeddings = nn.Parameter(
            torch.randn(64, dim, generator=generator, dtype=torch.float64)
        )
        self.layer = nn.Parameter(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        lengths = torch.from_numpy(tokens.lengths)
        numbers = (
            np.concatenate([np.arange(length) for length in tokens.lengths])
            if positions is None
            else positions
        )
        x = (
            self.words[torch.from_numpy(tokens.ids).long()]
            + self.position_embeddings[torch.from_numpy(numbers)]
        )
        x = self.dropout(
            x
            if at_embedding is None
            else at_embedding(x, find_segments(tokens.offsets[:-1], tokens.lengths, 0, torch.from_numpy))
        )
        x = self.dropout((x @ self.layer).tanh())
        rows = torch.repeat_interleave(torch.arange(len(tokens)), lengths)
        return x.new_zeros(len(tokens), self.dim).index_add(0, rows, x) / lengths[:, None]


def batch_of(columns: dict[str, Column], peers: Peers = NO_PEERS) -> Batch:
    return Batch(columns, np.arange(len(next(iter(columns.values())))), tokenize, peers)


def texts(count: int, seed: int = 0) -> list[str]:
    """Return texts of different lengths and letters."""
    random = np.random.default_rng(seed)
    return [
        "".join(random.choice(list("abcdefghijklmnopqrstuvwxyz"), size=random.integers(2, 9)))
        for _ in range(count)
    ]


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Copy each parameter's gradient and clear it."""
    found = {
        name: parameter.grad.clone()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    module.zero_grad(set_to_none=True)
    return found


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=0, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


class Table(nn.Module):
    """Encoder that maps text i, a single character, to row i of a table times a weight matrix, normalized."""

    def __init__(self, rows: Sequence[Sequence[float]], weight: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.register_buffer("rows", torch.tensor(rows, dtype=torch.float64))
        self.weight = nn.Parameter(torch.tensor(weight, dtype=torch.float64))
        self.dim = self.weight.shape[1]

    def forward(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        return F.normalize(self.rows[torch.from_numpy(tokens.ids).long()] @ self.weight, dim=1)
