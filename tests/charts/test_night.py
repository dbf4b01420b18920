"""Charts are well-formed, stay inside their frame, and put values at the right positions."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.charts.frame import HEIGHT, WIDTH, ChartFrame, compact, log_ticks, percent, tick_labels, ticks
from pipeline.charts.night import choice_chart, cosine_chart, length_chart, recall_chart, spectrum_chart
from pipeline.index.measure.metrics import CurvePoint
from pipeline.stats.sample import Histogram, cosine_histogram
from tests.charts.lengths import length_histogram


def _point(effort: int, recall: float, query_ms: float) -> CurvePoint:
    return CurvePoint(effort=effort, recall_at_10=recall, query_ms=query_ms)


def inside(svg: str) -> ElementTree.Element:
    """Parse a chart after checking that every coordinate is within the view box."""
    chart = ElementTree.fromstring(svg)
    for element in chart.iter():
        points = [
            (float(element.get(x, 0)), float(element.get(y, 0)))
            for x, y in (("x", "y"), ("x1", "y1"), ("x2", "y2"), ("cx", "cy"))
        ]
        if path := element.get("d"):
            numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
            points += zip(numbers[::2], numbers[1::2], strict=True)
        if element.tag == "rect":
            points.append(
                (
                    float(element.attrib["x"]) + float(element.attrib["width"]),
                    float(element.attrib["y"]) + float(element.attrib["height"]),
                )
            )
            assert float(element.attrib["height"]) >= 0
        assert all(-0.1 <= x <= WIDTH + 0.1 and -0.1 <= y <= HEIGHT + 0.1 for x, y in points), (
            ElementTree.tostring(element)
        )
    return chart


@given(
    st.lists(st.integers(1, 100_000), min_size=1, max_size=60), st.sampled_from([1, 10, 128, 256, 300, 8_192])
)
def test_lengths_fit_and_are_all_counted(lengths: list[int], limit: int) -> None:
    chart = inside(length_chart(length_histogram(np.array(lengths), limit), limit))
    titles = [title.text or "" for title in chart.iter("title")]
    assert sum(int(title.split(": ")[1].split(" ")[0].replace(",", "")) for title in titles) == len(lengths)
    cut = sum(length > limit for length in lengths)
    assert [title for title in titles if title.startswith("cut")] == ([f"cut: {cut} texts"] if cut else [])


@pytest.mark.parametrize(
    "x",
    [
        np.eye(3),
        np.ones((5, 3)),
        np.array([[1.0, 0], [-1, 0]]),
        np.random.default_rng(0).normal(size=(99, 4)),
    ],
)
def test_cosines_of_any_kind_fit(x: np.ndarray) -> None:
    inside(cosine_chart(cosine_histogram(x), None))
    chart = inside(cosine_chart(cosine_histogram(x), cosine_histogram(x - 0.5)))
    assert [path.get("class") for path in chart.iter("path")] == ["area raw", "area accent"]


@pytest.mark.parametrize("values", [(1.0,), (1.0, 0.5), tuple(np.linspace(1, 0, 4_096)), (1.0, 0.0, 0.0)])
def test_spectra_of_any_length_fit(values: tuple[float, ...]) -> None:
    inside(spectrum_chart(values, None))
    assert len(spectrum_chart(values, (1.0, 1.0))) < 12_000


@pytest.mark.parametrize(
    ("points", "chosen", "target"),
    [
        ((_point(1, 0.5, 0.1), _point(2, 0.8, 0.12), _point(4, 0.96, 0.2)), 4, 0.95),
        ((_point(1, 1.0, 0.003),), 1, 0.95),
        ((_point(1, 0.0, 0.01), _point(1024, 0.01, 900.0)), 1024, 1.0),
        ((_point(16, 0.9, 0.2), _point(24, 0.95, 0.2), _point(32, 0.97, 0.1)), 24, 0.95),
        (
            tuple(_point(1 << row, 1 - 0.5**row, 0.02 * 1.3**row) for row in range(14)),
            None,
            None,
        ),
    ],
)
def test_recall_marks_the_chosen_point_and_the_target(
    points: tuple[CurvePoint, ...], chosen: int | None, target: float | None
) -> None:
    chart = inside(recall_chart(points, chosen, target))
    assert [circle.get("class") for circle in chart.iter("circle")].count("dot chosen") == (
        chosen is not None
    )
    assert any("target" in (text.text or "") for text in chart.iter("text")) == (target is not None)
    heights = [float(circle.attrib["cy"]) for circle in chart.iter("circle")]
    assert len(heights) == len(points)
    assert heights == sorted(heights, reverse=True)  # recall rises, so y decreases


@pytest.mark.parametrize(
    ("points", "chosen", "setting"),
    [
        (((8, -630.2), (12, -612.9), (381, -700.0)), 12, "k"),
        (((0, 0.7896), (1, 0.78), (20, 0.77)), 0, "remove"),
        (((0, 0.1), (20, 0.9)), 20, "remove"),
        (((5, 0.5),), 5, "k"),
        (((1, 0.0), (2, 0.0)), 1, "k"),
    ],
)
def test_a_choice_marks_its_best_point(
    points: tuple[tuple[int, float], ...], chosen: int, setting: str
) -> None:
    chart = inside(choice_chart(points, chosen, setting))
    assert [circle.get("class") for circle in chart.iter("circle")].count("dot chosen") == 1
    assert [text.text for text in chart.iter("text") if "chosen" in (text.get("class") or "")] == [
        f"{setting} {chosen}: {dict(points)[chosen]:.4f}"
    ]
    heights = {circle.get("class"): float(circle.attrib["cy"]) for circle in chart.iter("circle")}
    assert heights["dot chosen"] == min(float(circle.attrib["cy"]) for circle in chart.iter("circle"))


def test_a_logarithmic_axis_spaces_doublings_equally() -> None:
    frame = ChartFrame((1, 16), (0, 1), log_x=True)
    steps = np.diff([frame.px(value) for value in (1, 2, 4, 8, 16)])
    assert np.ptp(steps) <= 0.11  # coordinates are rounded to a tenth


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 8))
def test_ticks_are_inside_evenly_spaced_and_few(low: float, span: float, count: int) -> None:
    at = ticks(low, low + span, count)
    assert all(low - span * 1e-3 <= tick <= low + span * 1.001 for tick in at)
    assert 1 <= len(at) <= count + 1
    if len(at) > 2:
        np.testing.assert_allclose(np.diff(at), at[1] - at[0], rtol=1e-3, atol=1e-8)


def test_numbers_on_axes_are_short() -> None:
    assert [compact(number) for number in (0, 0.5, 950, 12_000, 1_500_000, 2e9)] == [
        "0",
        "0.5",
        "950",
        "12k",
        "1.5M",
        "2G",
    ]
    assert [percent(proportion) for proportion in (0, 0.5, 0.957, 1)] == ["0 %", "50 %", "95.7 %", "100 %"]


def test_cosines_in_one_of_two_bins_fit() -> None:
    chart = inside(cosine_chart(Histogram((-1.0, 0.0, 1.0), (0, 3), 0.5), None))
    (area,) = chart.iter("path")
    heights = re.findall(r"-?[\d.]+", area.attrib["d"])[1::2]
    assert len(set(heights)) == 2  # the empty bin is on the axis


@pytest.mark.parametrize(
    ("at", "label", "names"),
    [
        ([0.18, 0.185, 0.19], compact, ["0.180", "0.185", "0.190"]),
        ([-1, -0.5, 0], compact, ["\u22121.0", "\u22120.5", "0.0"]),
        ([0, 0.0005, 0.001], percent, ["0.00 %", "0.05 %", "0.10 %"]),
        ([0.95, 0.975], percent, ["95.0 %", "97.5 %"]),
        ([0, 10, 20], compact, ["0", "10", "20"]),
        ([0, 500, 1_000], compact, ["0", "500", "1k"]),
        ([12_340, 12_344], compact, ["12340", "12344"]),
        ([], compact, []),
    ],
)
def test_labels_of_an_axis_have_equal_decimals_and_differ(at, label, names):
    assert tick_labels(at, label) == names


@given(st.floats(1e-3, 1e3), st.floats(1.05, 1e4))
def test_logarithmic_ticks_are_inside_and_ascend(low: float, factor: float):
    found = log_ticks(low, low * factor)
    assert found == sorted(set(found))
    assert all(low - 1e-9 <= tick <= low * factor * (1 + 1e-9) for tick in found)
    assert len(found) >= 2
