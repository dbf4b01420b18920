"""Glow on vectors: an invertible network that turns embeddings into standard normal ones.

Kingma and Dhariwal 2018 (Glow); Li et al. 2020 (BERT-flow), section 3.

A vector is an image of one pixel: each dimension is a channel. Couplings and permutations keep volumes, so
the log-determinant is that of the actnorms alone.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.settings import FlowSettings

# of every log scale: it then learns three times as fast as the other parameters (Kingma and Dhariwal's
# release)
_FACTOR = 3.0
_HIDDEN_STD = 0.05  # of the initial weights of a coupling's network
_EPSILON = 1e-6  # added to a standard deviation before the first batch is divided by it
_LEAST_STD = 1e-4  # of the root mean square over dimensions; below that a dimension is taken for constant


class Actnorm(nn.Module):
    """y = (x + b) * exp(factor * s) per dimension.

    The first batch it sees sets b and s so that each dimension has mean 0 and variance 1; then they are
    learned.

    `initialised` is kept with the weights: what was loaded is never set by a batch again. A dimension that is
    constant in the first batch (`varies` is False) has no variance to divide by, and more likelihood the
    larger its scale: it gets the scale of a dimension of average variance, and keeps it.
    """

    varies: Tensor
    initialised: Tensor

    def __init__(self, dim: int, factor: float = _FACTOR) -> None:
        super().__init__()
        self.factor = factor
        self.b, self.s = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("varies", torch.ones(dim, dtype=torch.bool))
        self.register_buffer("initialised", torch.zeros(1, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        """(n, dim) -> (n, dim)."""
        if not self.initialised:
            self._initialise(x)
        return (x + self.b) * self.log_scale().exp()

    def inverse(self, y: Tensor) -> Tensor:
        """x of `forward`."""
        return y * torch.exp(-self.log_scale()) - self.b

    def log_scale(self) -> Tensor:
        """factor * s (dim,), without a gradient where a dimension is constant."""
        return self.factor * torch.where(self.varies, self.s, self.s.detach())

    @torch.no_grad()
    def _initialise(self, x: Tensor) -> None:
        self.b.copy_(-x.mean(dim=0))
        variance = (x + self.b).square().mean(dim=0)
        typical = variance.mean().sqrt()
        self.varies = variance.sqrt() > _LEAST_STD * typical
        std = torch.where(
            self.varies, variance.sqrt() + _EPSILON, typical if typical > 0 else torch.ones_like(typical)
        )
        self.s.copy_(-std.log() / self.factor)
        self.initialised = torch.ones_like(self.initialised)


class Coupling(nn.Module):
    """[x1, x2] -> [x1, x2 + g(x1)], log-determinant 0. g: maps halves (n, dim / 2) to halves, and need not be
    invertible. Dinh et al. 2014 (NICE), section 3.
    """

    def __init__(self, g: nn.Module) -> None:
        super().__init__()
        self.g = g

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=1)
        return torch.cat([first, second + self.g(first)], dim=1)

    def inverse(self, z: Tensor) -> Tensor:
        """x of `forward`."""
        first, second = z.chunk(2, dim=1)
        return torch.cat([first, second - self.g(first)], dim=1)


class ZeroLinear(nn.Linear):
    """A linear layer whose outputs are zero at first, times exp(3 s): a coupling starts as the identity."""

    def __init__(self, dim_in: int, dim_out: int) -> None:
        super().__init__(dim_in, dim_out)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.s = nn.Parameter(torch.zeros(dim_out))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.exp(_FACTOR * self.s)


class FlowStep(nn.Module):
    """Actnorm, then a permutation of the dimensions (order[i] comes to place i), then an additive coupling."""

    order: Tensor

    def __init__(self, actnorm: Actnorm, order: Tensor, coupling: Coupling) -> None:
        super().__init__()
        self.actnorm, self.coupling = actnorm, coupling
        self.register_buffer("order", order)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.coupling(self.actnorm(x)[:, self.order]))

    def inverse(self, z: Tensor) -> Tensor:
        """x of `forward`."""
        return self.actnorm.inverse(self.coupling.inverse(z)[:, torch.argsort(self.order)])


class Glow(nn.Module):
    """Levels of steps on vectors of `dim`; after each level but the last the second half is final.

    Equal settings give equal initial weights.

    ConfigError where dim is not divisible by 2^levels.
    """

    def __init__(self, dim: int, settings: FlowSettings) -> None:
        super().__init__()
        check_levels(dim, settings.levels)
        self.dim = dim
        generator = torch.Generator().manual_seed(settings.seed)
        widths = [dim >> level for level in range(settings.levels)]
        self.levels = nn.ModuleList(
            nn.ModuleList(_step(width, settings, generator) for _ in range(settings.depth))
            for width in widths
        )

    def forward(self, x: Tensor) -> Tensor:
        """z (n, dim): the halves that each level gave off, in order, then what the last one made."""
        given_off: list[Tensor] = []
        for number, level in enumerate(self.levels):
            if number:
                x, latent = x.chunk(2, dim=1)
                given_off.append(latent)
            for step in cast(nn.ModuleList, level):
                x = step(x)
        return torch.cat([*given_off, x], dim=1)

    def inverse(self, z: Tensor) -> Tensor:
        """x of `forward` (n, dim)."""
        widths = [self.dim >> number for number in range(1, len(self.levels))]
        *given_off, x = z.split([*widths, self.dim >> len(widths)], dim=1)
        for number, level in reversed(list(enumerate(self.levels))):
            for step in reversed(cast(nn.ModuleList, level)):
                x = cast(FlowStep, step).inverse(x)
            if number:
                x = torch.cat([x, given_off.pop()], dim=1)
        return x

    def log_det(self) -> Tensor:
        """log |det dz/dx|, the same for every x."""
        actnorms = [
            cast(FlowStep, step).actnorm for level in self.levels for step in cast(nn.ModuleList, level)
        ]
        return torch.stack([actnorm.log_scale().sum() for actnorm in actnorms]).sum()

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x) (n,), natural."""
        return standard_normal(self(x)) + self.log_det()

    def bits_per_dimension(self, x: Tensor) -> Tensor:
        """-log2 p(x) / dim, mean over rows: the training loss.

        It falls by one where all dimensions are measured in units twice as large.
        """
        return -self.log_density(x).mean() / (self.dim * math.log(2))

    @property
    def varies(self) -> Tensor:
        """Mask (dim,) of the dimensions that were not constant in the first batch."""
        return cast(FlowStep, cast(nn.ModuleList, self.levels[0])[0]).actnorm.varies


