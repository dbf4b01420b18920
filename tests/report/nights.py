"""Release reports: the smallest one, one with all values, and a refused one."""

from dataclasses import replace

import numpy as np

from pipeline.report.changes import ChangedAnswers, Neighbour, Previous, QuarantinedRow, RowChange
from pipeline.report.night import (
    Counts,
    GateRow,
    Index,
    NightReport,
    ProportionInterval,
    QueryLatency,
    RecallPoint,
    SearchExample,
    StageTime,
    Throughput,
    VectorCharts,
)
from pipeline.stats.sample import cosine_histogram
from pipeline.text.tokens.coverage import ScriptCoverage
from tests.charts.lengths import length_histogram

X = np.random.default_rng(0).normal(loc=0.3, size=(500, 16))

SMALLEST = NightReport(
    root="/srv/manta",
    status="published",
    number=1,
    candidate="c0ffee" * 6,
    encoder="tiny",
    dim=16,
    space_id="5face" * 8,
    index=Index("flat", "Flat", 32_500_000, ("indexes/a.faiss",)),
    counts=Counts(read=300, live=300, encoded=300),
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
        nprobe=4,
        curve=(RecallPoint(1, 0.6, 0.05), RecallPoint(2, 0.8, 0.08), RecallPoint(4, 0.96, 0.15)),
        target=0.95,
        recall_at_10=ProportionInterval(0.957, 0.951, 0.962),
        recall={"recall@1": 0.99},
        latency=QueryLatency(0.1834, 0.92),
    ),
    counts=Counts(
        read=20_000,
        live=19_048,
        encoded=1_204,
        reused=17_844,
        quarantined={"empty": 820, "duplicate_id": 7},
        skipped=125,
        new=900,
        changed=304,
        deleted=55,
        truncated=212,
    ),
    previous=Previous(41, 18_203, 32_000_000, 0.9542, 0.171, 0.8, 171.0),
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
        ChangedAnswers("same question", (Neighbour("1", 0.9, "one"),), (Neighbour("1", 0.9, "one"),)),
        ChangedAnswers(
            "other question",
            (Neighbour("1", 0.9, "one"), Neighbour("2", 0.8, "gone answer")),
            (Neighbour("3", 0.95, "fresh answer"), Neighbour("1", 0.9, "one")),
        ),
    ),
    decisions=("Whitening is used: MRR 0.6124 raw, 0.6371 whitened.",),
    stages=(StageTime("ingest", 2.1), StageTime("encode", 181.0, 1_204), StageTime("publish", 0.0)),
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
        SearchExample(
            "join two paths",
            (
                Neighbour("posixpath.join", 0.8123, "Join two or more pathname components."),
                Neighbour("7", -0.1),
            ),
        ),
    ),
    gates=(
        GateRow("recall_at_10", 0.957, 0.95, True),
        GateRow("canary_cosine", 0.9999998, 0.9999, True),
        GateRow("p99_ms", None, None, True, "at most"),
    ),
    covered=ScriptCoverage.of(
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
    gates=(GateRow("recall_at_10", 0.91, 0.95, False), GateRow("canary_cosine", None, 0.9999, False)),
)
