"""The chosen search effort is the least that reaches the target, and the file keeps it."""

import faiss
import pytest

from pipeline.index.build.build import write_index
from pipeline.index.measure.search_effort import choose_effort, effort_name, get_effort, measure_latency
from tests.index.clustered import clustered
from tests.index.indexes import build_with_truth


@pytest.mark.parametrize(("kind", "name"), [("ivf_flat", "nprobe"), ("hnsw", "efSearch")])
def test_the_smallest_sufficient_effort_is_chosen_and_stored(kind, name, tmp_path):
    index, queries, truth = build_with_truth(kind, clustered(4_000))
    assert effort_name(index) == name
    effort, curve = choose_effort(index, queries, truth, 0.9)
    assert effort == min(point.effort for point in curve if point.low >= 0.9)
    assert all(point.low < point.recall_at_10 for point in curve)
    assert [point.effort for point in curve] == sorted({point.effort for point in curve})
    write_index(index, tmp_path / "index.faiss")
    assert get_effort(faiss.read_index(str(tmp_path / "index.faiss"))) == effort


def test_an_unreachable_target_gets_the_best_effort():
    index, queries, truth = build_with_truth("SQ4", clustered(2_000))
    assert choose_effort(index, queries, truth, 1.0) == (None, ())
    index, queries, truth = build_with_truth("IVF20,SQ4", clustered(2_000))
    effort, curve = choose_effort(index, queries, truth, 1.0)
    best = max(point.recall_at_10 for point in curve)
    assert best < 1
    assert effort == min(point.effort for point in curve if point.recall_at_10 == best)


def test_latency_is_measured_on_single_queries():
    index, queries, _ = build_with_truth("flat", clustered(1_000))
    times = measure_latency(index, queries, max_queries=30)
    assert times.queries == 30
    assert 0 < times.p50_ms <= times.p99_ms
