"""Glow on vectors: an invertible network that maps embeddings to standard normal vectors.

Kingma & Dhariwal 2018 (Glow); Li et al. 2020 (BERT-flow), section 3. A vector is treated as an image of one
pixel, each dimension as a channel. Couplings and permutations preserve volume, so only the actnorms
contribute to the log-determinant.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.settings import FlowSettings

# A log scale is this factor times a parameter, so that it learns faster (code of Kingma & Dhariwal).
_LOG_SCALE_FACTOR = 3.0
_HIDDEN_STD = 0.05  # standard deviation of the initial weights of a coupling's network
_EPSILON = 1e-6  # added to standard deviations before division
_MIN_STD = 1e-4  # relative to the root mean square over dimensions; a dimension below it is constant


class Actnorm(nn.Module):
    """y = (x + b) * exp(3 s) per dimension.

    The first batch sets b and s so that each dimension has mean 0 and variance 1; then they are learned.
    `initialised` is saved with the weights, so that the first batch after loading does not reset them. A
    dimension that is constant in the first batch (`varies` is False) has no variance to divide by, and the
    likelihood would grow with its scale without limit. Its scale is set to that of a dimension of average
    variance, and is not learned.
    """

    varies: Tensor
    initialised: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.b, self.s = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("varies", torch.ones(dim, dtype=torch.bool))
        self.register_buffer("initialised", torch.zeros(1, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        """Shift and scale x (n, dim); the first batch determines shift and scale."""
        if not self.initialised:
            self._initialise(x)
        return (x + self.b) * self.log_scale().exp()

    def inverse(self, y: Tensor) -> Tensor:
        """Undo `forward`: (n, dim) to (n, dim)."""
        return y * torch.exp(-self.log_scale()) - self.b

    def log_scale(self) -> Tensor:
        """3 s, (dim,); constant dimensions get no gradient."""
        return _LOG_SCALE_FACTOR * torch.where(self.varies, self.s, self.s.detach())

    @torch.no_grad()
    def _initialise(self, x: Tensor) -> None:
        """Set shift, scale and `varies` by the first batch."""
        self.b.copy_(-x.mean(dim=0))
        variance = (x + self.b).square().mean(dim=0)
        average_std = variance.mean().sqrt()
        self.varies = variance.sqrt() > _MIN_STD * average_std
        constant_std = average_std if average_std > 0 else torch.ones_like(average_std)
        std = torch.where(self.varies, variance.sqrt() + _EPSILON, constant_std)
        self.s.copy_(-std.log() / _LOG_SCALE_FACTOR)
        self.initialised = torch.ones_like(self.initialised)


class Coupling(nn.Module):
    """[x1, x2] -> [x1, x2 + g(x1)], with log-determinant 0 (Dinh et al. 2014, NICE, section 3)."""

    def __init__(self, g: nn.Module) -> None:
        """Use a network g (n, dim / 2) -> (n, dim / 2), which need not be invertible."""
        super().__init__()
        self.g = g

    def forward(self, x: Tensor) -> Tensor:
        """Map x (n, dim) to (n, dim); the first half stays."""
        first, second = x.chunk(2, dim=1)
        return torch.cat([first, second + self.g(first)], dim=1)

    def inverse(self, z: Tensor) -> Tensor:
        """Undo `forward`: (n, dim) to (n, dim)."""
        first, second = z.chunk(2, dim=1)
        return torch.cat([first, second - self.g(first)], dim=1)


class ZeroLinear(nn.Linear):
    """Linear layer times exp(3 s), initially zero, so that a coupling starts as the identity."""

    def __init__(self, dim_in: int, dim_out: int) -> None:
        super().__init__(dim_in, dim_out)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.s = nn.Parameter(torch.zeros(dim_out))

    def forward(self, x: Tensor) -> Tensor:
        """Map x (n, dim_in) to (n, dim_out)."""
        return super().forward(x) * torch.exp(_LOG_SCALE_FACTOR * self.s)


class FlowStep(nn.Module):
    """Actnorm, then a permutation of the dimensions (dimension order[i] becomes i), then a coupling."""

    order: Tensor

    def __init__(self, actnorm: Actnorm, order: Tensor, coupling: Coupling) -> None:
        super().__init__()
        self.actnorm, self.coupling = actnorm, coupling
        self.register_buffer("order", order)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (n, dim) to (n, dim)."""
        return cast(Tensor, self.coupling(self.actnorm(x)[:, self.order]))

    def inverse(self, z: Tensor) -> Tensor:
        """Undo `forward`: (n, dim) to (n, dim)."""
        return self.actnorm.inverse(self.coupling.inverse(z)[:, torch.argsort(self.order)])


