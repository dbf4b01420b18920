"""Steps of a training: their updates, their errors if a number is not finite, and resuming."""

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.errors import DataError
from pipeline.objectives import Batch, Loss
from pipeline.objectives.supervised import Supervised
from pipeline.settings.training import CheckpointSettings, OptimizerSettings, ScheduleSettings, TrainSettings
from pipeline.store.files.open_store import open_store
from pipeline.train.check_finite import NonFinite
from pipeline.train.checkpoint import Checkpoints, load_state
from pipeline.train.gradcache import loss_and_backward
from pipeline.train.loop import Training, fit
from tests.objectives.tiny import Tiny, assert_same, batch_of, pop_gradients, texts
from tests.train.small import ROWS, STEPS, numbers, objective, rows_of, training

SGD = OptimizerSettings(name="sgd", learning_rate=0.1, clip=None)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def test_a_step_updates_the_weights_by_rate_times_gradient():
    made = training(TrainSettings(optimizer=SGD), dropout=0.0)
    before = {name: value.detach().clone() for name, value in made.parameters.items()}
    batch, twin = next(rows_of()), objective("supervised", dropout=0.0)
    outcome, known = loss_and_backward(twin, batch), pop_gradients(twin)
    [step] = fit(made, rows_of(), until=1)
    norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in known.values()))
    assert (step.number, step.rows, step.learning_rate) == (1, ROWS, 0.1)
    assert float(step.loss.total) == float(outcome.loss.total)
    assert step.gradient_norm == pytest.approx(norm, rel=1e-6)
    assert step.tokens == sum(len(batch.tokens(role).ids) for role in ("anchor", "positive", "negative"))
    after = {name: value.detach() for name, value in made.parameters.items()}
    assert_same(after, {name: before[name] - 0.1 * known[name] for name in known})
    assert all(value.grad is None for value in made.parameters.values())
    assert not any(rep.requires_grad for rep in (*step.reps, step.loss.total))
    for rep, expected in zip(step.reps, outcome.reps, strict=True):
        torch.testing.assert_close(rep, expected)


def test_a_large_gradient_is_clipped_and_reported_unclipped():
    settings = TrainSettings(
        optimizer=OptimizerSettings(name="sgd", learning_rate=1.0, clip=1e-3),
        schedule=ScheduleSettings(name="constant"),
    )
    made = training(settings, dropout=0.0)
    before = [value.detach().clone() for value in made.parameters.values()]
    [step] = fit(made, rows_of(), until=1)
    changes = [value.detach() - old for value, old in zip(made.parameters.values(), before, strict=True)]
    assert step.gradient_norm > 0.01
    assert math.sqrt(sum(float((change**2).sum()) for change in changes)) == pytest.approx(1e-3, rel=1e-5)


def test_rates_follow_the_schedule_and_a_schedule_may_end_the_training():
    settings = TrainSettings(
        optimizer=SGD, schedule=ScheduleSettings(name="plateau", decay=0.1, drop=0.1, least=5e-3)
    )
    made, batches = training(settings), rows_of()
    steps = list(fit(made, batches, until=2))
    made.schedule.observe(60.0)
    steps += fit(made, batches, until=4)  # an epoch has 3 steps
    made.schedule.observe(59.0)
    assert [step.learning_rate for step in steps] == pytest.approx([0.1, 0.1, 0.1, 0.01])
    assert made.ended
    assert list(fit(made, batches, until=STEPS)) == []


OPTIMIZERS = {
    "adamw": OptimizerSettings(learning_rate=0.01, weight_decay=0.1),
    "momentum": OptimizerSettings(name="sgd", learning_rate=0.05, momentum=0.9),
    "rmsprop": OptimizerSettings(name="rmsprop", learning_rate=0.01, momentum=0.5),
}


