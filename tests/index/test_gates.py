"""Each gate refuses the releases whose value is beyond its threshold, and no others."""

import math
from typing import Any

import numpy as np
import pytest

from pipeline.index.files.parts import Parts
from pipeline.index.gates import RowMetrics, judge, lowest_cosine, user_recall_gate
from pipeline.index.measure.measure import measure
from pipeline.index.measure.metrics import CurvePoint, IndexMetrics, Proportion
from pipeline.settings import GateSettings, IndexSettings
from pipeline.store.records.units import RowCounts
from tests.index.clustered import clustered
from tests.index.indexes import build_with_truth


def test_the_lowest_cosine_finds_the_changed_vector():
    before = np.eye(4, dtype=np.float32)
    after = before.copy()
    after[2] = [0, 0, math.cos(0.1), math.sin(0.1)]
    assert lowest_cosine(before, 3 * after) == pytest.approx(math.cos(0.1))


def test_a_text_without_a_vector_in_both_releases_is_unchanged():
    without_second = np.diag([1.0, 0.0, 1.0]).astype(np.float32)
    assert lowest_cosine(without_second, without_second) == pytest.approx(1)
    assert lowest_cosine(without_second, np.eye(3, dtype=np.float32)) == 0
    assert lowest_cosine(np.eye(3, dtype=np.float32), without_second) == 0


def metrics_of_small_index(**changes: object) -> IndexMetrics:
    """Measure a small index, and change some of the values."""
    index, queries, truth = build_with_truth("ivf_flat", clustered(1_000))
    return measure(Parts([index]), queries, truth, IndexSettings(), GateSettings()).model_copy(update=changes)


def row_metrics(rows: int, good: int, quarantined: int, **others: Any) -> RowMetrics:
    return RowMetrics(RowCounts(rows=rows, good=good, quarantined=quarantined), **others)


@pytest.mark.parametrize(
    ("changes", "row_counts", "settings", "failed_gates"),
    [
        ({}, row_metrics(1_010, 1_000, 10), GateSettings(), set()),
        ({}, row_metrics(1_010, 1_000, 9), GateSettings(), {"row_conservation"}),
        ({"rows": 999}, row_metrics(1_000, 1_000, 0), GateSettings(), {"indexed_rows"}),
        ({}, row_metrics(1_000, 1_000, 0, bad_vectors=1), GateSettings(), {"finite_vectors"}),
        ({}, row_metrics(1_000, 1_000, 0, duplicate_ids=1), GateSettings(), {"unique_ids"}),
        ({"duplicate_addresses": 1}, row_metrics(1_000, 1_000, 0), GateSettings(), {"unique_ids"}),
        (
            {"recall": {"10": Proportion.of(940, 1_000)}},
            row_metrics(1_000, 1_000, 0),
            GateSettings(),
            set(),
        ),  # 0.953 is the upper end
        (
            {"recall": {"10": Proportion.of(920, 1_000)}},
            row_metrics(1_000, 1_000, 0),
            GateSettings(),
            {"recall_at_10"},
        ),
        (
            {"recall": {"10": Proportion.of(920, 1_000)}},
            row_metrics(1_000, 1_000, 0),
            GateSettings(recall_at_10=None),
            set(),
        ),
        ({"file_bytes": 2**30 + 1}, row_metrics(1_000, 1_000, 0), GateSettings(max_size_gib=1), {"size_gib"}),
        ({}, row_metrics(1_000, 1_000, 0), GateSettings(p99_ms=1e-6), {"p99_ms"}),
        ({}, row_metrics(2_000, 1_000, 1_000, max_quarantined=0.5), GateSettings(), set()),
        ({}, row_metrics(2_001, 1_000, 1_001, max_quarantined=0.5), GateSettings(), {"quarantined"}),
        ({}, row_metrics(1_000, 1_000, 0, failed_canaries=1), GateSettings(), {"canary_cosine"}),
    ],
)
def test_each_gate_refuses_values_beyond_its_threshold(changes, row_counts, settings, failed_gates):
    gates = judge(metrics_of_small_index(**changes), row_counts, settings)
    assert {name for name, gate in gates.items() if not gate.passed} == failed_gates
    assert all(gate.sentence for gate in gates.values())


