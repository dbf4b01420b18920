"""Optimizer and training loop, a generator of steps. The caller decides when to log, evaluate and save.

Example:

    training = Training(objective, settings, steps=1000, steps_per_epoch=500)
    if checkpoint is not None:
        training.restore(load_state(checkpoint))
    batches = rank_batches(order, tokenize, start=training.number, rank_slice=rank_slice, peers=peers)
    for step in fit(training, batches, until=1000):
        ...
"""

import copy
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from pipeline.errors import Defect
from pipeline.objectives import Batch, KeepsState, Loss, Objective
from pipeline.settings.training import OptimizerSettings, TrainSettings
from pipeline.train.check_finite import non_finite_error
from pipeline.train.gather import Ranks, is_sharded, local_shard, mean_over_ranks, world_size
from pipeline.train.generators import RandomGenerators, seed_all
from pipeline.train.gradcache import StepResult, loss_and_backward
from pipeline.train.precision import LossScale, prepare_encoders
from pipeline.train.schedule import Schedule


def trainable_parameters(module: nn.Module) -> dict[str, Parameter]:
    """Return the parameters that require a gradient, by name; Defect if there are none."""
    trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not trainable:
        raise Defect(
            "objective", "parameters to train", "none with a gradient", "check which parameters it freezes"
        )
    return trainable


def build_optimizer(parameters: Iterable[Parameter], settings: OptimizerSettings) -> Optimizer:
    """Create the optimizer, with weight decay on matrices and embedding tables only (Devlin et al. 2019).

    Biases and normalizations do not decay. Sharded parameters are in groups of their own, because torch's
    fused optimizers do not accept a mixture.
    """
    by_kind: dict[tuple[bool, bool], list[Parameter]] = {}
    for parameter in parameters:
        is_matrix = parameter.ndim >= 2
        by_kind.setdefault((is_matrix, is_sharded(parameter)), []).append(parameter)
    groups: list[dict[str, object]] = [
        {"params": members, "weight_decay": settings.weight_decay if is_matrix else 0.0}
        for (is_matrix, _), members in by_kind.items()
    ]
    rate, betas, epsilon = settings.learning_rate, settings.betas, settings.epsilon
    if settings.name == "sgd":
        return SGD(groups, lr=rate, momentum=settings.momentum, fused=True)
    if settings.name == "rmsprop":
        return RMSprop(groups, lr=rate, momentum=settings.momentum, eps=epsilon)
    adam = AdamW if settings.name == "adamw" else Adam
    return adam(groups, lr=rate, betas=betas, eps=epsilon, fused=True)


def optimizer_state(optimizer: Optimizer, parameters: Mapping[str, Parameter]) -> dict[str, dict[str, Any]]:
    """Return the optimizer's state by name of the parameter."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    return {names[id(parameter)]: dict(state) for parameter, state in optimizer.state.items()}


def restore_optimizer(
    optimizer: Optimizer, parameters: Mapping[str, Parameter], state: Mapping[str, Mapping[str, Any]]
) -> None:
    """Restore the state returned by `optimizer_state`, as a copy of its tensors."""
    order = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    state_by_index = {
        order.index(id(parameters[name])): copy.deepcopy(dict(parameter_state))
        for name, parameter_state in state.items()
    }
    optimizer.load_state_dict(
        {"state": state_by_index, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def gradients(parameters: Iterable[Parameter]) -> list[Tensor]:
    """Return all gradients that exist."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm of the values of all tensors, including the shards on all ranks.

    It is 0 if there are no tensors.
    """
    unsharded_norm = torch.nn.utils.get_total_norm([tensor for tensor in tensors if not is_sharded(tensor)])
    shards = [local_shard(tensor) for tensor in tensors if is_sharded(tensor)]
    if not shards:
        return unsharded_norm
    local_square = torch.nn.utils.get_total_norm(shards).double().square()
    sharded_square = mean_over_ranks(local_square) * world_size()
    return (unsharded_norm.to(sharded_square).square() + sharded_square).sqrt()


def scale_in_place(tensors: Sequence[Tensor], factor: float) -> None:
    """Multiply tensors by a factor, in place."""
    if factor != 1.0 and tensors:
        torch._foreach_mul_([local_shard(tensor) for tensor in tensors], factor)


@dataclass(frozen=True, eq=False)
class Step:
    """Result of one step, without a graph."""

    number: int
    """number of the step, from 1"""
    loss: Loss
    """mean over ranks"""
    gradient_norm: float
    """norm of the gradient before clipping"""
    learning_rate: float
    """learning rate of this step"""
    rows: int
    """number of rows on all ranks"""
    tokens: int
    """number of tokens of all views on all ranks"""
    seconds: float
    """wall time on this rank, including `waited_s`"""
    waited_s: float
    """seconds spent waiting for the batch"""
    counts: Mapping[str, int]
    """counts of the batch; in float16 also "overflows", the number of times that the loss scale was halved"""
    reps: tuple[Tensor, ...]
    """(n, dim) vectors of this rank's rows, for each view, computed with the weights before the step"""
    batch: Batch
    """this rank's rows"""


