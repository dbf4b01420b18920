"""A small encoder, small batches, and steps and gradients of objectives for their tests."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.models.layers.backbones import AtEmbedding
from pipeline.models.spec.pooling import find_segments
from pipeline.objectives import NO_PEERS, Batch, Column, Objective, Peers
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.gradcache import loss_and_backward

VOCABULARY = 32


def tokenize(texts: Sequence[str]) -> Tokens:
    """Return one token per character, without special tokens."""
    ids = [[ord(character) % VOCABULARY for character in text] for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in ids])]).astype(np.int64)
    return Tokens(np.concatenate(ids).astype(np.int32), offsets, np.zeros(len(ids), bool))


class Tiny(nn.Module):
    """Word and position embeddings, dropout, one layer, dropout, mean over tokens; float64."""

    def __init__(self, dim: int = 6, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.dim = dim
        generator = torch.Generator().manual_seed(seed)
        self.words = nn.Parameter(torch.randn(VOCABULARY, dim, generator=generator, dtype=torch.float64))
        self.position_embeddings = nn.Parameter(
            torch.randn(64, dim, generator=generator, dtype=torch.float64)
        )
        self.layer = nn.Parameter(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        lengths = torch.from_numpy(tokens.lengths)
        if positions is None:
            positions = np.concatenate([np.arange(length) for length in tokens.lengths])
        x = self.words[torch.from_numpy(tokens.ids).long()]
        x = x + self.position_embeddings[torch.from_numpy(positions)]
        if at_embedding is not None:
            x = at_embedding(x, find_segments(tokens.offsets[:-1], tokens.lengths, 0, torch.from_numpy))
        x = self.dropout((self.dropout(x) @ self.layer).tanh())
        rows = torch.repeat_interleave(torch.arange(len(tokens)), lengths)
        return x.new_zeros(len(tokens), self.dim).index_add(0, rows, x) / lengths[:, None]


def batch_of(columns: dict[str, Column], peers: Peers = NO_PEERS) -> Batch:
    """Return a batch whose texts `tokenize` reads, with the row numbers 0, 1 and so on."""
    return Batch(columns, np.arange(len(next(iter(columns.values())))), tokenize, peers)


def texts(count: int, seed: int = 0) -> list[str]:
    """Return random texts of 2 to 8 letters."""
    random = np.random.default_rng(seed)
    return [
        "".join(random.choice(list("abcdefghijklmnopqrstuvwxyz"), size=random.integers(2, 9)))
        for _ in range(count)
    ]


def pop_gradients(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of each parameter's gradient, and clear the gradients."""
    found = {
        name: parameter.grad.clone()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    module.zero_grad(set_to_none=True)
    return found


def descend(module: nn.Module, rate: float) -> None:
    """Make a step of gradient descent, and clear the gradients."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter -= rate * parameter.grad
    module.zero_grad(set_to_none=True)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    """Assert that gradients or states have the same names and, up to the tolerance, the same values."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=0, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def assert_halves_average_to_the_whole(objective: Objective, batch: Batch) -> None:
    """Assert that the gradient of a batch is the mean of those of its halves.

    Two ranks, whose gradients are averaged, then train as one process does.
    """
    loss_and_backward(objective, batch)
    whole, halves = pop_gradients(objective), []
    for rows in np.split(np.arange(len(batch)), 2):
        loss_and_backward(objective, batch.of_rows(rows))
        halves.append(pop_gradients(objective))
    assert_same({name: (halves[0][name] + halves[1][name]) / 2 for name in whole}, whole)


def nt_xent(first: Tensor, second: Tensor, temperature: float, alike: np.ndarray) -> float:
    """Compute NT-Xent of two views (n, dim), one row at a time; `alike` (n, n) marks false negatives."""
    views = F.normalize(torch.cat([first, second]), dim=1).detach().numpy()
    count, total = len(first), 0.0
    for row in range(2 * count):
        partner = (row + count) % (2 * count)
        candidates = [
            other
            for other in range(2 * count)
            if other != row and (other == partner or not alike[row % count, other % count])
        ]
        logits = views[candidates] @ views[row] / temperature
        total += np.log(np.exp(logits).sum()) - views[partner] @ views[row] / temperature
    return float(total / count)


class Table(nn.Module):
    """Encoder of texts of one character: row i of a table for chr(i), times a weight matrix, normalized."""

    def __init__(self, rows: Sequence[Sequence[float]], weight: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.register_buffer("rows", torch.tensor(rows, dtype=torch.float64))
        self.weight = nn.Parameter(torch.tensor(weight, dtype=torch.float64))
        self.dim = self.weight.shape[1]

    def forward(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        return F.normalize(self.rows[torch.from_numpy(tokens.ids).long()] @ self.weight, dim=1)
