"""Logistic regression by Adam with early stopping, as for the published transfer results.

All classifiers are trained at once, as one batched model. Each of the F training parts (see `Solver.fit`)
draws batches from its own rows. Its classifiers, one for each of S weight decays, start from the same weights
and see the same batches.

Shapes: F training parts, S weight decays, K classes, n rows of d values and a constant 1 for the bias.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pipeline.evaluate.solvers.linear import LinearClassifiers

BATCH_ROWS = 64
LEARNING_RATE = 1e-3  # Adam's default
HELD_OUT = 0.05  # proportion of a part's rows for early stopping
EPOCHS_PER_ROUND = 4  # a round ends with an evaluation on the held-out rows
PATIENCE_ROUNDS = 5  # consecutive rounds without a better accuracy, after which training stops
MAX_EPOCHS = 200


@dataclass(frozen=True)
class Sgd:
    """Protocol of SentEval (Conneau and Kiela 2018), with early stopping on held-out rows."""

    seed: int
    name: ClassVar[str] = "sgd"
    strengths: ClassVar[Sequence[float]] = (1e-2, 1e-3, 1e-4, 1e-5)
    """values of the weight decay; decay times weights is added to the gradient"""

    def fit(
        self, x: np.ndarray, y: np.ndarray, classes: int, parts: np.ndarray, strengths: Sequence[float]
    ) -> LinearClassifiers:
        """Fit all problems with the same batches per part; see `Solver.fit`."""
        rows = torch.from_numpy(np.c_[x, np.ones(len(x))].astype(np.float32))
        batches = _Batches(rows, torch.from_numpy(y), classes, parts, self.seed)
        weights = self._train(batches, torch.tensor(strengths, dtype=torch.float32)).double().numpy()
        return LinearClassifiers(weights[..., :-1], weights[..., -1])

    def _train(self, batches: "_Batches", decay: Tensor) -> Tensor:
        """Train all classifiers.

        Returns the weights of each classifier after its best round, (F, S, K, d + 1), the bias last.
        """
        weights = self._initial_weights(
            (len(batches.held_out), len(decay), batches.targets.shape[1], batches.rows.shape[1])
        )
        optimizer = torch.optim.Adam([weights], lr=LEARNING_RATE, fused=True)
        best, accuracy = weights.clone(), torch.full(weights.shape[:2], -1.0)
        stale_rounds = torch.zeros(weights.shape[:2], dtype=torch.int64)
        for _ in range(MAX_EPOCHS // EPOCHS_PER_ROUND):
            for _ in range(EPOCHS_PER_ROUND):
                batches.epoch(weights, optimizer, decay)
            new_accuracy = batches.held_out_accuracy(weights)
            is_better = (new_accuracy > accuracy) & (stale_rounds < PATIENCE_ROUNDS)
            best = torch.where(is_better[..., None, None], weights, best)
            accuracy = torch.where(is_better, new_accuracy, accuracy)
            stale_rounds = torch.where(is_better, 0, stale_rounds + 1)
            if bool((stale_rounds >= PATIENCE_ROUNDS).all()):
                break
        return best

    def _initial_weights(self, shape: tuple[int, int, int, int]) -> Tensor:
        """Return initial weights, uniform in +-1 / sqrt(d) as in torch, equal for all classifiers."""
        bound = (shape[3] - 1) ** -0.5
        generator = torch.Generator().manual_seed(self.seed)
        weights = (torch.rand(shape[2:], generator=generator) * 2 - 1) * bound
        return weights.expand(shape).clone()


class _Batches:
    """Rows (n, d + 1) and labels (n,), divided into held-out and training rows for each part."""

    def __init__(self, rows: Tensor, y: Tensor, classes: int, parts: np.ndarray, seed: int) -> None:
        self.rows, self.y = rows, y
        self.targets = torch.nn.functional.one_hot(y, classes).float()
        self._rng = np.random.default_rng(seed)
        shuffled = [self._rng.permutation(np.flatnonzero(part)) for part in parts]
        cuts = [max(1, round(HELD_OUT * len(part))) for part in shuffled]
        self.held_out = [torch.from_numpy(part[:cut]) for part, cut in zip(shuffled, cuts, strict=True)]
        self._train_rows = [part[cut:] for part, cut in zip(shuffled, cuts, strict=True)]

    def epoch(self, weights: Tensor, optimizer: torch.optim.Optimizer, decay: Tensor) -> None:
        """Train for one epoch, with `BATCH_ROWS` rows of each part in a step; weights (F, S, K, d + 1)."""
        for indices, factors in zip(*self._shuffled_batches(), strict=True):
            weights.grad = self._gradient(weights, indices, factors).addcmul_(
                decay[None, :, None, None], weights
            )
            optimizer.step()

    def _shuffled_batches(self) -> tuple[Tensor, Tensor]:
        """Shuffle the training rows of each part into batches.

        Returns:
            (steps, F, BATCH_ROWS) row indices, and the weight of each row in the mean over its batch: 0 for
            padding after a part's last row.
        """
        steps = -(-max(len(part) for part in self._train_rows) // BATCH_ROWS)
        indices = np.zeros((len(self._train_rows), steps * BATCH_ROWS), np.int64)
        exists = np.zeros((len(self._train_rows), steps * BATCH_ROWS), np.float32)
        for number, part in enumerate(self._train_rows):
            indices[number, : len(part)] = self._rng.permutation(part)
            exists[number, : len(part)] = 1.0
        batched = exists.reshape(len(self._train_rows), steps, BATCH_ROWS)
        factors = batched / np.maximum(batched.sum(axis=2, keepdims=True), 1.0)
        return (
            torch.from_numpy(indices).view(factors.shape).transpose(0, 1).contiguous(),
            torch.from_numpy(factors).transpose(0, 1).contiguous(),
        )

    def _gradient(self, weights: Tensor, indices: Tensor, factors: Tensor) -> Tensor:
        """Compute the gradient of the mean cross-entropy over a batch; indices and factors are (F, b)."""
        parts, strengths, classes, width = weights.shape
        rows = self.rows.index_select(0, indices.view(-1)).view(parts, -1, width)
        logits = torch.bmm(weights.view(parts, -1, width), rows.transpose(1, 2)).view(
            parts, strengths, classes, -1
        )
        target = self.targets.index_select(0, indices.view(-1)).view(parts, 1, -1, classes).transpose(2, 3)
        residuals = (logits.softmax(dim=2) - target) * factors[:, None, None]
        return torch.bmm(residuals.view(parts, strengths * classes, -1), rows).view_as(weights)

    def held_out_accuracy(self, weights: Tensor) -> Tensor:
        """Compute (F, S) accuracies on the held-out rows."""
        accuracies = []
        for part_weights, rows in zip(weights, self.held_out, strict=True):
            logits = torch.einsum("skd,nd->skn", part_weights, self.rows[rows])
            accuracies.append((logits.argmax(dim=1) == self.y[rows]).float().mean(dim=1))
        return torch.stack(accuracies)
