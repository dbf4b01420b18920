"""Logistic regression by Adam with early stopping, as published transfer figures are made; all training parts and strengths as one batched model.

Every part draws its own batches from its own rows; the strengths of a part see the same batches, start from the same weights, and differ in the weight decay alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pipeline.evaluate.solvers import Linear

BATCH = 64
RATE = 1e-3  # Adam's usual one
HELD_OUT = 0.05  # share of a part's rows that says when to stop
EPOCHS = 4  # of a round: after each the rows held out are looked at
PATIENCE = 5  # rounds in a row without a better accuracy
MOST_EPOCHS = 200


@dataclass(frozen=True)
class Sgd:
    """Protocol of SentEval (Conneau and Kiela 2018). The weights kept are those of the round with the best accuracy on the rows held out."""

    seed: int
    name: ClassVar[str] = "sgd"
    strengths: ClassVar[Sequence[float]] = (1e-2, 1e-3, 1e-4, 1e-5)
    """weight decay, in Adam's gradient"""

    def fit(
        self, x: np.ndarray, y: np.ndarray, classes: int, parts: np.ndarray, strengths: Sequence[float]
    ) -> Linear:
        rows = torch.from_numpy(np.c_[x, np.ones(len(x))].astype(np.float32))
        batches = _Batches(rows, torch.from_numpy(y), classes, parts, self.seed)
        weights = self._train(batches, torch.tensor(strengths, dtype=torch.float32))
        found = weights.double().numpy()
        return Linear(found[..., :-1], found[..., -1])

    def _train(self, batches: "_Batches", decay: Tensor) -> Tensor:
        """(F, S, K, d + 1), the bias last."""
        weights = self._start(
            (len(batches.held), len(decay), batches.targets.shape[1], batches.rows.shape[1])
        )
        optimizer = torch.optim.Adam([weights], lr=RATE, fused=True)
        best, accuracy = weights.clone(), torch.full(weights.shape[:2], -1.0)
        stale = torch.zeros(weights.shape[:2], dtype=torch.int64)
        for _ in range(MOST_EPOCHS // EPOCHS):
            for _ in range(EPOCHS):
                batches.epoch(weights, optimizer, decay)
            reached = batches.held_accuracy(weights)
            better = (reached > accuracy) & (stale < PATIENCE)
            best, accuracy = (
                torch.where(better[..., None, None], weights, best),
                torch.where(better, reached, accuracy),
            )
            stale = torch.where(better, 0, stale + 1)
            if bool((stale >= PATIENCE).all()):
                break
        return best

    def _start(self, shape: tuple[int, int, int, int]) -> Tensor:
        """Uniform in +-1 / sqrt(d), as torch's linear layers begin; the same for all."""
        bound = (shape[3] - 1) ** -0.5
        one = (torch.rand(shape[2:], generator=torch.Generator().manual_seed(self.seed)) * 2 - 1) * bound
        return one.expand(shape).clone()


class _Batches:
    """The rows (n, d + 1) and labels (n,), those that each part holds out, and those that it trains on in a new order for every epoch."""

    def __init__(self, rows: Tensor, y: Tensor, classes: int, parts: np.ndarray, seed: int) -> None:
        self.rows, self.y = rows, y
        self.targets = torch.nn.functional.one_hot(y, classes).float()
        self._drawn = np.random.default_rng(seed)
        shuffled = [self._drawn.permutation(np.flatnonzero(part)) for part in parts]
        cuts = [max(1, round(HELD_OUT * len(part))) for part in shuffled]
        self.held = [torch.from_numpy(part[:cut]) for part, cut in zip(shuffled, cuts, strict=True)]
        self._used = [part[cut:] for part, cut in zip(shuffled, cuts, strict=True)]

    def epoch(self, weights: Tensor, optimizer: torch.optim.Optimizer, decay: Tensor) -> None:
        """Steps over all rows, `BATCH` of each part at a time; weights (F, S, K, d + 1)."""
        for places, shares in zip(*self._order(), strict=True):
            weights.grad = self._slope(weights, places, shares).addcmul_(decay[None, :, None, None], weights)
            optimizer.step()

    def _order(self) -> tuple[Tensor, Tensor]:
        """(steps, F, BATCH) places of rows in a new order, and the share of each in its batch's mean: 0 where a part has no rows left."""
        steps = -(-max(len(part) for part in self._used) // BATCH)
        places, there = (
            np.zeros((len(self._used), steps * BATCH), np.int64),
            np.zeros((len(self._used), steps * BATCH), np.float32),
        )
        for row, mark, part in zip(places, there, self._used, strict=True):
            row[: len(part)], mark[: len(part)] = self._drawn.permutation(part), 1.0
        batched = there.reshape(len(self._used), steps, BATCH)
        shares = batched / np.maximum(batched.sum(axis=2, keepdims=True), 1.0)
        return torch.from_numpy(places).view(shares.shape).transpose(0, 1).contiguous(), torch.from_numpy(
            shares
        ).transpose(0, 1).contiguous()

    def _slope(self, weights: Tensor, places: Tensor, shares: Tensor) -> Tensor:
        """Gradient of the mean cross-entropy over a batch; places and shares (F, b)."""
        parts, strengths, classes, width = weights.shape
        rows = self.rows.index_select(0, places.view(-1)).view(parts, -1, width)
        logits = torch.bmm(weights.view(parts, -1, width), rows.transpose(1, 2)).view(
            parts, strengths, classes, -1
        )
        target = self.targets.index_select(0, places.view(-1)).view(parts, 1, -1, classes).transpose(2, 3)
        residuals = (logits.softmax(dim=2) - target) * shares[:, None, None]
        return torch.bmm(residuals.view(parts, strengths * classes, -1), rows).view_as(weights)

    def held_accuracy(self, weights: Tensor) -> Tensor:
        """(F, S) share of the rows held out that are classified right."""
        found = [
            (torch.einsum("skd,nd->skn", one, self.rows[held]).argmax(dim=1) == self.y[held])
            .float()
            .mean(dim=1)
            for one, held in zip(weights, self.held, strict=True)
        ]
        return torch.stack(found)