@pytest.mark.parametrize(
    ("cosine", "dtype", "threshold", "passed"),
    [
        (0.99995, "float32", None, True),
        (0.9995, "float32", None, False),
        (0.9995, "bfloat16", None, True),
        (0.995, "bfloat16", None, False),
        (0.995, "int8", None, True),
        (0.98, "int8", None, False),
        (0.9995, "float32", 0.99, True),
        (0.98, "float16", 0.99, False),
    ],
)
def test_the_canary_threshold_depends_on_precision_and_settings(cosine, dtype, threshold, passed):
    gates = judge(
        metrics_of_small_index(),
        row_metrics(1_000, 1_000, 0),
        GateSettings(canary_cosine=threshold),
        canary=cosine,
        dtype=dtype,
    )
    assert gates["canary_cosine"].passed is passed


def test_a_canary_without_a_finite_vector_is_not_compared_with_a_previous_release():
    gate = judge(metrics_of_small_index(), row_metrics(1_000, 1_000, 0, failed_canaries=3), GateSettings())[
        "canary_cosine"
    ]
    assert gate.sentence.startswith("the encoder gives NaN or infinity for 3 canary texts; ")


@pytest.mark.parametrize(
    ("hits", "effort", "is_fixed", "settings", "words"),
    [
        (945, 64, False, {}, None),  # the upper end of its interval is above 0.95
        (
            900,
            64,
            False,
            {},
            "of the values of nprobe that are tried, none above 64 helps: choose a more exact",
        ),
        (900, None, False, {}, "the codes of the index are not exact enough for these queries: choose"),
        (900, 2, True, {}, "raise index.nprobe from 2, or set it to null"),
        (900, 64, False, {"recall_at_10_queries": 0.85}, None),
        (900, 64, False, {"recall_at_10": 0.99, "recall_at_10_queries": 0.85}, None),
        (990, 64, False, {"recall_at_10_queries": 1.0}, "1 at least within it; of the values of nprobe"),
        (100, 64, False, {"recall_at_10_queries": 0}, None),
        (100, 64, False, {"recall_at_10": None}, None),
    ],
)
def test_the_recall_of_users_refuses_beyond_its_interval_and_says_what_to_change(
    hits: int, effort: int | None, is_fixed: bool, settings: dict[str, float | None], words: str | None
):
    gates = GateSettings.model_validate({"queries": "queries.txt", **settings})
    measured = metrics_of_small_index(
        user_recall=Proportion.of(hits, 1_000),
        user_queries=200,
        effort=effort,
        effort_name=None if effort is None else "nprobe",
    )
    gate = user_recall_gate(measured, gates, " (remarks)", is_fixed=is_fixed)
    assert (gate.passed, gate.value) == (words is None, hits / 1_000)
    assert "recall@10 of 200 queries of gates.queries (remarks) is" in gate.sentence
    if words is not None:
        assert words in gate.sentence
        assert "accept less by gates.recall_at_10_queries" in gate.sentence
    if gate.threshold is None:
        assert "reported only" in gate.sentence


def test_an_effort_that_suffices_for_half_of_the_queries_alone_asks_for_more_of_them():
    point = CurvePoint(effort=64, recall_at_10=0.97, low=0.96, query_ms=1.0)
    measured = metrics_of_small_index(
        user_recall=Proportion.of(90, 100), user_queries=20, user_curve=(point,), effort=64
    )
    gate = user_recall_gate(measured, GateSettings(queries="queries.txt"))
    assert not gate.passed
    assert (
        "the half of the queries that nprobe 64 was chosen with reaches it: give more queries"
        in gate.sentence
    )