class Training:
    """State of a training on one rank, and its steps.

    The state is the objective with its optimizer, schedule, loss scale, random generators, and `number`, the
    number of the last step. The objective has to be equal on every rank. The generators
    of a rank depend on the seed and the rank.
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
        """Prepare a training.

        Args:
            objective: the objective to train.
            settings: settings of the training.
            steps: number of steps of the whole training, for the schedule.
            steps_per_epoch: number of steps of one pass over the rows.
            device: device to move the objective to.

        Raises:
            ConfigError: no compiler for train.compile, or missing or invalid options of the schedule.
        """
        self.objective, self.settings, self.number = objective.to(device), settings, 0
        prepare_encoders(objective, settings)
        self._sharded = settings.strategy == "fsdp" and world_size() > 1
        if self._sharded:
            from pipeline.train.sharded import shard  # takes a second to import

            shard(objective)
        self.parameters = trainable_parameters(objective)
        self.optimizer = build_optimizer(self.parameters.values(), settings.optimizer)
        self.schedule = Schedule(
            settings.schedule, settings.optimizer.learning_rate, steps=steps, steps_per_epoch=steps_per_epoch
        )
        self.loss_scale, self._generators = LossScale(settings.precision), RandomGenerators(objective)
        seed_all(settings.seed, 0, Ranks().rank)

    @property
    def ended(self) -> bool:
        """True if the schedule ends the training before its last step."""
        return self.schedule.ends_before(self.number + 1)

    def step(self, batch: Batch, waited_s: float = 0.0) -> Step:
        """Update the weights with one batch, which must have the same size on every rank.

        Raises:
            NonFinite: the loss or gradient is not finite; raised on every rank, before the weights change.
        """
        started = time.perf_counter()
        result, norm, overflows = self._gradient(batch)
        rate = self._update(norm)
        self.number += 1
        if isinstance(self.objective, KeepsState):
            self.objective.after_step(result.reps, batch)
        return Step(
            number=self.number,
            loss=result.loss,
            gradient_norm=norm,
            learning_rate=rate,
            rows=len(batch) * world_size(),
            tokens=result.tokens,
            seconds=waited_s + time.perf_counter() - started,
            waited_s=waited_s,
            counts={**batch.counts, "overflows": overflows} if self.loss_scale.adapts else batch.counts,
            reps=result.reps,
            batch=batch,
        )

    def _gradient(self, batch: Batch) -> tuple[StepResult, float, int]:
        """Compute the gradient; after an overflow, repeat with the same random numbers at a lower loss scale.

        Returns:
            The step's result, the norm of the gradient, and the number of overflows.
        """
        random_state, overflows = self._generators.state(), 0
        while True:
            result = loss_and_backward(
                self.objective,
                batch,
                chunk_rows=self.settings.chunk_rows,
                chunk_tokens=self.settings.chunk_tokens,
                scale=self.loss_scale.value,
            )
            unscaled = gradients(self.parameters.values())
            scale_in_place(unscaled, 1 / self.loss_scale.value)
            total = result.loss.total.float()
            # One copy from the device for both values.
            loss, norm = torch.stack([total, total_norm(unscaled).float().to(total.device)]).tolist()
            if math.isfinite(loss) and math.isfinite(norm):
                self.loss_scale.count_success()
                return result, norm, overflows
            if not math.isfinite(loss) or not self.loss_scale.lower():
                raise non_finite_error(self.number + 1, batch, result.loss, self.parameters)
            self.optimizer.zero_grad(set_to_none=True)
            self._generators.restore(random_state)
            overflows += 1

    def _update(self, norm: float) -> float:
        """Clip the gradient and update the weights; return the learning rate."""
        rate, clip = self.schedule.rate(self.number + 1), self.settings.optimizer.clip
        if clip is not None and norm > clip:
            scale_in_place(gradients(self.parameters.values()), clip / norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return rate

    def state(self) -> dict[str, Any]:
        """Return the state to resume from, copied to the CPU, for `torch.save`.

        Every rank has to call this method; the state is empty on all ranks but the first.
        """
        random_states = [self._generators.state()] * world_size()  # one state for each rank
        if world_size() > 1:
            dist.all_gather_object(random_states, random_states[0])
        state = {
            "step": self.number,
            "schedule": self.schedule.state(),
            "loss_scale": self.loss_scale.state(),
            "random": random_states,
            **self._gathered_weights(),
        }
        return {} if Ranks().rank else {name: _copy_to_cpu(part) for name, part in state.items()}

    def _gathered_weights(self) -> dict[str, Any]:
        """Return the states of objective and optimizer, gathered from all shards."""
        if self._sharded:
            from pipeline.train.sharded import gather_full, reshard

            reshard(self.objective)
        states = {
            "objective": self.objective.state_dict(),
            "optimizer": optimizer_state(self.optimizer, self.parameters),
        }
        return gather_full(states) if self._sharded else states

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, which must be equal on every rank.

        Each rank continues its random numbers if there are as many ranks and devices as in the state.
        Otherwise generators are seeded again, from seed, step and rank.
        """
        objective, optimizer = state["objective"], state["optimizer"]
        if self._sharded:
            from pipeline.train.sharded import reshard, shard_like

            reshard(self.objective)
            objective = shard_like(objective, self.objective.state_dict())
            optimizer = shard_like(optimizer, self.parameters)
        self.objective.load_state_dict(objective)
        restore_optimizer(self.optimizer, self.parameters, optimizer)
        self.schedule.restore(state["schedule"])
        self.loss_scale.restore(state["loss_scale"])
        self.number, rank = state["step"], Ranks().rank
        if len(state["random"]) == world_size() and self._generators.fits(state["random"][rank]):
            self._generators.restore(state["random"][rank])
        else:
            seed_all(self.settings.seed, self.number, rank)


def fit(training: Training, batches: Iterator[Batch], *, until: int) -> Iterator[Step]:
    """Train, and yield the steps up to number `until`, or to the end of the schedule.

    Args:
        training: state to continue from.
        batches: endless batches, beginning with the next step's.
        until: number of the last step.

    Raises:
        NonFinite: a loss or gradient is not finite; the step changes no weights.
    """
    while training.number < until and not training.ended:
        started = time.perf_counter()
        batch = next(batches)
        yield training.step(batch, time.perf_counter() - started)


def _copy_to_cpu(value: Any) -> Any:
    """Copy nested dicts and lists, with their tensors on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _copy_to_cpu(item) for key, item in value.items()}
    return type(value)(map(_copy_to_cpu, value)) if isinstance(value, list | tuple) else value
