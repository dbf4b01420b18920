"""Measurements are those of the index as it is stored, at the effort that it has."""

import pytest

from pipeline.index.effort import get_effort, set_effort
from pipeline.index.measure import measure, measure_parts
from pipeline.index.parts import Parts
from pipeline.index.recall import recall
from pipeline.settings import IndexSettings
from tests.index.clustered import clustered
from tests.index.indexes import built


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
    index, queries, truth = built(kind, vectors)
    set_effort(index, effort)
    found = measure_parts(Parts([index]), queries, truth)
    assert [point.effort for point in found.curve] == efforts
    assert [point.recall_at_10 for point in found.curve] == sorted(
        point.recall_at_10 for point in found.curve
    )
    assert found.effort == get_effort(index) == (effort if efforts else None)
    assert found.recall["10"].value == recall(index, queries[1::2], truth[1::2])[10].value


def test_a_named_effort_is_kept():
    index, queries, truth = built("ivf_flat", clustered(1_000))
    assert measure(Parts([index]), queries, truth, IndexSettings(nprobe=7), 0.95).effort == 7
    assert measure(Parts([index]), queries, truth, IndexSettings(nprobe=999), 0.95).effort == 40
