"""Recall counts what exact search counts, effort is the least that reaches the target, and gates are values."""

import functools
import math

import faiss
import numpy as np
import pytest
from scipy.stats import binomtest

from pipeline.index.build import fill, train, write_index
from pipeline.index.finish import finish, measure, measure_parts
from pipeline.index.merge import Part
from pipeline.index.parts import Parts
from pipeline.index.plan import plan_index
from pipeline.index.truth import ExactTopK
from pipeline.index.validate import (
    Counted,
    Measured,
    Share,
    choose_nprobe,
    effort_name,
    get_effort,
    judge,
    latency,
    lowest_cosine,
    recall,
    set_effort,
)
from pipeline.settings import GateSettings, IndexSettings
from tests.index.clustered import Vectors, clustered, cosines, some_map


def built(kind: str, vectors: Vectors, step: int = 20):
    plan = plan_index(
        len(vectors.raw), 28, IndexSettings(kind=kind, nlist=40 if kind.startswith("ivf") else None)
    )
    index = train(plan, some_map(), vectors.raw)
    queries = vectors.queries(step)
    truth = fill(index, vectors.batches(), ExactTopK(queries, some_map())).neighbours
    assert truth is not None
    return index, queries, truth


@pytest.mark.parametrize(
    ("kind", "effort"),
    [("ivf_flat", 1), ("ivf_flat", 2), ("ivf_flat", 40), ("PCA8,Flat", 0), ("IVF20,SQ4", 5), ("HNSW4", 16)],
)
def test_recall_equals_numpy_where_no_scores_are_equal(kind, effort):
    vectors = clustered(3_000)
    index, queries, truth = built(kind, vectors)
    set_effort(index, effort)
    exact = cosines(queries.vectors, vectors.raw, some_map())
    exact[np.arange(len(queries)), np.arange(0, 3_000, 20)] = -np.inf
    for k, share in recall(index, queries, truth).items():
        found = index.search(queries.vectors, k + 1)[1]
        best = vectors.addresses[np.argsort(-exact, axis=1)[:, :k]]
        others = [row[row != own][:k] for row, own in zip(found, queries.addresses, strict=True)]
        hits = sum(len(np.intersect1d(a, b)) for a, b in zip(others, best, strict=True))
        assert share.trials == k * len(queries)
        assert share.hits == pytest.approx(hits, abs=2)  # neighbours within 1e-6 of the k-th may be in either


def test_exhaustive_search_has_recall_one_among_many_equal_texts():
    vectors = clustered(2_000)
    vectors.raw[:1_000] = vectors.raw[0]  # far more than the margin
    vectors.raw[1_000:1_060] = vectors.raw[1_000]
    for kind in ("flat", "ivf_flat"):
        index, queries, truth = built(kind, vectors)
        set_effort(index, 40)
        assert all(share.value == 1.0 for share in recall(index, queries, truth).values())


def test_fewer_rows_than_asked_for_are_all_found():
    index, queries, truth = built("flat", clustered(6), step=1)
    shares = recall(index, queries, truth)
    assert {k: (share.hits, share.trials) for k, share in shares.items()} == {
        1: (6, 6),
        10: (30, 30),
        100: (30, 30),
    }
    lone, queries, truth = built("flat", clustered(1), step=1)
    assert recall(lone, queries, truth)[10].value == 1.0


@pytest.mark.parametrize(("kind", "name"), [("ivf_flat", "nprobe"), ("hnsw", "efSearch")])
def test_the_chosen_effort_is_the_least_on_its_grid_and_the_file_keeps_it(kind, name, tmp_path):
    index, queries, truth = built(kind, clustered(4_000))
    assert effort_name(index) == name
    effort, curve = choose_nprobe(index, queries, truth, 0.9)
    assert effort == min(point.effort for point in curve if point.low >= 0.9)
    assert all(point.low < point.recall_at_10 for point in curve)
    assert [point.effort for point in curve] == sorted({point.effort for point in curve})
    write_index(index, tmp_path / "index.faiss")
    assert get_effort(faiss.read_index(str(tmp_path / "index.faiss"))) == effort


