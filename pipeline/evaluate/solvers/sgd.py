"""Logistic regression by Adam with early stopping, as for published transfer results, as one batched model.

Every training part draws its own batches from its own rows. The strengths of a part see the same batches and
start from the same weights; they differ in the weight decay only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pipeline.evaluate.solvers.linear import LinearClassifiers

BATCH = 64
RATE = 1e-3  # Adam's default
HELD_OUT = 0.05  # proportion of a part's rows for early stopping
EPOCHS = 4  # per round; each round ends with an evaluation on the held-out rows
PATIENCE = 5  # consecutive rounds without a better accuracy
MOST_EPOCHS = 200


@dataclass(frozen=True)
class Sgd:
    """Protocol of SentEval (Conneau and Kiela 2018), with early stopping on held-out rows."""

    seed: int
    name: ClassVar[str] = "sgd"
    strengths: ClassVar[Sequence[float]] = (1e-2, 1e-3, 1e-4, 1e-5)
    """values of the weight decay, added to Adam's gradient"""

    def fit(
        self, x: np.ndarray, y: np.ndarray, classes: int, parts: np.ndarray, strengths: Sequence[float]
    ) -> LinearClassifiers:
        """Fit all problems with the same batches per part; see `Solver.fit`."""
        rows = torch.from_numpy(np.c_[x, np.ones(len(x))].astype(np.float32))
        batches = _Batches(rows, torch.from_numpy(y), classes, parts, self.seed)
        weights = self._train(batches, torch.tensor(strengths, dtype=torch.float32)).double().numpy()
        return LinearClassifiers(weights[..., :-1], weights[..., -1])

    def _train(self, batches: "_Batches", decay: Tensor) -> Tensor:
        """Train all classifiers: (F, S, K, d + 1) weights, the bias last."""
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
            best = torch.where(better[..., None, None], weights, best)
            accuracy = torch.where(better, reached, accuracy)
            stale = torch.where(better, 0, stale + 1)
            if bool((stale >= PATIENCE).all()):
                break
        return best

    def _start(self, shape: tuple[int, int, int, int]) -> Tensor:
        """Return initial weights, uniform in +-1 / sqrt(d) as in torch, equal for all classifiers."""
        bound = (shape[3] - 1) ** -0.5
        one = (torch.rand(shape[2:], generator=torch.Generator().manual_seed(self.seed)) * 2 - 1) * bound
        return one.expand(shape).clone()


class _Batches:
    """Rows (n, d + 1) and labels (n,), with the held-out and the training rows of each part."""

    def __init__(self, rows: Tensor, y: Tensor, classes: int, parts: np.ndarray, seed: int) -> None:
        self.rows, self.y = rows, y
        self.targets = torch.nn.functional.one_hot(y, classes).float()
        self._drawn = np.random.default_rng(seed)
        shuffled = [self._drawn.permutation(np.flatnonzero(part)) for part in parts]
        cuts = [max(1, round(HELD_OUT * len(part))) for part in shuffled]
        self.held = [torch.from_numpy(part[:cut]) for part, cut in zip(shuffled, cuts, strict=True)]
        self._used = [part[cut:] for part, cut in zip(shuffled, cuts, strict=True)]

    def epoch(self, weights: Tensor, optimizer: torch.optim.Optimizer, decay: Tensor) -> None:
        """Make steps over all rows, `BATCH` of each part at a time; weights (F, S, K, d + 1)."""
        for indices, factors in zip(*self._order(), strict=True):
            weights.grad = self._gradient(weights, indices, factors).addcmul_(
                decay[None, :, None, None], weights
            )
            optimizer.step()

    def _order(self) -> tuple[Tensor, Tensor]:
        """Return (steps, F, BATCH) row indices in a new order, and each row's weight in its batch's mean.

        The weight is 0 where a part has no rows left.
        """
        steps = -(-max(len(part) for part in self._used) // BATCH)
        indices = np.zeros((len(self._used), steps * BATCH), np.int64)
        exists = np.zeros((len(self._used), steps * BATCH), np.float32)
        for row, mark, part in zip(indices, exists, self._used, strict=True):
            row[: len(part)], mark[: len(part)] = self._drawn.permutation(part), 1.0
        batched = exists.reshape(len(self._used), steps, BATCH)
        factors = batched / np.maximum(batched.sum(axis=2, keepdims=True), 1.0)
        return (
            torch.from_numpy(indices).view(factors.shape).transpose(0, 1).contiguous(),
            torch.from_numpy(factors).transpose(0, 1).contiguous(),
        )

    def _gradient(self, weights: Tensor, indices: Tensor, factors: Tensor) -> Tensor:
        """Return the gradient of the mean cross-entropy over a batch; indices and factors are (F, b)."""
        parts, strengths, classes, width = weights.shape
        rows = self.rows.index_select(0, indices.view(-1)).view(parts, -1, width)
        logits = torch.bmm(weights.view(parts, -1, width), rows.transpose(1, 2)).view(
            parts, strengths, classes, -1
        )
        target = self.targets.index_select(0, indices.view(-1)).view(parts, 1, -1, classes).transpose(2, 3)
        residuals = (logits.softmax(dim=2) - target) * factors[:, None, None]
        return torch.bmm(residuals.view(parts, strengths * classes, -1), rows).view_as(weights)

    def held_accuracy(self, weights: Tensor) -> Tensor:
        """Return (F, S) accuracies on the held-out rows."""
        return torch.stack(
            [
                (torch.einsum("skd,nd->skn", one, self.rows[held]).argmax(dim=1) == self.y[held])
                .float()
                .mean(dim=1)
                for one, held in zip(weights, self.held, strict=True)
            ]
        )
