"""Charts of a training are well-formed, stay inside their frame, and show every point behind medians."""

import math

import numpy as np
import pytest

from pipeline.charts.frame import BOTTOM, HEIGHT, LEFT, TOP
from pipeline.charts.training import (
    SMOOTHED_POINTS,
    StepAxis,
    curves_chart,
    dev_chart,
    rate,
    smooth,
    trajectory_chart,
)
from tests.charts.test_night import inside

RNG = np.random.default_rng(0)


def noisy(count: int, scale: float = 1.0) -> list[tuple[float, float]]:
    return [
        (float(step), scale * value)
        for step, value in zip(range(10, 10 * count + 1, 10), RNG.normal(size=count), strict=True)
    ]


def classes(chart: str, tag: str) -> list[str]:
    return [element.get("class", "") for element in inside(chart).iter(tag)]


@pytest.mark.parametrize("count", [1, 2, SMOOTHED_POINTS, SMOOTHED_POINTS + 1, 5000])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e7])
def test_curves_of_any_length_and_size_fit(count: int, scale: float):
    curves = [noisy(count, scale), noisy(count, 2 * scale)]
    chart = curves_chart(curves, StepAxis(10 * count), "anything", level=(scale, "a level"))
    lines = [name for name in classes(chart, "path") if "faint" not in name]
    assert lines == (["line s0", "line s1"] if count > 2 else [])
    assert [name for name in classes(chart, "circle") if name] == (
        [] if count > 2 else count * ["point s0"] + count * ["point s1"]
    )
    assert len([name for name in classes(chart, "path") if "faint" in name]) == (
        2 if count > SMOOTHED_POINTS else 0
    )
    assert "a level" in chart


def test_a_spike_stays_in_the_chart_and_does_not_flatten_the_rest():
    points = [(float(step), 1e9 if step == 3333 else step / 5000) for step in range(1, 5001)]
    path = next(
        element
        for element in inside(curves_chart([points], StepAxis(5000), "anything")).iter("path")
        if element.get("class") == "line s0"
    )
    heights = [float(pair.split()[1]) for pair in path.attrib["d"].removeprefix("M").split(" L")]
    assert max(heights) - min(heights) > 0.8 * (HEIGHT - TOP - BOTTOM)


def test_medians_are_of_equal_numbers_of_neighbours():
    points = noisy(SMOOTHED_POINTS * 3)
    np.testing.assert_array_equal(
        smooth(points), np.median(np.reshape(points, (SMOOTHED_POINTS, 3, 2)), axis=1)
    )
    assert smooth(points[:SMOOTHED_POINTS]) == points[:SMOOTHED_POINTS]
    assert len(smooth(noisy(SMOOTHED_POINTS * 7 + 3))) <= SMOOTHED_POINTS
    assert smooth([]) == []


@pytest.mark.parametrize("count", [1, 2, 12, 300])
@pytest.mark.parametrize("relative_position", [0.0, 0.5, 1.0])
def test_the_best_score_on_dev_is_marked_with_its_value(count: int, relative_position: float):
    points = [(250.0 * number, 80 + math.sin(number)) for number in range(count)]
    best = points[round(relative_position * (count - 1))]
    chart = dev_chart(points, best[0], StepAxis(max(250.0 * (count - 1), 1)), "Accuracy")
    assert classes(chart, "circle").count("dot chosen") == 1
    assert classes(chart, "path").count("line s0") == (count > 2)
    assert f"{best[1]:.2f} at step {best[0]:,.0f}" in chart
    assert "Accuracy over the steps" in chart


@pytest.mark.parametrize(
    "points",
    [
        [(-2.0, 0.3)],
        [(-2.0, 0.3), (-3.0, 0.2)],
        [(-1e-9, 0.0)] * 5,
        [(-3 + step / 500, 0.2 + math.sin(step)) for step in range(1000)],
    ],
)
def test_the_trajectory_chart_marks_start_and_end(points: list[tuple[float, float]]):
    texts = [element.text for element in inside(trajectory_chart(points, 10)).iter("text")]
    assert ("start" in texts) == ("end" in texts) == (len(points) > 1)
    assert ("step 10" in texts) == (len(points) == 1)


def test_small_numbers_stay_in_the_margin():
    """Count a digit as 7 pixels; the margin has 44 and a gap of 7."""
    points = [(-2.0, 1.9481e-5), (-2.1, 1.9553e-5)]
    texts = [
        element
        for element in inside(trajectory_chart(points, 1)).iter("text")
        if element.get("class") == "end"
    ]
    labels = [element.text or "" for element in texts if float(element.attrib["x"]) < LEFT]
    assert len(labels) > 2
    assert max(map(len, labels)) <= 5
    assert "\u00d7 1e\u22125" in trajectory_chart(points, 1)


def test_the_resumed_step_is_marked():
    chart = inside(curves_chart([noisy(100)], StepAxis(1000, (250.0, 500.0)), "anything"))
    rules = [
        float(element.attrib["x1"]) for element in chart.iter("line") if element.get("class") == "resumed"
    ]
    assert rules == [StepAxis(1000).frame(0, 1).px(step) for step in (250, 500)]


def test_rates_are_short():
    assert [rate(value) for value in (0.0, 2e-5, 1.5e-4, 0.1, 1.0)] == ["0", "2e−5", "1.5e−4", "1e−1", "1e0"]
