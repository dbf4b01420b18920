"""Glow on vectors: values of each part, invertibility, the density, and initialisation by the first batch."""

import io
import math

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.errors import ConfigError
from pipeline.models.layers.glow import (
    Actnorm,
    Coupling,
    FlowStep,
    Glow,
    check_levels,
    standard_normal_log_density,
)
from pipeline.settings import FlowSettings

X = torch.tensor([[1.0, 2, 3, 4]], dtype=torch.float64)
REVERSED = torch.arange(4).flip(0)


def actnorm(factor: float) -> Actnorm:
    """Layer with the location and `factor` times the log scale of the worked example."""
    layer = Actnorm(4).double()
    layer.load_state_dict(
        {
            "b": torch.tensor([-0.5, 0, 0.5, 1]),
            "s": torch.tensor([0.1, -0.1, 0, 0.2]) * factor / 3,
            "varies": torch.ones(4, dtype=torch.bool),
            "initialised": torch.ones(1, dtype=torch.bool),
        }
    )
    return layer


def mixed(rows: int, dim: int, seed: int = 0) -> torch.Tensor:
    """Draw rows of correlated normal values with mean 1; the mixing matrix is the same for every seed."""
    mix = np.random.default_rng(99).normal(size=(dim, dim)) / dim**0.5
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)) @ mix + 1)


def perturbed(dim: int, settings: FlowSettings, noise: float = 0.1) -> Glow:
    """Return a flow in double precision after its first batch, with noise added to its initial weights."""
    glow = Glow(dim, settings).double()
    glow(mixed(64, dim))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in glow.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return glow


@pytest.mark.parametrize(
    ("factor", "expected", "log_det"),
    [
        (1.0, [0.552585, 1.809675, 3.5, 6.107014], 0.2),
        (3.0, [0.674929, 1.481636, 3.5, 9.110594], 0.6),
    ],
)
def test_actnorm_matches_stored_values(factor: float, expected: list[float], log_det: float):
    layer = actnorm(factor)
    np.testing.assert_allclose(layer(X).detach()[0], expected, atol=1e-6)
    assert layer.log_scale().sum().item() == pytest.approx(log_det, abs=1e-6)
    np.testing.assert_allclose(layer.inverse(layer(X)).detach(), X, atol=1e-12)


def test_step_and_likelihood_match_a_worked_example():
    g = nn.Linear(2, 2, bias=False).double()
    g.weight.data = torch.tensor([[0.5, -0.25], [0, 1]], dtype=torch.float64)
    step = FlowStep(actnorm(1.0), REVERSED, Coupling(g))
    z = step(X)
    np.testing.assert_allclose(z.detach()[0], [6.107014, 3.5, 3.988182, 4.052585], atol=1e-6)
    log_density = (standard_normal_log_density(z) + step.actnorm.log_scale().sum()).item()
    assert log_density == pytest.approx(-44.413084, abs=1e-5)  # z to six decimals: up to 9e-6 in |z|^2 / 2
    assert -log_density / (4 * math.log(2)) == pytest.approx(16.018634, abs=1e-6)
    np.testing.assert_allclose(step.inverse(z).detach(), X, atol=1e-12)


def test_initialisation_matches_stored_values():
    layer = Actnorm(2).double()
    out = layer(torch.tensor([[1.0, 2], [3, -2]], dtype=torch.float64)).detach()
    np.testing.assert_allclose(layer.b.detach(), [-2, 0], atol=1e-6)
    np.testing.assert_allclose(layer.log_scale().exp().detach(), [0.999999, 0.5], atol=1e-6)
    np.testing.assert_allclose(out, [[-0.999999, 1], [0.999999, -1]], atol=1e-6)


def test_an_actnorm_standardises_its_first_batch_and_no_other():
    layer, x = Actnorm(16), mixed(500, 16).float() * 7 + 100
    y = layer(x).detach().double()
    np.testing.assert_allclose(y.mean(dim=0), 0, atol=1e-5)
    np.testing.assert_allclose(y.square().mean(dim=0), 1, atol=1e-4)
    assert layer.initialised
    scale = layer.log_scale().detach().clone()
    layer(x * 100)
    assert torch.equal(layer.log_scale(), scale)


def test_a_constant_dimension_gets_the_mean_variance_and_is_not_trained():
    x = mixed(64, 8).float() / 10
    x[:, 2], x[:, 5] = 0.25, -1e3
    layer = Actnorm(8)
    y = layer(x)
    assert layer.varies.tolist() == [True, True, False, True, True, False, True, True]
    assert y.abs().max() < 10
    log_scale = layer.log_scale().detach()
    mean_variance = torch.exp(-2 * log_scale[layer.varies]).sum() / 8  # of 8 dimensions, two of them constant
    np.testing.assert_allclose(torch.exp(-2 * log_scale[[2, 5]]), mean_variance, rtol=1e-4)
    layer.log_scale().sum().backward()
    assert layer.s.grad is not None
    assert layer.s.grad[[2, 5]].tolist() == [0, 0]
    assert (layer.s.grad[layer.varies] == 3).all()


