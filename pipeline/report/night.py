"""Release report of a night."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from pipeline.charts import night
from pipeline.charts.night import RecallPoint
from pipeline.post.choose import Curve
from pipeline.report.changes import (
    ChangedAnswers,
    Neighbour,
    Previous,
    QuarantinedRow,
    RowChange,
    by_kind,
    difference,
)
from pipeline.report.formats import cosine, excerpt, gate_name, gate_value, percent_interval
from pipeline.report.page import Filters, fill
from pipeline.stats.sample import Histogram
from pipeline.store.manifest import OUTSIDE_RECALL
from pipeline.text.tokens.coverage import ScriptCoverage, script_phrase

Status = Literal["published", "refused", "held"]
"""held: passed every gate, but not published, because the root is held at another release"""


@dataclass(frozen=True)
class ProportionInterval:
    """A proportion with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class QueryLatency:
    """Milliseconds of a single query on one thread."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Counts:
    """Numbers of rows: read = live + quarantined + skipped, live = encoded + reused; others overlap."""

    read: int
    live: int
    encoded: int
    reused: int = 0
    quarantined: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0
    new: int = 0
    changed: int = 0
    deleted: int = 0
    truncated: int = 0
    duplicate_texts: int = 0
    """live rows with the text of another row, which is encoded once"""


@dataclass(frozen=True)
class StageTime:
    """A stage of the night with its wall time."""

    name: str
    seconds: float
    rows: int | None = None


@dataclass(frozen=True)
class Throughput:
    """Rates of encoding, and proportions of time spent waiting for tokenizer, device, store ... (0 to 1)."""

    rows_per_s: float
    tokens_per_s: float
    waiting: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Index:
    """The published index.

    Attributes:
        kind: kind of index.
        factory: faiss factory string.
        bytes: size of its files.
        files: paths of the index files, relative to the root.
        ids: paths of the id tables, relative to the root.
        nprobe: search effort stored in the file.
        effort: name of the search effort: nprobe or efSearch.
        curve: recall and time by ascending search effort; empty for exhaustive search.
        target: required recall@10.
        recall_at_10: recall@10 with its interval.
        recall: further recalls, such as {"recall@1": 0.99, "recall@100": 0.97}.
        latency: time per query.
    """

    kind: str
    factory: str
    bytes: int
    files: tuple[str, ...]
    ids: tuple[str, ...] = ()
    nprobe: int | None = None
    effort: str = "nprobe"
    curve: tuple[RecallPoint, ...] = ()
    target: float | None = None
    recall_at_10: ProportionInterval | None = None
    recall: Mapping[str, float] = field(default_factory=dict)
    latency: QueryLatency | None = None


@dataclass(frozen=True)
class VectorCharts:
    """Singular values (relative to the largest) and cosines of random pairs, raw and transformed."""

    spectrum: tuple[float, ...] | None = None
    spectrum_whitened: tuple[float, ...] | None = None
    cosines: Histogram | None = None
    cosines_whitened: Histogram | None = None
    notes: tuple[str, ...] = ()
    """notes below the charts: rank, condition, sample sizes"""
    moved: str = "whitened"
    """name of the transformed vectors"""


@dataclass(frozen=True)
class SearchExample:
    """A query with its nearest neighbours, best first."""

    query: str
    neighbours: tuple[Neighbour, ...]


@dataclass(frozen=True)
class GateRow:
    """A condition for publishing; value None: not measured; threshold None: only reported."""

    name: str
    value: float | None
    threshold: float | None
    passed: bool
    relation: Literal["at least", "at most", "exactly"] = "at least"


@dataclass(frozen=True, kw_only=True)
class NightReport:
    """Values of the report; empty ones are left out."""

    root: str
    commits_root: str | None = None
    """folder of the commits, if not below root"""
    status: Status
    number: int | None
    """number of the release; None for a refused candidate"""
    candidate: str
    """id of the manifest"""
    parent: int | None = None
    created: str | None = None
    """date and time, formatted"""
    encoder: str
    dim: int
    """dimension of the raw vectors"""
    space_id: str
    transform_id: str | None = None
    transform: str | None = None
    """description of the transform that the index applies"""
    index: Index
    counts: Counts
    decisions: tuple[str, ...] = ()
    stages: tuple[StageTime, ...] = ()
    throughput: Throughput | None = None
    lengths: Histogram | None = None
    max_length: int | None = None
    geometry: VectorCharts = VectorCharts()
    curves: tuple[Curve, ...] = ()
    """curves from which sizes of the transform were chosen"""
    examples: tuple[SearchExample, ...] = ()
    gates: tuple[GateRow, ...] = ()
    covered: ScriptCoverage | None = None
    """token coverage by script"""
    warnings: tuple[str, ...] = ()
    previous: Previous | None = None
    changed_rows: tuple[RowChange, ...] = ()
    """a few of the new, changed and deleted rows"""
    quarantined: tuple[QuarantinedRow, ...] = ()
    """a few of the quarantined rows"""
    answers: tuple[ChangedAnswers, ...] = ()
    """results of the fixed queries"""
    settings: str = ""
    """YAML"""
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def refusals(self) -> tuple[GateRow, ...]:
        """Gates that did not pass."""
        return tuple(gate for gate in self.gates if not gate.passed)

    @property
    def seconds(self) -> float:
        """Duration of all stages."""
        return sum(stage.seconds for stage in self.stages)


def render(report: NightReport) -> str:
    """Render the page; all texts are escaped."""
    filters: Filters = {
        "plain": gate_value,
        "excerpt": excerpt,
        "cosine": cosine,
        "interval": lambda each: percent_interval(each.low, each.high),
        "gate_name": gate_name,
        "shell": shlex.quote,
        "literal": repr,
        "script": script_phrase,
    }
    return fill(
        "night.html.j2",
        filters,
        report=report,
        charts=_charts(report),
        flow=_flow(report.counts),
        deltas=_deltas(report),
        kinds=list(by_kind(report.changed_rows)),
        asked=_asked(report),
    )


def _deltas(report: NightReport) -> dict[str, str]:
    """Describe how each tile differs from the previous release; empty if unknown."""
    before, index = report.previous, report.index
    if before is None:
        return dict.fromkeys(("rows", "recall", "latency", "index", "time"), "")
    recall, latency, number = index.recall_at_10, index.latency, before.number
    points = None if before.recall_at_10 is None else 100 * before.recall_at_10
    return {
        "rows": difference(report.counts.live, before.rows, number, 1),
        "recall": difference(100 * recall.value, points, number, 0.1, " points") if recall else "",
        "latency": difference(latency.p50_ms, before.p50_ms, number, 0.01, " ms") if latency else "",
        "index": difference(100 * index.bytes / before.bytes, 100, number, 0.1, " %") if before.bytes else "",
        "time": difference(report.seconds, before.seconds, number, 1, " s"),
    }


def _asked(report: NightReport) -> str:
    """Describe the queries that recall was measured with."""
    rows = "Recall is measured with rows of the corpus as queries."
    if any(gate.name == OUTSIDE_RECALL for gate in report.gates):
        return (
            f"{rows} Recall@10 queries is measured with the texts of gates.queries, which are not from the "
            "corpus; it is reported and refuses nothing."
        )
    if report.index.kind == "flat":
        return f"{rows} This index compares each query with every row, so that other texts lose nothing."
    return (
        f"{rows} It may be lower for other texts, above all if the index compresses vectors; "
        "set gates.queries to measure that."
    )


def _charts(report: NightReport) -> dict[str, Any]:
    """Draw the charts for which there are values, by name."""
    vectors, index = report.geometry, report.index
    drawn = {
        "spectrum": vectors.spectrum
        and partial(night.spectrum_chart, vectors.spectrum, vectors.spectrum_whitened),
        "cosines": vectors.cosines and partial(night.cosine_chart, vectors.cosines, vectors.cosines_whitened),
        "lengths": report.lengths
        and report.lengths.total
        and partial(night.length_chart, report.lengths, report.max_length or 0),
        "recall": index.curve
        and partial(night.recall_chart, index.curve, index.nprobe, index.target, index.effort),
    }
    drawn |= {
        f"choice of {curve.setting}": partial(night.choice_chart, curve.points, curve.chosen, curve.setting)
        for curve in report.curves
    }
    return {name: draw() for name, draw in drawn.items() if draw}


def _flow(counts: Counts) -> list[tuple[str, str, int]]:
    """Return (css class, words, number) of the parts that rows were divided into, without empty ones."""
    return [
        part
        for part in (
            ("encoded", "encoded", counts.encoded),
            ("reused", "reused", counts.reused),
            ("bad", "quarantined", sum(counts.quarantined.values())),
            ("skipped", "skipped", counts.skipped),
        )
        if part[2]
    ]
