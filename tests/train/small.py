"""Small trainings for tests: three objectives around `Tiny`, and batches without end."""

import copy
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.losses.contrastive import info_nce
from pipeline.objectives import NO_PEERS, Batch, Loss, Objective, Peers, View
from pipeline.objectives.simcse import SimCSE
from pipeline.objectives.supervised import Supervised
from pipeline.settings.training import TrainSettings
from pipeline.train.loop import Step, Training
from tests.objectives.tiny import Tiny, batch_of, texts

ROWS = 6  # of a batch, of all ranks together
STEPS = 6
DROPOUT = 0.2


class Queue(Objective):
    """Objective with a state: the candidates are a queue of earlier keys of a momentum encoder."""

    columns = ("anchor", "positive")

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder)
        self.momentum_encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.register_buffer("keys", torch.randn(2 * ROWS, self.dim, dtype=torch.float64))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    def views(self, batch: Batch) -> Sequence[View]:
        keys = View(self.momentum_encoder, batch.tokens("positive"), grad=False)
        return View(self.encoder, batch.tokens("anchor")), keys

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        queries, keys = reps
        candidates = torch.cat([batch.peers.gather(keys), self.keys])
        return Loss.of(info_nce=info_nce(queries, candidates, temperature=0.5, offset=batch.offset))

    def after_step(self, reps: tuple[Tensor, ...], batch: Batch) -> None:
        keys, index = batch.peers.gather(reps[1]), int(self.filled) % len(self.keys)
        self.keys[index : index + len(keys)] = keys
        self.filled += len(keys)
        for slow, fast in zip(self.momentum_encoder.parameters(), self.encoder.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.3)


def objective(name: str, dropout: float = DROPOUT, seed: int = 5) -> Objective:
    """Build the objective "queue", "simcse" or "supervised", with weights from `seed`."""
    torch.manual_seed(seed)
    tiny = Tiny(dropout=dropout, seed=seed)
    if name == "queue":
        return Queue(tiny)
    if name == "simcse":
        return SimCSE(tiny, temperature=0.3).double()
    return Supervised(tiny, temperature=0.3, head="cls_mlp").double()


def training(settings: TrainSettings, name: str = "supervised", **changes: float) -> Training:
    """Create a training of two epochs with three steps each; `changes` are arguments of `objective`."""
    return Training(objective(name, **changes), settings, steps=STEPS, steps_per_epoch=3)


def rows_of(start: int = 0, rank: int = 0, world: int = 1, peers: Peers = NO_PEERS) -> Iterator[Batch]:
    """Yield this rank's part of the batches from step `start` on."""
    own = np.arange(ROWS * rank // world, ROWS * (rank + 1) // world)
    for step in count(start):
        columns = {
            role: texts(ROWS, 10 * step + index)
            for index, role in enumerate(("anchor", "positive", "negative", "text"))
        }
        yield batch_of(columns, peers).of_rows(own)


def numbers(steps: Sequence[Step]) -> list[tuple[float, ...]]:
    """Return all numbers of the steps except times."""
    return [
        (step.number, float(step.loss.total), step.gradient_norm, step.learning_rate, step.rows, step.tokens)
        for step in steps
    ]
