"""Charts of geometry are well-formed, stay inside their frame, and show every series in its own colour."""

import re

import numpy as np
import pytest

from pipeline.charts.geometry import (
    COLOURS,
    alignment_chart,
    bands_chart,
    colour,
    cosines_chart,
    edits_chart,
    hubs_chart,
    layer_chart,
    spectra_chart,
    three_digits,
)
from pipeline.stats.sample import Histogram, cosine_histogram
from pipeline.stats.space import ScoredPairs, cosine_bands, edit_bins
from tests.charts.test_night import inside

RNG = np.random.default_rng(0)


def classes(chart: str, tag: str) -> list[str]:
    return [element.get("class", "").split()[-1] for element in inside(chart).iter(tag)]


@pytest.mark.parametrize(
    "curves",
    [
        [[(0, 0.5)]],
        [[(0, 0.1), (1, 0.9), (2, -0.3)], [(0, 0.1), (1, 0.9), (2, -0.3)]],
        [[(layer, 0.0) for layer in range(25)]],
    ],
)
def test_layers_fit_and_every_curve_is_labelled_with_its_last_value(curves):
    chart = layer_chart(curves, "anything")
    assert classes(chart, "path") == [colour(number) for number in range(len(curves))]
    labels = [element for element in inside(chart).iter("text") if "value" in element.get("class", "")]
    assert [element.text for element in labels] == [three_digits(curve[-1][1]) for curve in curves]
    heights = sorted(float(element.attrib["y"]) for element in labels)
    assert all(gap > 11 for gap in np.diff(heights))  # labels of equal values do not overlap


@pytest.mark.parametrize("spectra", [[(1.0,)], [tuple(np.geomspace(1, 1e-9, 700)), (1.0, 0.5)], [(1.0, 0.0)]])
def test_spectra_of_any_length_fit(spectra):
    assert len(list(inside(spectra_chart(spectra)).iter("path"))) == len(spectra)


def test_cosines_of_any_kind_fit():
    shown = [cosine_histogram(x) for x in (np.eye(3), np.ones((5, 3)), RNG.normal(size=(90, 4)), -np.eye(2))]
    chart = inside(cosines_chart(shown))
    assert [path.get("class") for path in chart.iter("path")] == [
        f"area {colour(number)}" for number in range(4)
    ]


def test_bands_are_stacked_in_the_order_of_scores():
    gold = RNG.uniform(0, 5, 400)
    chart = inside(
        bands_chart(cosine_bands(np.clip(gold / 5 + 0.1 * RNG.normal(size=400), -1, 1), gold), -0.4, 1)
    )
    titles = [title.text or "" for title in chart.iter("title")]
    assert sum(int(title.split(" pairs")[0]) for title in titles) == 400
    baselines = [float(re.findall(r"-?[\d.]+", path.attrib["d"])[1]) for path in chart.iter("path")]
    assert len(baselines) == 5
    assert (np.diff(baselines) < 0).all()  # the band of the highest scores is at the top
    empty = Histogram((-1.0, 0.0, 1.0), (0, 0), 0.0)
    assert not list(inside(bands_chart((empty,) * 5, 0.0, 0)).iter("path"))


@pytest.mark.parametrize("found", [[[0, 0, 9]], [[3] * 120, [9]], [[100, *[0] * 60, 1]]])
@pytest.mark.parametrize("k", [1, 2, 10])
def test_all_sentences_are_in_the_bars(found, k: int):
    chart = inside(hubs_chart(found, k))
    percentages = [float((title.text or "").removesuffix(" %")) for title in chart.iter("title")]
    assert len(percentages) == 5 * len(found)
    assert sum(percentages) == pytest.approx(100 * len(found), abs=0.3)


def test_edit_distances_fit_beside_human_scores():
    pairs = ScoredPairs.of(
        ["abc"] * 30, ["abc" + "x" * number for number in range(30)], RNG.uniform(0, 5, 30), "characters"
    )
    chart = edits_chart([edit_bins(RNG.uniform(-1, 1, 30), pairs), edit_bins(np.ones(30), pairs)])
    assert classes(chart, "path") == ["s0", "s1", "people"]
    few = ScoredPairs.of(["a"], ["b"], np.array([3.0]), "characters")
    inside(edits_chart([edit_bins(np.zeros(1), few)]))


@pytest.mark.parametrize(
    "points", [[(-3.8, 0.2)], [(-3.8, 0.2), (-3.8, 0.2)], [(-8.0, 4.0), (0.0, 0.0), (-1.0, 0.1)]]
)
def test_points_of_the_plane_fit(points):
    assert classes(alignment_chart(points), "circle") == [colour(number) for number in range(len(points))]


def test_numbers_have_three_digits_and_colours_repeat():
    assert [three_digits(value) for value in (0.0649, -3.6156, 53.138, 215.9, -0.0001, 0.0)] == [
        "0.065",
        "−3.62",
        "53.1",
        "216",
        "0.000",
        "0.000",
    ]
    assert colour(COLOURS) == colour(0)