def test_a_target_out_of_reach_takes_the_best_there_is():
    index, queries, truth = built("SQ4", clustered(2_000))
    assert choose_nprobe(index, queries, truth, 1.0) == (None, ())
    index, queries, truth = built("IVF20,SQ4", clustered(2_000))
    effort, curve = choose_nprobe(index, queries, truth, 1.0)
    best = max(point.recall_at_10 for point in curve)
    assert best < 1
    assert effort == min(point.effort for point in curve if point.recall_at_10 == best)


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (950, 1_000), (1, 1)])
def test_intervals_are_wilsons(hits, trials):
    share, expected = Share.of(hits, trials), binomtest(hits, trials).proportion_ci(0.95, "wilson")
    assert (share.low, share.high) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_latency_is_of_single_queries():
    index, queries, _ = built("flat", clustered(1_000))
    times = latency(index, queries, most=30)
    assert times.queries == 30
    assert 0 < times.p50_ms <= times.p99_ms


def test_the_lowest_cosine_finds_the_one_that_moved():
    before = np.eye(4, dtype=np.float32)
    now = before.copy()
    now[2] = [0, 0, math.cos(0.1), math.sin(0.1)]
    assert lowest_cosine(before, 3 * now) == pytest.approx(math.cos(0.1))


def test_a_text_without_a_vector_then_and_now_did_not_move():
    some = np.diag([1.0, 0.0, 1.0]).astype(np.float32)
    assert lowest_cosine(some, some) == pytest.approx(1)
    assert lowest_cosine(some, np.eye(3, dtype=np.float32)) == 0
    assert lowest_cosine(np.eye(3, dtype=np.float32), some) == 0


def measured(**changes: object) -> Measured:
    index, queries, truth = built("ivf_flat", clustered(1_000))
    return measure(index, queries, truth, IndexSettings(), 0.95).model_copy(update=changes)


@pytest.mark.parametrize(
    ("changes", "counted", "settings", "refused"),
    [
        ({}, Counted(1_010, 1_000, 10), GateSettings(), set()),
        ({}, Counted(1_010, 1_000, 9), GateSettings(), {"row_conservation"}),
        ({}, Counted(1_010, 1_000, 4, skipped=6), GateSettings(), set()),
        ({"rows": 999}, Counted(1_000, 1_000, 0), GateSettings(), {"indexed_rows"}),
        ({}, Counted(1_000, 1_000, 0, bad_vectors=1), GateSettings(), {"finite_vectors"}),
        ({}, Counted(1_000, 1_000, 0, duplicate_ids=1), GateSettings(), {"unique_ids"}),
        ({"duplicate_addresses": 1}, Counted(1_000, 1_000, 0), GateSettings(), {"unique_ids"}),
        (
            {"recall": {"10": Share.of(940, 1_000)}},
            Counted(1_000, 1_000, 0),
            GateSettings(),
            set(),
        ),  # 0.953 is the upper end
        (
            {"recall": {"10": Share.of(920, 1_000)}},
            Counted(1_000, 1_000, 0),
            GateSettings(),
            {"recall_at_10"},
        ),
        (
            {"recall": {"10": Share.of(920, 1_000)}},
            Counted(1_000, 1_000, 0),
            GateSettings(recall_at_10=None),
            set(),
        ),
        ({"file_bytes": 2**30 + 1}, Counted(1_000, 1_000, 0), GateSettings(max_size_gib=1), {"size_gib"}),
        ({}, Counted(1_000, 1_000, 0), GateSettings(p99_ms=1e-6), {"p99_ms"}),
        ({}, Counted(2_000, 1_000, 1_000, most_quarantined=0.5), GateSettings(), set()),
        ({}, Counted(2_001, 1_000, 1_001, most_quarantined=0.5), GateSettings(), {"quarantined"}),
        ({}, Counted(1_000, 1_000, 0, failed_canaries=1), GateSettings(), {"canary_cosine"}),
    ],
)
def test_gates_refuse_what_they_are_there_for(changes, counted, settings, refused):
    gates = judge(measured(**changes), counted, settings)
    assert {name for name, gate in gates.items() if not gate.passed} == refused
    assert all(gate.sentence for gate in gates.values())


