"""Optimizer steps match the equations of their papers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.errors import Defect
from pipeline.settings.training import OptimizerSettings
from pipeline.train.loop import build_optimizer, gradients, scale_in_place, total_norm, trainable_parameters

RATE, DECAY, STEPS = 0.1, 0.01, 4
GRADIENTS = np.random.default_rng(0).normal(size=(STEPS, 6))


def after_steps(parameter: nn.Parameter, **settings: object) -> np.ndarray:
    optimizer = build_optimizer([parameter], OptimizerSettings(learning_rate=RATE, **settings))
    for gradient in GRADIENTS:
        parameter.grad = torch.from_numpy(gradient).view_as(parameter).clone()
        optimizer.step()
    return parameter.detach().numpy().ravel()


def adam(
    x: np.ndarray,
    decay: float,
    decoupled: bool,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> np.ndarray:
    """Compute Adam (Kingma and Ba 2015, algorithm 1) or AdamW (Loshchilov and Hutter 2019, algorithm 2)."""
    mean, square = np.zeros(6), np.zeros(6)
    for step, gradient in enumerate(GRADIENTS, start=1):
        g = gradient if decoupled else gradient + decay * x
        mean, square = betas[0] * mean + (1 - betas[0]) * g, betas[1] * square + (1 - betas[1]) * g**2
        moved = mean / (1 - betas[0] ** step) / (np.sqrt(square / (1 - betas[1] ** step)) + epsilon)
        x = x - RATE * (moved + (decay * x if decoupled else 0))
    return x


def sgd(x: np.ndarray, decay: float, momentum: float) -> np.ndarray:
    moved = np.zeros(6)
    for gradient in GRADIENTS:
        moved = momentum * moved + gradient + decay * x
        x = x - RATE * moved
    return x


def rmsprop(
    x: np.ndarray, decay: float, momentum: float, alpha: float = 0.99, epsilon: float = 1e-8
) -> np.ndarray:
    """Compute RMSprop (Tieleman and Hinton 2012, lecture 6.5) with momentum (Graves 2013)."""
    square, moved = np.zeros(6), np.zeros(6)
    for gradient in GRADIENTS:
        g = gradient + decay * x
        square = alpha * square + (1 - alpha) * g**2
        moved = momentum * moved + g / (np.sqrt(square) + epsilon)
        x = x - RATE * moved
    return x


CASES: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "adamw": lambda x, decay: adam(x, decay, decoupled=True),
    "adam": lambda x, decay: adam(x, decay, decoupled=False),
    "sgd": lambda x, decay: sgd(x, decay, 0.9),
    "rmsprop": lambda x, decay: rmsprop(x, decay, 0.9),
}


@pytest.mark.parametrize("name", CASES)
def test_matrices_decay_and_vectors_do_not(name: str):
    begin = np.linspace(-1, 1, 6)
    settings = {"name": name, "weight_decay": DECAY, "momentum": 0.9}
    matrix = nn.Parameter(torch.from_numpy(begin.copy()).view(2, 3))
    vector = nn.Parameter(torch.from_numpy(begin.copy()))
    np.testing.assert_allclose(after_steps(matrix, **settings), CASES[name](begin, DECAY), atol=1e-12)
    np.testing.assert_allclose(after_steps(vector, **settings), CASES[name](begin, 0.0), atol=1e-12)


def test_parameters_without_gradient_are_not_updated():
    module = nn.ModuleDict({"frozen": nn.Linear(2, 2).requires_grad_(False), "trained": nn.Linear(2, 2)})
    assert set(trainable_parameters(module)) == {"trained.weight", "trained.bias"}
    with pytest.raises(Defect, match="parameters to train"):
        trainable_parameters(module["frozen"])


def test_the_norm_is_joint_and_scaling_is_in_place():
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(5))]
    parameters[0].grad, parameters[1].grad = torch.tensor([1.0, 2.0, 2.0]), torch.full((2, 2), 2.0)
    assert float(total_norm(gradients(parameters))) == pytest.approx(5.0)
    scale_in_place(gradients(parameters), 0.5)
    assert parameters[0].grad.tolist() == [0.5, 1.0, 1.0]
    assert float(total_norm(gradients(parameters))) == pytest.approx(2.5)
    assert float(total_norm([])) == 0.0
