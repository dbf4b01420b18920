"""Charts of an augmentation stay inside their frame, and show every variant once."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from pipeline.charts.augmentation import (
    OTHER,
    VariantHistogram,
    css_classes,
    histogram_chart,
    proportions_chart,
)
from pipeline.charts.frame import WIDTH
from tests.charts.test_night import inside

RNG = np.random.default_rng(0)
EDGES = np.arange(61) / 20


def drawn(chart: ElementTree.Element) -> tuple[int, int]:
    """Return (kept, rejected) from the titles of the bars."""
    found = [
        re.findall(r"(\d+) (?:kept|rejected)", title.replace(",", ""))
        for title in {each.text or "" for each in chart.iter("title")}
    ]
    return sum(int(kept) for kept, _ in found), sum(int(rejected) for _, rejected in found)


@pytest.mark.parametrize(
    "values", [[], [1.0], [0.0, 99.0], RNG.gamma(9, 0.1, 5_000)], ids=["none", "one", "far", "many"]
)
@pytest.mark.parametrize("bounds", [None, (0.5, 2.0), (0.98, 1.0), (0.0, 50.0)])
def test_every_variant_is_in_one_bar(values, bounds):
    values = np.array(values, float)
    kept = RNG.random(len(values)) < 0.9
    spread = VariantHistogram.of(values, kept, EDGES, bounds)
    assert drawn(inside(histogram_chart(spread, "length"))) == (kept.sum(), (~kept).sum())
    assert spread.total == len(values)


def test_histograms_of_parts_add_up():
    values, kept = RNG.uniform(-1, 4, 1_000), RNG.random(1_000) < 0.5
    whole = VariantHistogram.of(values, kept, EDGES, (0.5, 2.0))
    parts = [
        VariantHistogram.of(values[part], kept[part], EDGES, (0.5, 2.0))
        for part in np.split(np.arange(1_000), [0, 10, 700])
    ]
    assert parts[0] + parts[1] + parts[2] + parts[3] == whole
    assert sum(whole.kept) == kept.sum()
    assert whole.kept[0] == (kept & (values < 0.05)).sum(), "what lies beyond the edges is in the outer bins"


@pytest.mark.parametrize(
    "counts",
    [
        {"de": {"kept": 3, "unlike": 1}},
        {"a" * 200: {"kept": 0, "x": 0}, "b": {}},
        {"<&": {"kept": 100_000, **{f"r{number}": 1 for number in range(9)}}},
    ],
)
def test_a_label_is_one_bar_of_all_its_variants(counts):
    colour = css_classes(sorted({name for each in counts.values() for name in each if name != "kept"}))
    chart = ElementTree.fromstring(proportions_chart(counts, colour))
    for number, each in enumerate(counts.values()):
        bars = [bar for bar in chart.iter("rect") if float(bar.attrib["y"]) // 40 == number]
        assert len(bars) == sum(count > 0 for count in each.values())
        assert all(
            float(bar.attrib["x"]) >= -0.1
            and float(bar.attrib["x"]) + float(bar.attrib["width"]) <= WIDTH + 0.1
            for bar in bars
        )
        if bars:
            assert float(bars[-1].attrib["x"]) + float(bars[-1].attrib["width"]) == pytest.approx(
                WIDTH, abs=1
            )


def test_frequent_reasons_have_their_own_colours():
    found = css_classes([f"r{number}" for number in range(8)])
    assert len(set(found.values())) == 6
    assert list(found.values())[5:] == [OTHER] * 3
