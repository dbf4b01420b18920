"""The learning rate of each step, by hand."""

import math

import pytest

from pipeline.errors import ConfigError
from pipeline.settings.training import ScheduleSettings
from pipeline.train.schedule import Schedule


def rates(steps: int = 10, highest: float = 1.0, steps_per_epoch: int = 5, **settings: object) -> list[float]:
    schedule = Schedule(ScheduleSettings(**settings), highest, steps=steps, steps_per_epoch=steps_per_epoch)
    return [schedule.rate(step) for step in range(1, steps + 1)]


def test_linear_falls_by_equal_parts_to_one_part_at_the_last_step():
    assert rates(name="linear", highest=2.0) == pytest.approx([2 * part / 10 for part in range(10, 0, -1)])


@pytest.mark.parametrize("warmup", [4, 0.4, 0.31])
def test_linear_rises_by_equal_parts_to_its_height_first(warmup: float):
    """A share of the steps is rounded up: 4 of 10 for 0.31."""
    assert rates(name="linear", warmup=warmup) == pytest.approx(
        [1 / 4, 2 / 4, 3 / 4, 1, 6 / 7, 5 / 7, 4 / 7, 3 / 7, 2 / 7, 1 / 7]
    )


def test_cosine_follows_half_a_wave():
    assert rates(name="cosine", warmup=2) == pytest.approx(
        [0.5, *((1 + math.cos(math.pi * part / 9)) / 2 for part in range(9))]
    )


def test_constant_stays_after_its_rise():
    assert rates(name="constant", warmup=3, highest=3.0) == pytest.approx([1, 2, *8 * [3]])


def test_stairs_go_where_they_are_told_from_their_step_on():
    assert rates(name="stairs", stairs={7: 0.1, 4: 0.5}) == pytest.approx(
        [1, 1, 1, 0.5, 0.5, 0.5, 0.1, 0.1, 0.1, 0.1]
    )
    with pytest.raises(ConfigError, match="stairs"):
        rates(name="stairs")


def test_a_rise_as_long_as_the_training_ends_at_the_height():
    assert rates(name="linear", warmup=10) == pytest.approx([step / 10 for step in range(1, 11)])
    assert rates(name="linear", warmup=20) == pytest.approx([step / 20 for step in range(1, 11)])


def plateau(**settings: object) -> Schedule:
    return Schedule(ScheduleSettings(name="plateau", **settings), 0.1, steps=100, steps_per_epoch=5)


def test_plateau_falls_with_every_epoch_and_whenever_dev_got_worse():
    schedule = plateau(decay=0.99, drop=0.2)
    assert [schedule.rate(step) for step in (1, 5, 6, 11)] == pytest.approx([0.1, 0.1, 0.099, 0.1 * 0.99**2])
    for figure in (70.0, 71.0, 71.0):  # better, and as good
        schedule.told(figure)
    assert schedule.rate(6) == pytest.approx(0.099)
    schedule.told(70.9)
    assert schedule.rate(6) == pytest.approx(0.099 / 5)
    schedule.told(70.95)  # better than the last one, though not than the best
    assert schedule.rate(6) == pytest.approx(0.099 / 5)


def test_plateau_ends_below_the_least_rate():
    schedule = plateau(decay=1.0, drop=0.2, least=1e-5)
    figures = iter(range(10, 0, -1))
    drops = 0
    schedule.told(next(figures))
    while not schedule.ended(1):
        schedule.told(next(figures))
        drops += 1
    assert drops == math.ceil(math.log(1e-4) / math.log(0.2)) == 6
    assert not Schedule(ScheduleSettings(name="constant"), 1e-9, steps=1, steps_per_epoch=1).ended(1)


def test_plateau_goes_on_from_its_state():
    first, second = plateau(), plateau()
    for figure in (3.0, 2.0):
        first.told(figure)
    second.restore(first.state())
    for schedule in (first, second):
        schedule.told(1.0)
    assert second.rate(8) == first.rate(8) == pytest.approx(0.1 * 0.99 * 0.2**2)
