"""Trainings of one of two ranks, for test_loop_ranks.py."""

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.objectives import Batch, Loss
from pipeline.objectives.supervised import Supervised
from pipeline.settings.training import CheckpointSettings, OptimizerSettings, TrainSettings
from pipeline.store.files.open_store import open_store
from pipeline.train.check_finite import NonFinite
from pipeline.train.checkpoint import Checkpoints, load_state
from pipeline.train.gather import Ranks
from pipeline.train.loop import Training, fit
from tests.objectives.tiny import Tiny
from tests.train.small import DROPOUT, STEPS, numbers, rows_of, training

CASES = {"supervised": None, "queue": 2}  # objective -> chunk_rows
KILLED = 4  # completed steps; the last checkpoint is one step earlier


class InfiniteOnSecondRank(Supervised):
    """Objective with an infinite loss on the second rank."""

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        return super().loss(reps, batch) + Loss.of(bad=reps[0].sum() * (math.inf if Ranks().rank else 0))


def settings_of(chunk_rows: int | None) -> TrainSettings:
    return TrainSettings(optimizer=OptimizerSettings(learning_rate=0.01), chunk_rows=chunk_rows)


def work(rank: int, world: int, folder: Path) -> None:
    """Run all trainings as one of the ranks, and save their results."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world
    )
    found: dict[str, Any] = {}
    for name in CASES:
        for case, dropout in ((name, DROPOUT), (without_dropout(name), 0.0)):
            found[case] = trainings(name, dropout, rank, world, folder / case)
    found["error"] = error_of_infinite_loss(rank, world)
    found["due"] = checkpoints_due(rank, folder)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def without_dropout(name: str) -> str:
    return f"{name} without dropout"


def trainings(name: str, dropout: float, rank: int, world: int, folder: Path) -> dict[str, Any]:
    """Run an uninterrupted training, one that is killed, and one resumed from its checkpoint."""
    settings = settings_of(CASES[name])

    def rows(start: int) -> Iterator[Batch]:
        return rows_of(start, rank, world, Ranks())

    uninterrupted = numbers(list(fit(training(settings, name, dropout=dropout), rows(0), until=STEPS)))
    killed = training(settings, name, dropout=dropout)
    checkpoints = Checkpoints(open_store(folder), "checkpoints", CheckpointSettings())
    for step in islice(fit(killed, rows(0), until=STEPS), KILLED):
        if step.number == KILLED - 1:
            state = killed.state()
            checkpoints.save(step.number, state)
    checkpoints.close()
    dist.barrier()
    resumed = training(settings, name, dropout=dropout, seed=7)
    last = Checkpoints(open_store(folder), "checkpoints", CheckpointSettings()).last()
    resumed.restore(load_state(last))
    return {
        "uninterrupted": uninterrupted,
        "resumed": numbers(list(fit(resumed, rows(KILLED - 1), until=STEPS))),
        "has_state": bool(state),
        "draw": torch.rand(2),
        "weights": resumed.objective.state_dict(),
    }


def error_of_infinite_loss(rank: int, world: int) -> dict[str, Any]:
    """Return this rank's error message, and its completed steps, if the second rank's loss is infinite."""
    objective = InfiniteOnSecondRank(Tiny(seed=1), head="none")
    made = Training(objective, settings_of(None), steps=STEPS, steps_per_epoch=3)
    try:
        list(fit(made, rows_of(0, rank, world, Ranks()), until=1))
    except NonFinite as caught:
        return {"message": str(caught), "steps": made.number}
    return {}


def checkpoints_due(rank: int, folder: Path) -> list[bool]:
    """Return whether a checkpoint is due after steps 1 and 2: always by the first rank's clock."""
    minutes = 1e-9 if rank == 0 else 1e9
    checkpoints = Checkpoints(open_store(folder), "none", CheckpointSettings(steps=None, minutes=minutes))
    return [checkpoints.due(step) for step in (1, 2)]
