"""Trainings of one of two ranks with and without sharded weights, for test_sharded.py."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.lora import adapt
from pipeline.objectives import Batch, TrainedModel
from pipeline.objectives.build import build_objective
from pipeline.settings import EncoderSettings
from pipeline.settings.training import TrainSettings
from pipeline.settings.weights import LoraSettings
from pipeline.train.dev import DevSet
from pipeline.train.gather import Ranks
from pipeline.train.loop import Training
from tests.models.folders import LONG

ROWS, STEPS = 6, 3
# The epsilon is large, because Adam would turn the rounding errors of gradients near zero into whole steps.
_COMMON: dict[str, Any] = {
    "dropout": 0.1,
    "optimizer": {"learning_rate": 1e-3, "clip": 0.5, "weight_decay": 0.1, "epsilon": 1e-3},
}
_MIXED = [{"name": "simcse", "options": {"head": "cls_mlp"}}, {"name": "masked_lm", "weight": 0.5}]
SETTINGS = {
    "supervised": TrainSettings(objective="supervised", **_COMMON),
    "in chunks, beside whole weights": TrainSettings(objective=_MIXED, chunk_rows=2, **_COMMON),
    "in chunks of tokens": TrainSettings(objective="supervised", chunk_tokens=30, **_COMMON),
    "followed by a copy": TrainSettings(objective={"name": "cert", "options": {"queue": 12}}, **_COMMON),
    "views made at the embeddings": TrainSettings(
        objective={"name": "consert", "options": {"views": ["adversarial", "none"]}}, **_COMMON
    ),
    "layers computed again": TrainSettings(objective="supervised", checkpoint_layers=True, **_COMMON),
    "adapters": TrainSettings(objective="supervised", lora=LoraSettings(rank=2), **_COMMON),
    "through transformers": TrainSettings(objective="supervised", **_COMMON),
}
DEV = DevSet("dev", tuple(LONG.split()[:9]), tuple(LONG.split()[9:18]), np.arange(9.0))


def training(name: str, folders: dict[str, Path], strategy: str) -> Training:
    """Create a training that is equal on all ranks."""
    settings = SETTINGS[name].model_copy(update={"strategy": strategy})
    folder = folders["electra" if name == "through transformers" else "bert"]
    torch.manual_seed(3)
    encoder = load_trainable(open_folder(EncoderSettings(path=str(folder))), dropout=settings.dropout)
    adapt(encoder, settings.lora)
    return Training(build_objective(settings, encoder), settings, steps=STEPS, steps_per_epoch=STEPS)


def batch_of(made: Training, step: int, rank: int, world: int) -> Batch:
    """Return this rank's part of the batch of a step."""
    words, random = LONG.split(), np.random.default_rng(step)
    columns = {
        role: [" ".join(random.choice(words, random.integers(2, 12))) for _ in range(ROWS)]
        for role in ("anchor", "positive", "negative", "text")
    }
    whole = Batch(columns, np.arange(ROWS), made.objective.encoder.folder.tokenizer(), Ranks())
    return replace(whole.of_rows(np.arange(ROWS * rank // world, ROWS * (rank + 1) // world)), indices=None)


def steps(made: Training, rank: int, world: int) -> Iterator[tuple[float, float]]:
    """Yield the loss and the gradient norm of the remaining steps."""
    while made.number < STEPS:
        step = made.step(batch_of(made, made.number, rank, world))
        yield float(step.loss.total), step.gradient_norm


def work(rank: int, world: int, folder: Path, folders: dict[str, Path]) -> None:
    """Run all trainings as one of the ranks; the first rank saves the results."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world
    )
    found: dict[str, Any] = {}
    for name in SETTINGS:
        for strategy in ("ddp", "fsdp"):
            made = training(name, folders, strategy)
            remaining = steps(made, rank, world)
            first_step = next(remaining)
            dev, state = DEV.score(TrainedModel(made.objective.encoder)), made.state()
            found[f"{name} {strategy}"] = {
                "steps": [first_step, *remaining],
                "dev after step 1": dev,
                "state after step 1": state,
                "state at the end": made.state(),
                "own weights": own_weights(made),
            }
        states = [found[f"{name} fsdp"]["state after step 1"]]
        dist.broadcast_object_list(states, src=0)
        for strategy in ("ddp", "fsdp"):
            made = training(name, folders, strategy)
            made.restore(states[0])
            found[f"{name} {strategy} resumed"] = list(steps(made, rank, world)), made.state()
    if rank == 0:
        torch.save(found, folder / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


def own_weights(made: Training) -> int:
    """Return the number of trained weights that this rank stores."""
    return sum(
        getattr(parameter, "to_local", lambda own=parameter: own)().numel()
        for parameter in made.parameters.values()
    )