class Glow(nn.Module):
    """Levels of steps; the second half of a level's output skips the following levels."""

    def __init__(self, dim: int, settings: FlowSettings) -> None:
        """Draw initial weights; equal settings give equal weights.

        Raises:
            ConfigError: dim is not divisible by 2^levels.
        """
        super().__init__()
        check_levels(dim, settings.levels)
        self.dim = dim
        generator = torch.Generator().manual_seed(settings.seed)
        self.levels = nn.ModuleList(
            nn.ModuleList(_step(dim >> level, settings, generator) for _ in range(settings.depth))
            for level in range(settings.levels)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map x (n, dim) to z (n, dim): second halves in the order of their levels, then the last output."""
        second_halves: list[Tensor] = []
        for number, level in enumerate(self.levels):
            if number:
                x, second = x.chunk(2, dim=1)
                second_halves.append(second)
            for step in cast(nn.ModuleList, level):
                x = step(x)
        return torch.cat([*second_halves, x], dim=1)

    def inverse(self, z: Tensor) -> Tensor:
        """Undo `forward`: (n, dim) to (n, dim)."""
        widths = [self.dim >> number for number in range(1, len(self.levels))]
        *second_halves, x = z.split([*widths, self.dim >> len(widths)], dim=1)
        for number, level in reversed(list(enumerate(self.levels))):
            for step in reversed(cast(nn.ModuleList, level)):
                x = cast(FlowStep, step).inverse(x)
            if number:
                x = torch.cat([x, second_halves.pop()], dim=1)
        return x

    def log_det(self) -> Tensor:
        """log |det dz/dx|, the same for every x."""
        steps = (cast(FlowStep, step) for level in self.levels for step in cast(nn.ModuleList, level))
        return torch.stack([step.actnorm.log_scale().sum() for step in steps]).sum()

    def log_density(self, x: Tensor) -> Tensor:
        """Natural logarithm of the density p(x), (n,)."""
        return standard_normal_log_density(self(x)) + self.log_det()

    def bits_per_dimension(self, x: Tensor) -> Tensor:
        """Training loss -log2 p(x) / dim, mean over rows; halving all values lowers it by one."""
        return -self.log_density(x).mean() / (self.dim * math.log(2))

    @property
    def varies(self) -> Tensor:
        """Mask (dim,) of the dimensions that were not constant in the first batch."""
        return cast(FlowStep, cast(nn.ModuleList, self.levels[0])[0]).actnorm.varies


def standard_normal_log_density(z: Tensor) -> Tensor:
    """Return the log density (n,) of each row of z (n, d) under N(0, I)."""
    return -0.5 * (z.square() + math.log(2 * math.pi)).sum(dim=1)


def check_levels(dim: int, levels: int) -> None:
    """Check that `dim` can be halved `levels` times.

    Raises:
        ConfigError: names the levels that are possible.
    """
    if dim % 2**levels == 0:
        return
    most_levels = (dim & -dim).bit_length() - 1  # exponent of the largest power of two that divides dim
    raise ConfigError(
        "whiten.flow.levels",
        f"a dimension divisible by {2**levels}, which is 2^levels",
        f"dimension {dim} with {levels} levels",
        f"set whiten.flow.levels to at most {most_levels}"
        if most_levels
        else "an odd dimension allows no level: choose whitening instead of a flow",
    )


def _step(dim: int, settings: FlowSettings, generator: torch.Generator) -> FlowStep:
    """Build a step with a new permutation and new weights."""
    if settings.permutation == "random":
        order = torch.randperm(dim, generator=generator)
    else:
        order = torch.arange(dim).flip(0)
    return FlowStep(Actnorm(dim), order, Coupling(_network(dim // 2, settings.width, generator)))


def _network(dim: int, width: int, generator: torch.Generator) -> nn.Sequential:
    """Build the layers dim -> width -> width -> dim, with actnorm and ReLU after the first two.

    The first two have no biases, because the actnorms after them shift.
    """
    first, second = nn.Linear(dim, width, bias=False), nn.Linear(width, width, bias=False)
    for layer in (first, second):
        nn.init.normal_(layer.weight, std=_HIDDEN_STD, generator=generator)
    return nn.Sequential(
        first, Actnorm(width), nn.ReLU(), second, Actnorm(width), nn.ReLU(), ZeroLinear(width, dim)
    )
