"""The steps of a training: a generator of them, whose caller decides what becomes of each.

training = Training(objective, settings, steps=1000, steps_per_epoch=500)
if checkpoint is not None:
    training.restore(checkpoint.load())
for step in fit(training, batches(order, tokenize, start=training.number, share=share, peers=peers), until=1000):
    ...
"""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.errors import DataError
from pipeline.objectives import Batch, Loss, Objective
from pipeline.settings.training import TrainSettings
from pipeline.train.finite import non_finite
from pipeline.train.gather import Ranks, world_size
from pipeline.train.generators import Generators, seed_all
from pipeline.train.gradcache import Outcome, loss_and_backward
from pipeline.train.optim import gradients, norm_of, optimizer_of, restore_state, scale, state_of, trained
from pipeline.train.precision import LossScale, prepare
from pipeline.train.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Step:
    """What one step did. Nothing here has a graph."""

    number: int
    """1, 2, ..."""
    loss: Loss
    """the mean over ranks"""
    gradient_norm: float
    """before it was clipped"""
    learning_rate: float
    rows: int
    """of all ranks"""
    tokens: int
    """that all views of all ranks hold"""
    seconds: float
    """wall time on this rank, waiting included"""
    waited_s: float
    """of it for the batch"""
    counts: Mapping[str, int]
    """the batch's; in float16 also overflows: how often the loss scale had to be halved for this step"""
    reps: tuple[Tensor, ...]
    """(n, dim) of each view: this rank's rows, before the step"""
    batch: Batch