@pytest.mark.parametrize("name", ["supervised", "simcse", "queue"])
@pytest.mark.parametrize("chunk_rows", [None, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_resumed_training_is_identical(
    name: str, chunk_rows: int | None, optimizer: OptimizerSettings, tmp_path: Path
):
    settings = TrainSettings(
        optimizer=optimizer, chunk_rows=chunk_rows, schedule=ScheduleSettings(name="cosine", warmup=2)
    )
    uninterrupted = training(settings, name)
    expected = numbers(list(fit(uninterrupted, rows_of(), until=STEPS)))
    drawn = torch.rand(3)
    killed = training(settings, name)
    with closing(Checkpoints(open_store(tmp_path), "checkpoints", CheckpointSettings())) as checkpoints:
        for step in islice(fit(killed, rows_of(), until=STEPS), 4):
            if step.number == 3:
                checkpoints.save(3, killed.state())  # step 4 is lost
    resumed = training(settings, name, seed=6)  # with other weights
    last = Checkpoints(open_store(tmp_path), "checkpoints", CheckpointSettings()).last()
    resumed.restore(load_state(last))
    assert numbers(list(fit(resumed, rows_of(3), until=STEPS))) == expected[3:]
    assert torch.equal(torch.rand(3), drawn)
    assert_same(resumed.objective.state_dict(), uninterrupted.objective.state_dict(), tolerance=0)


def test_later_steps_do_not_change_a_state():
    made = training(TrainSettings(optimizer=OPTIMIZERS["adamw"]))
    list(fit(made, rows_of(), until=2))
    state = made.state()
    expected = numbers(list(fit(made, rows_of(2), until=4)))
    for _ in range(2):
        resumed = training(TrainSettings(optimizer=OPTIMIZERS["adamw"]))
        resumed.restore(state)
        assert numbers(list(fit(resumed, rows_of(2), until=4))) == expected


def test_another_number_of_ranks_reseeds_from_seed_and_step():
    made = training(TrainSettings())
    list(fit(made, rows_of(), until=2))
    of_one_rank = made.state()
    of_two_ranks = of_one_rank | {"random": 2 * of_one_rank["random"]}

    def draw_after_restoring(state: dict[str, Any]) -> torch.Tensor:
        resumed = training(TrainSettings())
        resumed.restore(state)
        assert resumed.number == 2
        return torch.rand(4)

    first, second = draw_after_restoring(of_two_ranks), draw_after_restoring(of_two_ranks)
    assert torch.equal(first, second)
    assert not torch.equal(draw_after_restoring(of_one_rank), first)


class NotFinite(Supervised):
    """Objective whose loss, or the gradient of one layer, is not finite in the third batch."""

    def __init__(self, where: str) -> None:
        torch.manual_seed(0)
        super().__init__(Tiny(), temperature=0.3, head="none")
        self.where, self.calls = where, 0
        if where == "gradient":
            self.encoder.layer.register_hook(lambda gradient: gradient * (math.nan if self.calls == 3 else 1))

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        self.calls += 1
        value = super().loss(reps, batch)
        if self.where == "loss" and self.calls == 3:
            return value + Loss.of(broken=reps[0].sum() * math.inf)
        return value


@pytest.mark.parametrize(
    ("where", "culprit"),
    [("loss", r"loss (-?inf|nan) \(broken (-?inf|nan)\)"), ("gradient", "a gradient of encoder.layer")],
)
@pytest.mark.parametrize("chunk_rows", [None, 2])
def test_nan_and_infinity_stop_the_training_before_an_update(
    where: str, culprit: str, chunk_rows: int | None
):
    settings = TrainSettings(optimizer=SGD, chunk_rows=chunk_rows)
    made = Training(NotFinite(where), settings, steps=STEPS, steps_per_epoch=3)
    steps = fit(made, rows_of(), until=STEPS)
    assert [next(steps).number, next(steps).number] == [1, 2]
    before = {name: value.clone() for name, value in made.objective.state_dict().items()}
    with pytest.raises(NonFinite, match=culprit) as caught:
        next(steps)
    error, batch = caught.value, next(rows_of(2))
    assert (error.where, error.exit_code) == ("step 3", DataError.exit_code)
    assert f"on rows {', '.join(map(str, batch.rows[:5]))}" in str(error)
    assert made.number == 2
    assert_same(made.objective.state_dict(), before, tolerance=0)


def test_waiting_time_is_reported():
    made = training(TrainSettings())

    def slow() -> Iterator[Batch]:
        for batch in rows_of():
            time.sleep(0.05)
            yield batch

    steps = list(fit(made, slow(), until=2))
    assert [0.05 <= step.waited_s < step.seconds for step in steps] == [True, True]


def test_counts_of_a_batch_are_reported():
    batch = replace(batch_of({"anchor": texts(4, 1), "positive": texts(4, 2)}), counts={"repeated": 3})
    assert training(TrainSettings()).step(batch).counts == {"repeated": 3}