def standard_normal(z: Tensor) -> Tensor:
    """log N(z; 0, I) of each row: (n, d) -> (n,)."""
    return -0.5 * (z.square() + math.log(2 * math.pi)).sum(dim=1)


def check_levels(dim: int, levels: int) -> None:
    """ConfigError that names the levels that fit, where `dim` cannot be halved `levels` times."""
    if dim % 2**levels == 0:
        return
    most = (dim & -dim).bit_length() - 1  # how often two divides it
    raise ConfigError(
        "whiten.flow.levels",
        f"a dimension divisible by {2**levels}, which is 2^levels",
        f"dimension {dim} with {levels} levels",
        f"set whiten.flow.levels to at most {most}"
        if most
        else "none fits an odd dimension: choose whitening",
    )


def _step(dim: int, settings: FlowSettings, generator: torch.Generator) -> FlowStep:
    drawn = (
        torch.randperm(dim, generator=generator)
        if settings.permutation == "random"
        else torch.arange(dim).flip(0)
    )
    return FlowStep(Actnorm(dim), drawn, Coupling(_network(dim // 2, settings.width, generator)))


def _network(dim: int, width: int, generator: torch.Generator) -> nn.Sequential:
    """dim -> width -> width -> dim, actnorm and ReLU after the first two layers, whose biases the actnorms
    have.
    """
    first, second = nn.Linear(dim, width, bias=False), nn.Linear(width, width, bias=False)
    for layer in (first, second):
        nn.init.normal_(layer.weight, std=_HIDDEN_STD, generator=generator)
    return nn.Sequential(
        first, Actnorm(width), nn.ReLU(), second, Actnorm(width), nn.ReLU(), ZeroLinear(width, dim)
    )
