"""Linear layers in 8-bit integers: the integers of a formula in numpy, and the accuracy that 8 bits allow."""

import numpy as np
import pytest
import torch

from pipeline.device import Device
from pipeline.errors import ConfigError
from pipeline.models.layers.linear import ACTIVATIONS, LEAST_ACTIVATIONS
from pipeline.models.layers.numerics import arithmetic_of, use_threads
from pipeline.models.layers.quantized import QuantizedLinear
from pipeline.settings import EncodeSettings

needs_vnni = pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="no AVX512_VNNI")
LEAST = -0.17


def layer(outer: int, inner: int, **options) -> tuple[np.ndarray, np.ndarray, QuantizedLinear]:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(outer, inner)).astype(np.float32) * rng.uniform(0.01, 1, (outer, 1))
    weight, bias = weight.astype(np.float32), rng.normal(size=outer).astype(np.float32)
    return weight, bias, QuantizedLinear(torch.tensor(weight), torch.tensor(bias), rows=64, **options)


def inputs(rows: int, inner: int, least: float | None = None) -> np.ndarray:
    """Return rows of sizes from 0.001 to 1,000."""
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(rows, inner)) * 10.0 ** rng.uniform(-3, 3, (rows, 1))).astype(np.float32)
    return x if least is None else np.maximum(x, np.float32(least))


def by_formula(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, least: float | None) -> np.ndarray:
    """Quantize with one scale for each row of x and of the weight, multiply as integers, and scale back."""
    zero = 128 if least is None else 16
    scale = x.max(1, keepdims=True) / (255 - zero)
    scale = np.maximum(scale, x.min(1, keepdims=True) / -127 if least is None else -least / zero)
    codes = np.rint(x * (1 / scale)).astype(np.int64)
    assert codes.min() >= -zero
    assert codes.max() <= 255 - zero
    of_outputs = np.abs(weight).max(1, keepdims=True) / np.float32(127)
    integers = np.rint(weight / of_outputs).astype(np.int64)
    return codes @ integers.T * scale * of_outputs.T + bias


@needs_vnni
@pytest.mark.parametrize("least", [None, LEAST])
@pytest.mark.parametrize(("outer", "inner"), [(64, 32), (1152, 384), (50, 1536)])
def test_a_layer_computes_the_integers_of_the_formula(outer, inner, least):
    weight, bias, quantized = layer(outer, inner, least=least)
    x = inputs(40, inner, least)
    np.testing.assert_allclose(
        quantized(torch.tensor(x)),
        by_formula(x, weight, bias, least),
        rtol=2e-5,
        atol=1e-5 * np.abs(x).max(),
    )


@needs_vnni
@pytest.mark.parametrize("activation", LEAST_ACTIVATIONS)
def test_the_error_is_that_of_rounding_inputs_and_weights_to_8_bits(activation):
    x = ACTIVATIONS[activation](torch.randn(100, 768, generator=torch.manual_seed(0)) * 2)
    assert x.min() > LEAST_ACTIVATIONS[activation]
    weight, bias, quantized = layer(200, 768, least=LEAST_ACTIVATIONS[activation])
    exact = x.double().numpy() @ weight.T.astype(float) + bias
    error, size = quantized(x).numpy() - exact, np.linalg.norm(exact - bias, axis=0)
    # independent rounding errors of half a step at most: a step of 1/127 of the largest weight and 1/239 of
    # the largest input
    lowest = -LEAST_ACTIVATIONS[activation] / 16
    largest = np.abs(weight).max(1) / 127, (x.amax(1) / 239).clamp_min(lowest).numpy()
    expected = np.sqrt(
        (largest[0] ** 2)[None] * (x.numpy() ** 2).sum(1)[:, None] / 12
        + (largest[1] ** 2)[:, None] * (weight**2).sum(1)[None] / 12
    )
    assert 0.7 < float(np.sqrt((error**2 / expected**2).mean())) < 1.3
    assert (np.linalg.norm(error, axis=0) < 0.03 * size).all()


@needs_vnni
@pytest.mark.parametrize("least", [None, LEAST])
def test_the_bits_of_a_row_depend_neither_on_other_rows_nor_on_threads(least):
    *_, quantized = layer(384, 1536, activation="gelu", least=least)
    x = torch.tensor(inputs(1_000, 1_536, least))
    expected = quantized(x)
    order = torch.randperm(1_000, generator=torch.manual_seed(0))
    assert torch.equal(quantized(x[order]), expected[order])
    assert torch.equal(torch.cat([quantized(part) for part in x.split(64)]), expected)
    for threads in (2, 3):
        with use_threads(threads):
            assert torch.equal(quantized(x), expected)


@needs_vnni
def test_rows_of_zeros_give_the_bias_and_values_that_are_not_finite_stay_so():
    _, bias, quantized = layer(32, 64)
    x = torch.zeros(4, 64)
    x[1, 5], x[2, 5], x[3] = torch.nan, torch.inf, 1.0
    y = quantized(x)
    np.testing.assert_array_equal(y[0], bias)
    assert not y[1:3].isfinite().any()
    assert y[3].isfinite().all()


@needs_vnni
def test_a_layer_without_bias_is_the_one_with_a_bias_of_zeros():
    weight = torch.randn(32, 64, generator=torch.manual_seed(0))
    x = torch.randn(9, 64, generator=torch.manual_seed(1))
    without, zeros = (QuantizedLinear(weight, bias, rows=64) for bias in (None, torch.zeros(32)))
    assert torch.equal(without(x), zeros(x))


def test_devices_without_the_instructions_are_refused_by_their_names(monkeypatch):
    settings = EncodeSettings(dtype="int8")
    with pytest.raises(ConfigError, match=r"encode\.dtype.*on a GPU.*int8"):
        arithmetic_of(settings, Device("cuda"), 64)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(ConfigError, match=r"encode\.dtype.*AVX512_VNNI"):
        arithmetic_of(settings, Device("cpu"), 64)
