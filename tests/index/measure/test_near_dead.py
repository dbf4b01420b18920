"""Searches for a deleted topic find the nearest live rows, which are in many lists."""

import numpy as np
import pytest

from pipeline.index.build.build import fill, train
from pipeline.index.build.index_shape import plan_index
from pipeline.index.files.parts import Parts
from pipeline.index.measure.measure import measure, raise_effort
from pipeline.index.measure.metrics import IndexMetrics
from pipeline.index.measure.search_effort import get_effort
from pipeline.index.measure.truth import ExactTopK, Queries
from pipeline.settings import GateSettings, IndexSettings
from tests.index.clustered import cosines

TOPICS, ROWS, DIM = 21, 143, 64
KINDS = ["ivf_flat", "ivf_sq8", "hnsw"]


def topics(seed: int = 0) -> np.ndarray:
    """Make (TOPICS * ROWS, DIM) float32 around centres; a deleted topic leaves no close neighbour."""
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.normal(size=(TOPICS, DIM)), ROWS, axis=0)
    return (centres + 0.6 * rng.normal(size=centres.shape)).astype(np.float32)


def without_first_topic(
    kind: str, raw: np.ndarray, dead: np.ndarray, **options: int
) -> tuple[object, IndexMetrics]:
    """Index all topics but the first, and measure with live rows and the rows `dead` as queries."""
    live = np.arange(ROWS, len(raw))
    settings = IndexSettings(kind=kind, **options)
    index = train(plan_index(len(live), DIM, settings), None, raw[live])
    fill(index, [(live, raw[live])])
    query_rows = np.concatenate([live[::10], dead])
    queries = Queries(query_rows, raw[query_rows])
    truth = ExactTopK(queries).search([(live, raw[live])])
    return index, measure(Parts([index]), queries, truth, settings, GateSettings())


def recall_of(index: object, raw: np.ndarray, query_rows: np.ndarray) -> float:
    """Compute recall@10 by numpy over the live rows, without each query's own row."""
    live = np.arange(ROWS, len(raw))
    exact = cosines(raw[query_rows], raw[live], None)
    exact[query_rows[:, None] == live] = -np.inf
    nearest = live[np.argsort(-exact, axis=1)[:, :10]]
    _, found = index.search(raw[query_rows], 11)
    return float(np.mean([np.isin(*rows).mean() for rows in zip(nearest, found, strict=True)]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_effort_is_raised_to_reach_the_recall_near_deleted_rows(kind):
    raw = topics()
    live_index, live_metrics = without_first_topic(kind, raw, np.zeros(0, np.int64))
    index, metrics = without_first_topic(kind, raw, np.arange(0, ROWS, 5))
    others = np.arange(2, ROWS, 5)  # rows of the topic that were not queries when the effort was chosen
    assert (live_metrics.recall_near_dead, live_metrics.raised_from) == (None, None)
    assert recall_of(live_index, raw, others) < 0.9, "the effort that is enough for live rows is too low"
    assert metrics.raised_from == live_metrics.effort < metrics.effort
    # few edges of a graph lead from the region of a topic that it does not hold
    wanted = 0.9 if kind == "hnsw" else 0.95
    assert metrics.recall_near_dead.value >= wanted
    assert recall_of(index, raw, others) >= wanted - 0.05
    assert metrics.effort in {point.effort for point in metrics.curve}


def test_the_effort_rises_eightfold_at_most_and_only_if_recall_rises():
    raw, dead = topics(), np.arange(0, ROWS, 5)
    index, _ = without_first_topic("ivf_flat", raw, dead, nlist=300, nprobe=1)
    queries, live = Queries(dead, raw[dead]), np.arange(ROWS, len(raw))
    truth = ExactTopK(queries).search([(live, raw[live])])
    assert raise_effort(index, queries, truth, 1.1) == 1
    assert 1 < get_effort(index) <= 8
    _, coarse = without_first_topic("IVF32,PQ4x4", raw, dead)
    assert coarse.recall_near_dead.value < 0.5, "the missing neighbours are lost to compression"
    assert coarse.effort < 32


def test_a_configured_effort_and_few_dead_queries_are_not_changed():
    raw = topics()
    _, fixed = without_first_topic("ivf_flat", raw, np.arange(0, ROWS, 5), nprobe=2)
    assert (fixed.effort, fixed.raised_from) == (2, None)
    assert fixed.recall_near_dead is not None
    _, few = without_first_topic("ivf_flat", raw, np.arange(9))
    assert (few.recall_near_dead, few.raised_from) == (None, None)


@pytest.mark.parametrize("kind", ["flat", *KINDS])
def test_rows_outside_the_index_are_detected(kind):
    raw = topics()
    index, _ = without_first_topic(kind, raw, np.zeros(0, np.int64))
    rows = np.array([3, 2_000, 142, 143, 2_900])
    assert Parts([index]).holds(rows).tolist() == (rows >= ROWS).tolist()