class Training:
    """An objective with all that moves it: optimizer, schedule, loss scale, random numbers, and the number of the last step.

    The objective has to be the same on every rank. Its random numbers are not: each rank's generators are seeded here, by the seed and the rank.
    """

    def __init__(
        self,
        objective: Objective,
        settings: TrainSettings,
        *,
        steps: int,
        steps_per_epoch: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """steps: of the whole training, for the schedule. ConfigError for settings that cannot be."""
        self.objective, self.settings, self.number = objective.to(device), settings, 0
        prepare(objective, settings)
        self._sharded = settings.strategy == "fsdp" and world_size() > 1
        if self._sharded:
            from pipeline.train.sharded import shard  # torch's part of it takes a second to import

            shard(objective)
        self.parameters = trained(objective)
        self.optimizer = optimizer_of(self.parameters.values(), settings.optimizer)
        self.schedule = Schedule(
            settings.schedule, settings.optimizer.learning_rate, steps=steps, steps_per_epoch=steps_per_epoch
        )
        self.loss_scale, self._generators = LossScale(settings.precision), Generators(objective)
        seed_all(settings.seed, 0, Ranks().rank)

    @property
    def ended(self) -> bool:
        """Whether the schedule has brought the training to its end before its last step."""
        return self.schedule.ended(self.number + 1)

    def told(self, figure: float) -> None:
        """The figure on dev after the last step, for a schedule that goes by it; the same on every rank."""
        self.schedule.told(figure)

    def step(self, batch: Batch, waited_s: float = 0.0) -> Step:
        """Move the weights by one batch, of equal size on every rank. NonFinite, on every rank, before anything has moved."""
        started = time.perf_counter()
        outcome, norm, overflows = self._gradient(batch)
        rate = self._move(norm)
        self.number += 1
        self.objective.after_step(outcome.reps, batch)
        counts = {**batch.counts, "overflows": overflows} if self.loss_scale.adapts else batch.counts
        seconds = waited_s + time.perf_counter() - started
        return Step(
            self.number,
            outcome.loss,
            norm,
            rate,
            len(batch) * world_size(),
            outcome.tokens,
            seconds,
            waited_s,
            counts,
            outcome.reps,
            batch,
        )

    def _gradient(self, batch: Batch) -> tuple[Outcome, float, int]:
        """The step's outcome, the gradient's norm, and how often it took a smaller scale: then all is computed anew with the same random numbers."""
        before, overflows = self._generators.state(), 0
        while True:
            outcome = loss_and_backward(
                self.objective, batch, chunk_rows=self.settings.chunk_rows, scale=self.loss_scale.value
            )
            scale(found := gradients(self.parameters.values()), 1 / self.loss_scale.value)
            value, norm = torch.stack(
                [outcome.loss.total.float(), norm_of(found).float().to(outcome.loss.total.device)]
            ).tolist()
            if math.isfinite(value) and math.isfinite(norm):
                self.loss_scale.passed()
                return outcome, norm, overflows
            if not math.isfinite(value) or not self.loss_scale.lowered():
                raise non_finite(self.number + 1, batch, outcome.loss, self.parameters)
            self.optimizer.zero_grad(set_to_none=True)
            self._generators.restore(before)
            overflows += 1

    def _move(self, norm: float) -> float:
        """Clip, and take the step; the learning rate that it was taken with."""
        rate, clip = self.schedule.rate(self.number + 1), self.settings.optimizer.clip
        if clip is not None and norm > clip:
            scale(gradients(self.parameters.values()), clip / norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return rate

    def state(self) -> dict[str, Any]:
        """All that a training goes on from, copied to the CPU, as `torch.save` keeps it. Every rank has to call it; on others than the first it is empty."""
        own: list[Any] = [self._generators.state()]
        random = own * world_size()
        if world_size() > 1:
            dist.all_gather_object(random, own[0])
        parts = self._parts()
        if Ranks().rank:
            return {}
        copied = {name: _copied(part) for name, part in parts.items()}
        return {
            "step": self.number,
            "schedule": self.schedule.state(),
            "loss_scale": self.loss_scale.state(),
            "random": _copied(random),
            **copied,
        }

    def _parts(self) -> dict[str, Any]:
        """What objective and optimizer hold, as one rank alone would hold it."""
        if not self._sharded:
            return {
                "objective": self.objective.state_dict(),
                "optimizer": state_of(self.optimizer, self.parameters),
            }
        from pipeline.train.sharded import settle, whole

        settle(self.objective)
        return {
            "objective": whole(self.objective.state_dict()),
            "optimizer": whole(state_of(self.optimizer, self.parameters)),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, the same on every rank.

        With as many ranks as it was taken with, each draws the random numbers that it would have drawn; else, or on other devices, new ones, by seed, step and rank.
        """
        objective, optimizer = self._as_held(state["objective"], state["optimizer"])
        self.objective.load_state_dict(objective)
        restore_state(self.optimizer, self.parameters, optimizer)
        self.schedule.restore(state["schedule"])
        self.loss_scale.restore(state["loss_scale"])
        self.number, rank = state["step"], Ranks().rank
        if len(state["random"]) == world_size() and self._generators.fits(state["random"][rank]):
            self._generators.restore(state["random"][rank])
        else:
            seed_all(self.settings.seed, self.number, rank)

    def _as_held(
        self, objective: Mapping[str, Any], optimizer: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """What `_parts` told, as this rank holds it."""
        if not self._sharded:
            return objective, optimizer
        from pipeline.train.sharded import placed_as, settle

        settle(self.objective)
        own = self.objective.state_dict()
        weights = {
            name: placed_as(value, own[name]) if name in own else value for name, value in objective.items()
        }
        return weights, {
            name: {key: placed_as(value, self.parameters[name]) for key, value in each.items()}
            for name, each in optimizer.items()
        }


def fit(training: Training, batches: Iterator[Batch], *, until: int) -> Iterator[Step]:
    """Steps to number `until`, or to where the schedule ends them; `batches` begin with that of the next step. DataError where they come to an end.

    NonFinite is raised before its step.
    """
    while training.number < until and not training.ended:
        asked = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            raise DataError(
                "training rows", f"a batch for step {training.number + 1}", "none", "give batches without end"
            )
        yield training.step(batch, time.perf_counter() - asked)


def _copied(value: Any) -> Any:
    """The same nest of dicts and lists with tensors of its own, on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    return type(value)(map(_copied, value)) if isinstance(value, list | tuple) else value