@pytest.mark.parametrize(
    "settings",
    [
        FlowSettings(),
        FlowSettings(levels=1, depth=1),
        FlowSettings(levels=3, depth=2, width=5, permutation="random", seed=4),
    ],
)
def test_the_log_determinant_is_that_of_the_jacobian(settings: FlowSettings):
    glow = perturbed(8, settings)
    for row in mixed(5, 8, seed=2):
        jacobian = torch.autograd.functional.jacobian(lambda x: glow(x[None])[0], row)
        assert torch.linalg.slogdet(jacobian).logabsdet.item() == pytest.approx(
            glow.log_det().item(), abs=1e-7
        )


@pytest.mark.parametrize(("dim", "levels"), [(8, 3), (48, 2), (384, 1), (384, 7)])
@pytest.mark.parametrize("permutation", ["reverse", "random"])
def test_inverse_undoes_forward_in_float32(dim: int, levels: int, permutation: str):
    glow = perturbed(dim, FlowSettings(levels=levels, permutation=permutation), noise=0.01).float()
    x = mixed(100, dim, seed=3).float()
    with torch.no_grad():
        z = glow(x)
        assert z.shape == x.shape
        assert (glow.inverse(z) - x).abs().max() < 1e-4


def test_couplings_start_as_the_identity():
    settings = FlowSettings(levels=1, depth=2, permutation="reverse")
    glow = Glow(16, settings).double()
    x = mixed(64, 16)
    # two reversals cancel, and the second actnorm sees values that are standardised already
    standardized = (x - x.mean(dim=0)) / (x.std(dim=0, correction=0) + 1e-6)
    np.testing.assert_allclose(glow(x).detach(), standardized, atol=1e-5)
    assert not np.allclose(perturbed(16, settings)(x).detach(), standardized, atol=0.1)


def test_every_level_splits_off_the_second_half():
    """Two levels without couplings: the second half of the first level's output comes first in z."""
    glow = Glow(8, FlowSettings(levels=2, depth=1, permutation="reverse")).double()
    x = mixed(64, 8)
    first = ((x - x.mean(dim=0)) / (x.std(dim=0, correction=0) + 1e-6)).flip(1)
    np.testing.assert_allclose(
        glow(x).detach(), torch.cat([first[:, 4:], first[:, :4].flip(1)], dim=1), atol=1e-5
    )


def test_by_default_each_step_has_its_own_random_permutation_that_follows_from_the_seed():
    def orders(seed: int) -> list[list[int]]:
        states = Glow(64, FlowSettings(seed=seed)).state_dict()
        return [value.tolist() for name, value in states.items() if name.endswith(".order")]

    assert all(sorted(order) == list(range(len(order))) for order in orders(0))
    assert all(order != list(range(len(order)))[::-1] for order in orders(0)), (
        "no step has the order of permutation=reverse"
    )
    assert len({tuple(order) for order in orders(0)}) == 6, "two levels of three steps have six permutations"
    assert orders(0) == orders(0) != orders(1)


def test_weights_depend_on_the_seed_only():
    states = [Glow(16, FlowSettings(permutation="random", seed=seed)).state_dict() for seed in (3, 3, 4)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["levels.0.0.order"], states[2]["levels.0.0.order"])
    assert not torch.equal(
        states[0]["levels.0.0.coupling.g.0.weight"], states[2]["levels.0.0.coupling.g.0.weight"]
    )


def test_a_reloaded_model_is_not_initialised_again():
    glow, file = Glow(16, FlowSettings()), io.BytesIO()
    x = mixed(64, 16).float()
    z = glow(x)
    torch.save(glow.state_dict(), file)
    reloaded = Glow(16, FlowSettings())
    reloaded.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
    reloaded.train()(5 * x + 3)  # would set every actnorm if the flags were not saved
    assert torch.equal(reloaded(x), z)


@pytest.mark.parametrize(
    ("dim", "levels", "remedy"),
    [(50, 2, "at most 1"), (384, 8, "at most 7"), (33, 1, "an odd dimension allows no level")],
)
def test_a_dimension_not_divisible_by_the_levels_is_refused(dim: int, levels: int, remedy: str):
    with pytest.raises(
        ConfigError,
        match=(
            rf"levels: expected .* divisible by {2**levels}.*dimension {dim} with {levels} levels; "
            rf".*{remedy}"
        ),
    ):
        Glow(dim, FlowSettings(levels=levels))
    check_levels(384, 7)
