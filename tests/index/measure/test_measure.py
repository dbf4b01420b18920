"""Metrics are measured on the stored index, at its stored effort."""

import pytest

from pipeline.index.files.parts import Parts
from pipeline.index.measure.measure import measure, measure_parts
from pipeline.index.measure.recall import recall
from pipeline.index.measure.search_effort import get_effort, set_effort
from pipeline.settings import GateSettings, IndexSettings
from tests.index.clustered import clustered
from tests.index.indexes import build_with_truth


@pytest.mark.parametrize(
    ("kind", "effort", "efforts"),
    [
        ("ivf_flat", 8, [2, 4, 8, 16]),
        ("ivf_flat", 1, [1, 2]),
        ("ivf_flat", 30, [7, 15, 30, 40]),
        ("flat", 1, []),
    ],
)
def test_parts_are_measured_at_their_current_effort(kind, effort, efforts):
    vectors = clustered(1_000)
    index, queries, truth = build_with_truth(kind, vectors)
    set_effort(index, effort)
    metrics = measure_parts(Parts([index]), queries, truth)
    assert [point.effort for point in metrics.curve] == efforts
    assert [point.recall_at_10 for point in metrics.curve] == sorted(
        point.recall_at_10 for point in metrics.curve
    )
    assert metrics.effort == get_effort(index) == (effort if efforts else None)
    assert metrics.recall["10"].value == recall(index, queries[1::2], truth[1::2])[10].value


def test_a_named_effort_is_kept():
    index, queries, truth = build_with_truth("ivf_flat", clustered(1_000))
    assert measure(Parts([index]), queries, truth, IndexSettings(nprobe=7), GateSettings()).effort == 7
    assert measure(Parts([index]), queries, truth, IndexSettings(nprobe=999), GateSettings()).effort == 40
