"""What moves the weights."""

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


def trained(module: nn.Module) -> dict[str, Parameter]:
    """Parameters that move, by name: momentum encoders and teachers are without a gradient. Defect where there is none."""
    found = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not found:
        raise Defect("objective", "parameters to train", "none with a gradient", "look at what it freezes")
    return found


def optimizer_of(parameters: Iterable[Parameter], settings: OptimizerSettings) -> Optimizer:
    """Weight decay on matrices and embedding tables; on biases and normalisations none, as BERT was trained (Devlin et al. 2019). Shards have groups of their own."""
    groups: dict[tuple[bool, bool], list[Parameter]] = {}
    for parameter in parameters:
        groups.setdefault((parameter.ndim >= 2, is_sharded(parameter)), []).append(parameter)
    return _made(
        [
            {"params": group, "weight_decay": settings.weight_decay if matrices else 0.0}
            for (matrices, _), group in groups.items()
        ],
        settings,
    )


def state_of(optimizer: Optimizer, parameters: Mapping[str, Parameter]) -> dict[str, dict[str, Any]]:
    """What the optimizer knows of each parameter, by its name."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    return {names[id(parameter)]: dict(state) for parameter, state in optimizer.state.items()}


def restore_state(
    optimizer: Optimizer, parameters: Mapping[str, Parameter], state: Mapping[str, Mapping[str, Any]]
) -> None:
    """Go on from what `state_of` told, in tensors of its own."""
    order = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    numbered = {order.index(id(parameters[name])): copy.deepcopy(dict(one)) for name, one in state.items()}
    optimizer.load_state_dict({"state": numbered, "param_groups": optimizer.state_dict()["param_groups"]})


def _made(groups: list[dict[str, object]], settings: OptimizerSettings) -> Optimizer:
    rate, betas, epsilon = settings.learning_rate, settings.betas, settings.epsilon
    if settings.name == "adamw":
        return AdamW(groups, lr=rate, betas=betas, eps=epsilon, fused=True)
    if settings.name == "adam":
        return Adam(groups, lr=rate, betas=betas, eps=epsilon, fused=True)
    if settings.name == "sgd":
        return SGD(groups, lr=rate, momentum=settings.momentum, fused=True)
    return RMSprop(groups, lr=rate, momentum=settings.momentum, eps=epsilon)


def gradients(parameters: Iterable[Parameter]) -> list[Tensor]:
    """Those that there are."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def norm_of(tensors: Sequence[Tensor]) -> Tensor:
    """The length of all of them as one vector, shards on all ranks included; 0 of none."""
    total = torch.nn.utils.get_total_norm([tensor for tensor in tensors if not is_sharded(tensor)])
    shards = [local(tensor) for tensor in tensors if is_sharded(tensor)]
    if not shards:
        return total
    squares = mean_over_ranks(torch.nn.utils.get_total_norm(shards).double().square()) * world_size()
    return (total.to(squares).square() + squares).sqrt()


def scale(tensors: Sequence[Tensor], factor: float) -> None:
    """Multiply them in place."""
    if factor != 1.0 and tensors:
        torch._foreach_mul_([local(tensor) for tensor in tensors], factor)
