"""Training a flow raises the likelihood, resumes bit for bit, and stops if the likelihood is not finite."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from pipeline.errors import DataError
from pipeline.models.layers.numerics import use_threads
from pipeline.settings import FlowSettings
from pipeline.train.bert_flow import Diverged, FlowTrainer, HeldOut
from pipeline.transforms.compare import DevPairs
from pipeline.transforms.flow import Flow

DIM = 32
SETTINGS = FlowSettings(learning_rate=3e-3)


def nonlinear_rows(rows: int, seed: int = 0) -> np.ndarray:
    """Return vectors whose second half is a nonlinear function of the first, which scaling cannot undo."""
    rng = np.random.default_rng(seed)
    first, noise = rng.normal(size=(2, rows, DIM // 2))
    mix = np.random.default_rng(9).normal(size=(DIM // 2, DIM // 2)) / 4
    return np.concatenate([first, np.abs(first @ mix) + 0.2 * noise], axis=1).astype(np.float32)


HELD = HeldOut(nonlinear_rows(500, seed=1))


def run(trainer: FlowTrainer, rows: np.ndarray, steps: range) -> FlowTrainer:
    """Train on 32 rows in each of the steps, after the initialization if there was none."""
    with use_threads(1):
        if not trainer.curve:
            trainer.initialize(rows[:32], HELD)
        for step in steps:
            trainer.train_step(rows[32 * step : 32 * step + 32])
    return trainer


def fresh(settings: FlowSettings = SETTINGS) -> FlowTrainer:
    return FlowTrainer(DIM, settings, torch.device("cpu"))


def test_training_raises_the_likelihood_of_held_out_rows():
    trainer = run(fresh(), nonlinear_rows(9600), range(300))
    trainer.evaluate(HELD)
    start, end = trainer.curve
    assert (start.step, start.train, end.step) == (0, None, 300)
    assert end.train is not None
    assert end.heldout < start.heldout - 0.1
    assert abs(end.train - end.heldout) < 0.3


def test_the_curve_has_the_likelihood_and_the_score_on_dev_of_the_flow():
    trainer = run(fresh(), nonlinear_rows(640), range(20))
    rng = np.random.default_rng(5)
    pairs = DevPairs(nonlinear_rows(60, seed=3), nonlinear_rows(60, seed=4), rng.normal(size=60))
    held = HeldOut(HELD.rows, pairs, lambda raw: 2 * raw)
    trainer.evaluate(held)
    flow = trainer.to_flow(held, 640, "a space")
    z, left, right = flow(HELD.rows).astype(np.float64), flow(2 * pairs.left), flow(2 * pairs.right)
    log_det = sum(3 * tensor.sum() for name, tensor in flow.tensors.items() if name.endswith(".actnorm.s"))
    bits = -(-0.5 * (z**2).sum(axis=1) - DIM / 2 * np.log(2 * np.pi) + log_det).mean() / (DIM * np.log(2))
    assert trainer.curve[-1].heldout == pytest.approx(bits, rel=1e-5)
    cosines = (left * right).sum(axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    assert trainer.curve[-1].dev == pytest.approx(spearmanr(cosines, pairs.gold).statistic, abs=1e-3)
    assert (flow.metric, flow.fitted_rows, flow.heldout_rows) == ("Spearman", 640, 500)


@pytest.mark.parametrize("stop", [1, 7])
def test_a_resumed_training_is_equal_to_the_last_bit(stop: int):
    rows = nonlinear_rows(640)
    whole = run(fresh(), rows, range(20))
    first = run(fresh(), rows, range(stop))
    second = fresh(SETTINGS.model_copy(update={"seed": 5}))  # with other initial weights
    second.restore(first.to_bytes())
    assert second.to_bytes() == first.to_bytes()
    run(second, rows, range(stop, 20))
    assert second.to_bytes() == whole.to_bytes()
    for trainer in (whole, second):
        trainer.evaluate(HELD)
    assert whole.curve == second.curve


def test_the_default_optimizer_is_adam_without_decay():
    trainer, expected = fresh(), fresh()
    for each in (trainer, expected):
        each.initialize(nonlinear_rows(32), HELD)
    optimizer = torch.optim.Adam(expected.glow.parameters(), lr=SETTINGS.learning_rate)
    for step in range(3):
        rows = nonlinear_rows(32, seed=step)
        trainer.train_step(rows)
        optimizer.zero_grad()
        expected.glow.bits_per_dimension(torch.from_numpy(rows)).backward()
        torch.nn.utils.clip_grad_norm_(expected.glow.parameters(), SETTINGS.clip)
        optimizer.step()
    for found, parameter in zip(trainer.glow.parameters(), expected.glow.parameters(), strict=True):
        torch.testing.assert_close(found, parameter, rtol=0, atol=1e-6)


def test_weight_decay_applies_to_matrices_only():
    """Use a gradient of zero, with which AdamW changes a parameter by its decay only."""
    settings = FlowSettings(learning_rate=0.1, weight_decay=0.5)
    trainer = fresh(settings)
    trainer.initialize(nonlinear_rows(32), HELD)
    parameters = dict(trainer.glow.named_parameters())
    trainer.glow.bits_per_dimension = lambda x: sum(0 * value.sum() for value in parameters.values())
    before = {name: value.detach().clone() for name, value in parameters.items()}
    assert {1, 2} <= {value.ndim for value in before.values()}
    trainer.train_step(nonlinear_rows(32))
    for name, value in parameters.items():
        expected = before[name] * (1 - 0.1 * 0.5) if value.ndim == 2 else before[name]
        torch.testing.assert_close(value.detach(), expected, rtol=1e-6, atol=0)


def test_an_infinite_likelihood_ends_the_training():
    trainer = run(fresh(), nonlinear_rows(640), range(2))
    weights = trainer.glow.state_dict()["levels.0.0.actnorm.b"].clone()
    with pytest.raises(
        Diverged,
        match=r"found inf bits.*at step 3; lower whiten\.flow\.learning_rate",
    ):
        trainer.train_step(np.full((32, DIM), 1e30, np.float32))
    assert torch.equal(trainer.glow.state_dict()["levels.0.0.actnorm.b"], weights)
    with pytest.raises(Diverged, match="held-out rows, found inf bits"):
        trainer.evaluate(HeldOut(np.full((32, DIM), 1e30, np.float32)))


def test_equal_rows_are_refused():
    with pytest.raises(DataError, match="different rows, found 32 equal rows"):
        fresh().initialize(np.ones((32, DIM), np.float32), HELD)


def test_constant_dimensions_are_noted_and_the_others_are_learnt():
    rows, held = nonlinear_rows(6400), nonlinear_rows(500, seed=1)
    for x in (rows, held):
        x[:, [3, 20]] = 0.125, -7
    trainer = run(fresh(), rows, range(200))
    trainer.evaluate(HeldOut(held))
    assert trainer.curve[-1].heldout < trainer.curve[0].heldout
    flow = trainer.to_flow(HeldOut(held), 6400, "a space")
    assert "2 of 32 dimensions have no variance and kept the scale of the others" in flow.notes
    nearly = held.copy()
    nearly[:, 20] = np.nextafter(np.float32(-7), np.float32(0))
    np.testing.assert_allclose(flow(nearly), flow(held), atol=1e-4)
    np.testing.assert_allclose(flow.inverse(flow(held)), held, atol=1e-4)


def test_unit_vectors_are_noted():
    unit = HELD.rows / np.linalg.norm(HELD.rows, axis=1, keepdims=True)
    trainer = fresh()
    trainer.initialize(unit[:32], HeldOut(unit))
    flow = trainer.to_flow(HeldOut(unit), 500, "a space")
    assert any("length 1" in note for note in flow.notes)
    assert Flow.from_bytes(flow.to_bytes()).notes == flow.notes
