"""Learning rates of each step match hand computations."""

import math

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.settings.training import ScheduleSettings
from pipeline.train.schedule import Schedule


def rates(steps: int = 10, highest: float = 1.0, steps_per_epoch: int = 5, **settings: object) -> list[float]:
    schedule = Schedule(ScheduleSettings(**settings), highest, steps=steps, steps_per_epoch=steps_per_epoch)
    return [schedule.rate(step) for step in range(1, steps + 1)]


def test_linear_decays_by_equal_parts():
    assert rates(name="linear", highest=2.0) == pytest.approx([2 * part / 10 for part in range(10, 0, -1)])


@pytest.mark.parametrize("warmup", [4, 0.4, 0.31])
def test_linear_warms_up_by_equal_parts(warmup: float):
    """A proportion of the steps is rounded up: 0.31 of 10 steps are 4."""
    assert rates(name="linear", warmup=warmup) == pytest.approx(
        [1 / 4, 2 / 4, 3 / 4, 1, 6 / 7, 5 / 7, 4 / 7, 3 / 7, 2 / 7, 1 / 7]
    )


def test_cosine_decays_as_half_a_cosine():
    assert rates(name="cosine", warmup=2) == pytest.approx(
        [0.5, *((1 + math.cos(math.pi * part / 9)) / 2 for part in range(9))]
    )


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_linear_and_cosine_fall_to_the_final_rate(name: str):
    from_zero = np.array(rates(name=name, highest=0.75))
    assert rates(name=name, highest=1.0, final=0.25) == pytest.approx(0.25 + from_zero)
    with pytest.raises(ConfigError, match="at most the 1 of train"):
        rates(name=name, final=1.5)


def test_constant_does_not_change_after_the_warm_up():
    assert rates(name="constant", warmup=3, highest=3.0) == pytest.approx([1, 2, *8 * [3]])


def test_stairs_change_the_rate_at_their_steps():
    assert rates(name="stairs", stairs={7: 0.1, 4: 0.5}) == pytest.approx(
        [1, 1, 1, 0.5, 0.5, 0.5, 0.1, 0.1, 0.1, 0.1]
    )
    with pytest.raises(ConfigError, match="stairs"):
        rates(name="stairs")


def test_a_warm_up_of_the_whole_training_ends_at_the_highest_rate():
    assert rates(name="linear", warmup=10) == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates(name="linear", warmup=20) == pytest.approx([step / 20 for step in range(1, 11)])


def plateau(**settings: object) -> Schedule:
    return Schedule(ScheduleSettings(name="plateau", **settings), 0.1, steps=100, steps_per_epoch=5)


def test_plateau_decays_per_epoch_and_drops_when_dev_gets_worse():
    schedule = plateau(decay=0.99, drop=0.2)
    assert [schedule.rate(step) for step in (1, 5, 6, 11)] == pytest.approx([0.1, 0.1, 0.099, 0.1 * 0.99**2])
    for score in (70.0, 71.0, 71.0):  # better, then equal
        schedule.observe(score)
    assert schedule.rate(6) == pytest.approx(0.099)
    schedule.observe(70.9)
    assert schedule.rate(6) == pytest.approx(0.099 / 5)
    schedule.observe(70.95)  # better than the last score, though not than the best
    assert schedule.rate(6) == pytest.approx(0.099 / 5)


def test_plateau_ends_below_the_smallest_rate():
    schedule = plateau(decay=1.0, drop=0.2, least=1e-5)
    scores, drops = iter(range(10, 0, -1)), 0
    schedule.observe(next(scores))
    while not schedule.ends_before(1):
        schedule.observe(next(scores))
        drops += 1
    assert drops == math.ceil(math.log(1e-5 / 0.1) / math.log(0.2))


def test_other_schedules_do_not_end_at_a_small_rate():
    assert not Schedule(ScheduleSettings(name="constant"), 1e-9, steps=1, steps_per_epoch=1).ends_before(1)


def test_a_restored_plateau_continues():
    first, second = plateau(), plateau()
    for score in (3.0, 2.0):
        first.observe(score)
    second.restore(first.state())
    for schedule in (first, second):
        schedule.observe(1.0)
    assert second.rate(8) == first.rate(8) == pytest.approx(0.1 * 0.99 * 0.2**2)
