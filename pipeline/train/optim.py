"""Optimizers, their state by parameter name, and norms and scaling of gradients."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from pipeline.errors import Defect
from pipeline.settings.training import OptimizerSettings
from pipeline.train.gather import is_sharded, local_shard, mean_over_ranks, world_size


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

    Biases and normalizations have none. Sharded parameters are in groups of their own, because torch's fused
    optimizers do not accept a mixture.
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
    """Return the optimizer's state of each parameter, by name."""
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
