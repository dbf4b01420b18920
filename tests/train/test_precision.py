"""Mixed precision, checkpointed layers and compilation change a step by no more than rounding."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import Batch, Loss
from pipeline.objectives.simcse import SimCSE
from pipeline.objectives.supervised import Supervised
from pipeline.settings import EncoderSettings
from pipeline.settings.training import OptimizerSettings, ScheduleSettings, TrainSettings
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.train.check_finite import NonFinite
from pipeline.train.gradcache import loss_and_backward
from pipeline.train.loop import Training, fit
from pipeline.train.precision import LossScale, prepare_encoders
from tests.models.folders import LONG, save_folder
from tests.models.trainable.layer_calls import layer_calls
from tests.objectives.tiny import Tiny, assert_same, pop_gradients
from tests.train.small import STEPS, rows_of

PLAIN = {
    "optimizer": OptimizerSettings(name="sgd", learning_rate=0.01, clip=None),
    "schedule": ScheduleSettings(name="constant"),
}


@pytest.fixture(scope="module", params=["bert", "mpnet"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("encoder"), request.param)


def batch_for(folder: Path, rows: int = 20) -> Batch:
    """Return texts of 1 to 29 words."""
    rng, words = np.random.default_rng(0), LONG.split()[:16]
    drawn = [" ".join(rng.choice(words, rng.integers(1, 30))) for _ in range(rows)]
    return Batch({"text": drawn}, np.arange(rows), load_tokenizer(folder, 64))


def step(
    folder: Path, dropout: float, chunk_rows: int | None = None, **settings: Any
) -> tuple[Loss, dict[str, Tensor], tuple[Tensor, ...]]:
    """Return loss, gradients and vectors of a SimCSE step, without an update."""
    torch.manual_seed(0)
    objective = SimCSE(
        load_trainable(open_folder(EncoderSettings(path=str(folder))), dropout=dropout), temperature=0.2
    )
    prepare_encoders(objective, TrainSettings(**settings))
    torch.manual_seed(1)
    outcome = loss_and_backward(objective, batch_for(folder), chunk_rows=chunk_rows)
    return outcome.loss, pop_gradients(objective), outcome.reps


def cosine(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    a, b = (torch.cat([each[name].flatten() for name in expected]) for each in (found, expected))
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


@pytest.mark.parametrize(("precision", "least", "most"), [("bfloat16", 1e-4, 0.02), ("float16", 1e-5, 0.003)])
def test_in_half_precision_vectors_and_gradients_are_float32_and_close(
    folder: Path, precision: str, least: float, most: float
):
    loss, expected, vectors = step(folder, 0.0)
    half_loss, found, half_vectors = step(folder, 0.0, precision=precision)
    assert {value.dtype for value in (*found.values(), *half_vectors, half_loss.total)} == {torch.float32}
    difference = float((half_vectors[0] - vectors[0]).norm() / vectors[0].norm())
    assert least < difference < most  # bfloat16 has 8 significant bits, float16 has 11
    assert float(half_loss.total) == pytest.approx(float(loss.total), rel=0.01)
    assert cosine(found, expected) > 0.99


def test_in_bfloat16_chunks_do_not_change_the_gradient(folder: Path):
    _, expected, _ = step(folder, 0.0, precision="bfloat16")
    _, found, _ = step(folder, 0.0, chunk_rows=7, precision="bfloat16")
    assert cosine(found, expected) > 0.999


def test_in_bfloat16_checkpointing_does_not_change_the_gradient_with_dropout(folder: Path):
    _, expected, _ = step(folder, 0.1, precision="bfloat16")
    _, found, _ = step(folder, 0.1, precision="bfloat16", checkpoint_layers=True)
    assert cosine(found, expected) > 0.9999


def test_in_float32_checkpointing_does_not_change_the_gradient_with_dropout(folder: Path):
    _, expected, _ = step(folder, 0.1)
    _, found, _ = step(folder, 0.1, checkpoint_layers=True)
    assert_same(found, expected, tolerance=1e-5)


@pytest.mark.parametrize("checkpoint_layers", [False, True])
def test_checkpointed_layers_are_computed_again_in_the_backward_pass(folder: Path, checkpoint_layers: bool):
    objective = SimCSE(load_trainable(open_folder(EncoderSettings(path=str(folder)))))
    prepare_encoders(objective, TrainSettings(checkpoint_layers=checkpoint_layers))
    backbone = objective.encoder.backbone
    calls = layer_calls(backbone, lambda: loss_and_backward(objective, batch_for(folder)))
    assert list(calls.values()) == backbone.depth * [2 if checkpoint_layers else 1]


@pytest.mark.slow
def test_compilation_does_not_change_the_gradient(tmp_path: Path):
    folder = save_folder(tmp_path, "bert")
    try:
        _, found, _ = step(folder, 0.0, compile=True)
    except ConfigError:
        pytest.skip("no C++ compiler")
    _, expected, _ = step(folder, 0.0)
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert_same(found, expected, tolerance=1e-5 * max(1.0, largest))


def test_compiling_without_a_compiler_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", (None, str(tmp_path / "none")))
    objective = SimCSE(load_trainable(open_folder(EncoderSettings(path=str(save_folder(tmp_path, "bert"))))))
    with pytest.raises(ConfigError, match=r"train.compile.*compiler"):
        prepare_encoders(objective, TrainSettings(compile=True))


class _HalfBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.half().to(gradient.dtype)


class HalfEncoder(Tiny):
    """Encoder whose gradient passes through float16, so that large values overflow and small ones vanish."""

    def forward(self, *tokens: Any, **options: Any) -> Tensor:
        return _HalfBackward.apply(super().forward(*tokens, **options))


class Weighted(Supervised):
    """Objective with a weight, with which gradients are too large or too small for float16."""

    weight = 1.0

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        return super().loss(reps, batch) * self.weight


def weighted(
    weight: float,
    encoder: type[Tiny] = HalfEncoder,
    precision: str = "float16",
    chunk_rows: int | None = None,
) -> Training:
    torch.manual_seed(0)
    objective = Weighted(encoder(dropout=0.2), temperature=0.3, head="none")
    objective.weight = weight
    return Training(
        objective,
        TrainSettings(**PLAIN, precision=precision, chunk_rows=chunk_rows),
        steps=STEPS,
        steps_per_epoch=3,
    )


def first_gradient_norm(made: Training) -> float:
    [step] = fit(made, rows_of(), until=1)
    return step.gradient_norm


@pytest.mark.parametrize("chunk_rows", [None, 4])
def test_after_an_overflow_the_step_repeats_with_a_lower_scale(chunk_rows: int | None):
    expected = first_gradient_norm(weighted(2_000.0, Tiny, "float32", chunk_rows))
    half = weighted(2_000.0, chunk_rows=chunk_rows)
    steps = list(fit(half, rows_of(), until=3))
    assert steps[0].gradient_norm == pytest.approx(expected, rel=0.01)
    assert steps[0].counts["overflows"] >= 1
    assert half.loss_scale.value == 2 ** (16 - sum(step.counts["overflows"] for step in steps))
    assert all(value.grad is None for value in half.parameters.values())
    resumed = weighted(2_000.0, chunk_rows=chunk_rows)
    resumed.restore(half.state())
    assert resumed.loss_scale.value == half.loss_scale.value < 2**16


def test_the_loss_scale_preserves_small_gradients():
    expected = first_gradient_norm(weighted(1e-7, Tiny, "float32"))
    scaled = first_gradient_norm(weighted(1e-7))
    unscaled = first_gradient_norm(weighted(1e-7, precision="float32"))
    assert scaled == pytest.approx(expected, rel=0.01)
    assert unscaled != pytest.approx(expected, rel=0.1)


def test_gradients_that_no_scale_makes_finite_are_refused():
    half = weighted(1e9)
    with pytest.raises(NonFinite, match="a gradient of encoder"):
        list(fit(half, rows_of(), until=1))
    assert half.loss_scale.value == 1.0


def test_the_scale_doubles_after_many_steps_and_can_be_restored():
    scale = LossScale("float16")
    for _ in range(1_999):
        scale.count_success()
    restored = LossScale("float16")
    restored.restore(scale.state())
    restored.count_success()
    assert (scale.value, restored.value) == (2.0**16, 2.0**17)
    assert restored.lower()
    assert restored.value == 2.0**16
    assert not LossScale("bfloat16").lower()


def test_steps_in_half_precision_lower_the_loss(folder: Path):
    torch.manual_seed(0)
    encoder = load_trainable(open_folder(EncoderSettings(path=str(folder))), dropout=0.1)
    settings = TrainSettings(optimizer=OptimizerSettings(learning_rate=1e-3), precision="bfloat16")
    made = Training(SimCSE(encoder, temperature=0.2), settings, steps=8, steps_per_epoch=8)
    steps = list(fit(made, itertools.repeat(batch_for(folder)), until=8))
    assert float(steps[-1].loss.total) < 0.9 * float(steps[0].loss.total)
