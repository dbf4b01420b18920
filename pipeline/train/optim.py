"""What moves the weights."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from pipeline.errors import Defect
from pipeline.settings.training import OptimizerSettings


def trained(module: nn.Module) -> dict[str, Parameter]:
    """Parameters that move, by name: momentum encoders and teachers are without a gradient. Defect where there is none."""
    found = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not found:
        raise Defect("objective", "parameters to train", "none with a gradient", "look at what it freezes")
    return found


def optimizer_of(parameters: Iterable[Parameter], settings: OptimizerSettings) -> Optimizer:
    """Weight decay on matrices and embedding tables; on biases and normalisations none, as BERT was trained (Devlin et al. 2019)."""
    parameters = list(parameters)
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    others = [parameter for parameter in parameters if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return _made([group for group in groups if group["params"]], settings)


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
    """The length of all of them as one vector; 0 of none."""
    return torch.nn.utils.get_total_norm(tensors)


def scale(tensors: Sequence[Tensor], factor: float) -> None:
    """Multiply them in place."""
    if factor != 1.0 and tensors:
        torch._foreach_mul_(list(tensors), factor)
