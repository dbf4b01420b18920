"""Release reports: the smallest one, one with all values, and a refused one."""

from dataclasses import replace

import numpy as np

from pipeline.index.measure.metrics import CurvePoint, IndexMetrics, Latency, Proportion
from pipeline.log import Stage
from pipeline.report.changes import ChangedAnswers, QuarantinedRow, ReleaseChange, RowChange
from pipeline.report.night import (
    IndexSection,
    NightCounts,
    NightReport,
    Throughput,
    VectorCharts,
)
from pipeline.report.relevance import QueryScores, RelevanceSection
from pipeline.stats.drift import Drift
from pipeline.stats.sample import cosine_histogram
from pipeline.store.releases.fixed_query_results import Answers, Hit
from pipeline.store.releases.manifest import Gate
from pipeline.store.releases.summary import Summary
from pipeline.text.tokens.coverage import ScriptCoverage
from tests.charts.lengths import length_histogram

X = np.random.default_rng(0).normal(loc=0.3, size=(500, 16))
_ONE = Hit(id="1", score=0.9, text="one")

EXHAUSTIVE = IndexMetrics(
    rows=300,
    recall={"10": Proportion(hits=957, trials=1_000, value=0.957, low=0.951, high=0.962)},
    effort=None,
    effort_name=None,
    curve=(),
    latency=Latency(queries=100, p50_ms=0.1834, p99_ms=0.92),
    queries=100,
    duplicate_addresses=0,
    file_bytes=32_500_000,
    nlist=0,
    imbalance=1.0,
    fingerprint="f00d",
)
SMALLEST = NightReport(
    root="/srv/manta",
    status="published",
    number=1,
    candidate="c0ffee" * 6,
    encoder="tiny",
    dim=16,
    space_id="5face" * 8,
    index=IndexSection("flat", "Flat", 32_500_000, ("indexes/a.faiss",), EXHAUSTIVE),
    counts=NightCounts(rows=300, good=300, encoded=300),
)
FULL = replace(
    SMALLEST,
    number=42,
    parent=41,
    created="2025-11-03 03:12 UTC",
    transform_id="7a57e" * 8,
    transform="whitening to 15 components",
    index=replace(
        SMALLEST.index,
        kind="ivf_flat",
        factory="IVF64,Flat",
        ids=("ids/a.arrow",),
        target=0.95,
        metrics=EXHAUSTIVE.model_copy(
            update={
                "recall": EXHAUSTIVE.recall | {"1": Proportion.of(99, 100)},
                "effort": 4,
                "effort_name": "nprobe",
                "curve": (
                    CurvePoint(effort=1, recall_at_10=0.6, query_ms=0.05),
                    CurvePoint(effort=2, recall_at_10=0.8, query_ms=0.08),
                    CurvePoint(effort=4, recall_at_10=0.96, query_ms=0.15),
                ),
            }
        ),
    ),
    counts=NightCounts(
        rows=19_875,
        good=19_048,
        quarantined=827,
        encoded=1_204,
        reused=17_844,
        reasons={"empty": 820, "duplicate_id": 7},
        new=900,
        changed=304,
        deleted=55,
        truncated=212,
    ),
    previous=Summary(
        release=41,
        rows=18_203,
        recall_at_10=0.9542,
        p50_ms=0.171,
        p99_ms=0.8,
        index_kind="ivf_pq",
        index_bytes=32_000_000,
        seconds=171.0,
    ),
    changed_rows=(
        RowChange("n1", None, "a new text"),
        RowChange("c1", "the text before", "the text after"),
        RowChange("d1", "a deleted text", None),
    ),
    quarantined=(
        QuarantinedRow("empty", "part-0.parquet", 17, "e1"),
        QuarantinedRow("duplicate_id", "b.parquet", 3, "x", "a.parquet row 1 has it first", "twice"),
    ),
    answers=(
        ChangedAnswers("same question", (_ONE,), (_ONE,)),
        ChangedAnswers(
            "other question",
            (_ONE, Hit(id="2", score=0.8, text="gone answer")),
            (Hit(id="3", score=0.95, text="fresh answer"), _ONE),
        ),
    ),
    change=ReleaseChange(
        41,
        "../../releases/00000041/report.html",
        Drift(0.01, 0.0234, 0.0),
        {"encoder.path": ("old", "new <model>"), "whiten.k": (None, 4)},
    ),
    relevance=RelevanceSection(
        "nDCG@10",
        ("nDCG@10 of 40 queries is 0.8125", "nDCG@10 changed by -0.0125"),
        differing=3,
        changed=(QueryScores("lost question", 1.0, 0.63), QueryScores("won question", 0.0, 0.5)),
    ),
    decisions=("Whitening is used: MRR 0.6124 raw, 0.6371 whitened.",),
    stages=(Stage("ingest", seconds=2.1), Stage("encode", seconds=181.0), Stage("publish")),
    throughput=Throughput(512.3, 9_120.8, {"tokenizer": 0.012, "store": 0.034}),
    lengths=length_histogram(np.array([3, 5, 9, 300]), 256),
    max_length=256,
    geometry=VectorCharts(
        (1.0, 0.5),
        (1.0, 0.9),
        cosine_histogram(X),
        cosine_histogram(X - 0.3),
        ("15 of 16 components are kept.",),
    ),
    examples=(
        Answers(
            query="join two paths",
            hits=(
                Hit(id="posixpath.join", score=0.8123, text="Join two or more pathname components."),
                Hit(id="7", score=-0.1, text=""),
            ),
        ),
    ),
    gates={
        "recall_at_10": Gate(value=0.957, threshold=0.95, passed=True),
        "canary_cosine": Gate(value=0.9999998, threshold=0.9999, passed=True),
        "p99_ms": Gate(value=None, threshold=None, passed=True, relation="at most"),
    },
    token_coverage=ScriptCoverage.of(
        {
            "script_latin_rows": 19_000,
            "script_latin_tokens": 90_000,
            "script_thai_rows": 48,
            "script_thai_tokens": 90,
            "script_thai_unknown": 81,
        }
    ),
    warnings=("90.0% of the tokens of 48 Thai texts are unknown to the encoder's tokenizer",),
    settings="corpus:\n  uri: a<b\n",
    packages={"torch": "2.13.0"},
)
REFUSED = replace(
    FULL,
    status="refused",
    number=None,
    gates={
        "recall_at_10": Gate(value=0.91, threshold=0.95, passed=False),
        "canary_cosine": Gate(value=None, threshold=0.9999, passed=False),
    },
)