@pytest.mark.parametrize(
    ("cosine", "dtype", "own", "passed"),
    [
        (0.99995, "float32", None, True),
        (0.9995, "float32", None, False),
        (0.9995, "bfloat16", None, True),
        (0.9995, "float32", 0.99, True),
        (0.98, "float16", 0.99, False),
    ],
)
def test_canaries_are_bound_by_the_arithmetic(cosine, dtype, own, passed):
    gates = judge(
        measured(), Counted(1_000, 1_000, 0), GateSettings(canary_cosine=own), canary=cosine, dtype=dtype
    )
    assert gates["canary_cosine"].passed is passed


def test_a_canary_without_a_finite_vector_is_not_compared_with_a_previous_release():
    gate = judge(measured(), Counted(1_000, 1_000, 0, failed_canaries=3), GateSettings())["canary_cosine"]
    assert gate.sentence.startswith("the encoder gives NaN or infinity for 3 canary texts; ")


@pytest.mark.parametrize("on_disk", ["never", "always"])
def test_a_build_ends_with_files_that_hold_what_was_measured(on_disk, tmp_path):
    vectors, settings = clustered(3_000), IndexSettings(kind="ivf_flat", nlist=30, on_disk=on_disk)
    plan = plan_index(3_000, 28, settings)
    queries, parts, truths = vectors.queries(15), [], []
    for number, rows in enumerate((slice(0, 1_000), slice(1_000, None))):
        index = train(plan, some_map(), vectors.raw)
        filled = fill(index, vectors.part(rows).batches(), ExactTopK(queries, some_map()))
        write_index(index, tmp_path / f"part{number}.faiss")
        parts.append(
            Part(
                tmp_path / f"part{number}.faiss",
                filled.rows,
                filled.probe_addresses,
                filled.probe_vectors,
                "space",
            )
        )
        truths.append(filled.neighbours)
    (tmp_path / "out").mkdir()
    files, found = finish(
        plan,
        settings,
        GateSettings(),
        queries,
        parts,
        functools.reduce(ExactTopK(queries).merge, truths),
        tmp_path / "out",
    )
    result = Measured.model_validate(found)
    assert [file.suffix for file in files] == ([".faiss", ".ivfdata"] if on_disk == "always" else [".faiss"])
    assert (result.rows, result.queries, result.duplicate_addresses) == (3_000, 100, 0)
    assert result.file_bytes == sum(file.stat().st_size for file in files)
    assert result.recall["10"].value > 0.9
    assert result.effort == get_effort(
        faiss.read_index(str(files[0]), faiss.IO_FLAG_ONDISK_SAME_DIR if on_disk == "always" else 0)
    )


@pytest.mark.parametrize(
    ("kind", "effort", "efforts"),
    [
        ("ivf_flat", 8, [2, 4, 8, 16]),
        ("ivf_flat", 1, [1, 2]),
        ("ivf_flat", 30, [7, 15, 30, 40]),
        ("flat", 1, []),
    ],
)
def test_parts_are_measured_at_the_effort_that_they_have(kind, effort, efforts):
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
    assert measure(index, queries, truth, IndexSettings(nprobe=7), 0.95).effort == 7
    assert measure(index, queries, truth, IndexSettings(nprobe=999), 0.95).effort == 40


def test_answers_that_come_together_count_as_few_trials():
    whole, apart = Share.of(50, 100, independent=10), Share.of(5, 10)
    assert (whole.value, whole.low, whole.high) == (apart.value, apart.low, apart.high)
    index, queries, truth = built("ivf_flat", clustered(4_000), step=8)
    set_effort(index, 2)
    found = recall(index, queries, truth)[10]
    rng = np.random.default_rng(0)
    rates = [
        recall(index, queries[place : place + 1], truth[place : place + 1])[10].value
        for place in range(len(queries))
    ]
    drawn = [
        rng.choice(rates, len(rates)).mean() for _ in range(2_000)
    ]  # queries drawn anew: the spread that other queries would show
    np.testing.assert_allclose([found.low, found.high], np.quantile(drawn, [0.025, 0.975]), atol=0.01)
