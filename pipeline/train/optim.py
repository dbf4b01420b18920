"""Optimizers, their state by parameter name, and gradient norms."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from pipeline.errors import Defect
from pipeline.settings.training import OptimizerSettings
from pipeline.train.gather import is_sharded, local, mean_over_ranks, world_size


def trainable_parameters(module: nn.Module) -> dict[str, Parameter]:
    """Return the parameters that require a gradient, by name; Defect if there are none."""
    found = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not found:
        raise Defect(
            "objective", "parameters to train", "none with a gradient", "check which parameters it freezes"
        )
    return found


def build_optimizer(parameters: Iterable[Parameter], settings: OptimizerSettings) -> Optimizer:
    """Create the optimizer, with weight decay on matrices and embedding tables only (Devlin et al. 2019).

    Biases and normalizations have none. Shards have their own groups.
    """
    groups: dict[tuple[bool, bool], list[Parameter]] = {}
    for parameter in parameters:
        groups.setdefault((parameter.ndim >= 2, is_sharded(parameter)), []).append(parameter)
    decayed: list[dict[str, object]] = [
        {"params": group, "weight_decay": settings.weight_decay if matrices else 0.0}
        for (matrices, _), group in groups.items()
    ]
    rate, betas, epsilon = settings.learning_rate, settings.betas, settings.epsilon
    if settings.name == "sgd":
        return SGD(decayed, lr=rate, momentum=settings.momentum, fused=True)
    if settings.name == "rmsprop":
        return RMSprop(decayed, lr=rate, momentum=settings.momentum, eps=epsilon)
    kind = AdamW if settings.name == "adamw" else Adam
    return kind(decayed, lr=rate, betas=betas, eps=epsilon, fused=True)


def optimizer_state(optimizer: Optimizer, parameters: Mapping[str, Parameter]) -> dict[str, dict[str, Any]]:
    """Return the optimizer's state of each parameter, by name."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    return {names[id(parameter)]: dict(state) for parameter, state in optimizer.state.items()}


def restore_optimizer(
    optimizer: Optimizer, parameters: Mapping[str, Parameter], state: Mapping[str, Mapping[str, Any]]
) -> None:
    """Restore the state returned by `optimizer_state`, in copies of its tensors."""
    order = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    numbered = {order.index(id(parameters[name])): copy.deepcopy(dict(one)) for name, one in state.items()}
    optimizer.load_state_dict({"state": numbered, "param_groups": optimizer.state_dict()["param_groups"]})


def gradients(parameters: Iterable[Parameter]) -> list[Tensor]:
    """Return all gradients that exist."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm of all tensors as one vector, including the shards on all ranks; 0 for no tensors."""
    total = torch.nn.utils.get_total_norm([tensor for tensor in tensors if not is_sharded(tensor)])
    shards = [local(tensor) for tensor in tensors if is_sharded(tensor)]
    if not shards:
        return total
    squares = mean_over_ranks(torch.nn.utils.get_total_norm(shards).double().square()) * world_size()
    return (total.to(squares).square() + squares).sqrt()


def scale(tensors: Sequence[Tensor], factor: float) -> None:
    """Multiply tensors in place."""
    if factor != 1.0 and tensors:
        torch._foreach_mul_([local(tensor) for tensor in tensors], factor)
