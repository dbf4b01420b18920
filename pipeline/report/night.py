"""Render the report of a night: its release or its refused candidate."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from markupsafe import Markup

from pipeline.charts import night
from pipeline.index.measure.metrics import IndexMetrics, Latency
from pipeline.log import Stage, counted
from pipeline.report.changes import (
    ChangedAnswers,
    QuarantinedRow,
    ReleaseChange,
    RowChange,
    format_difference,
    group_by_kind,
)
from pipeline.report.formats import cosine, excerpt, gate_name, gate_value, percent_interval
from pipeline.report.page import Filters, render_template
from pipeline.report.relevance import RelevanceSection
from pipeline.stats.sample import Histogram
from pipeline.store.records.units import RowCounts, filter_name
from pipeline.store.releases.fixed_query_results import Answers
from pipeline.store.releases.manifest import FAR_QUERIES, QUERY_DRIFT, USER_QUERY_RECALL, Gate
from pipeline.store.releases.summary import Summary
from pipeline.text.tokens.coverage import ScriptCoverage, script_phrase
from pipeline.transforms.choose import Curve

Status = Literal["published", "refused", "held", "waiting"]
"""held, waiting: the night passed every gate and is not published, because the root is held, or because it
needs an approval."""


class NightCounts(RowCounts):
    """Numbers of rows; good rows are live, and were encoded or reused."""

    encoded: int
    reused: int = 0
    reasons: Mapping[str, int] = {}
    """quarantined rows by reason"""
    filters: Mapping[str, int] = {}
    """filtered rows by setting: where, exclude"""
    new: int = 0
    changed: int = 0
    deleted: int = 0
    truncated: int = 0
    duplicate_texts: int = 0
    """live rows with the text of another row, which is encoded once"""
    documents: int | None = None
    """documents of which the live rows are chunks; None if rows are not cut"""


@dataclass(frozen=True)
class Throughput:
    """Speed of encoding, and proportions of the time (0 to 1) spent waiting, by cause."""

    rows_per_s: float
    tokens_per_s: float
    waiting: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class IndexSection:
    """The index of the release or candidate."""

    kind: str
    """kind of index"""
    factory: str
    """faiss factory string"""
    bytes: int
    """size of the index files"""
    files: tuple[str, ...]
    """paths of the index files, relative to the root"""
    metrics: IndexMetrics
    """recall, latency, file size and balance of the index"""
    ids: tuple[str, ...] = ()
    """paths of the id tables, relative to the root"""
    target: float | None = None
    """recall@10 that the gate requires"""


@dataclass(frozen=True)
class VectorCharts:
    """Singular values (relative to the largest) and cosines of random pairs, raw and transformed."""

    spectrum: tuple[float, ...] | None = None
    spectrum_whitened: tuple[float, ...] | None = None
    cosines: Histogram | None = None
    cosines_whitened: Histogram | None = None
    notes: tuple[str, ...] = ()
    """notes below the charts: rank, condition, sample sizes"""
    transformed_name: str = "whitened"
    """name of the transformed vectors"""


@dataclass(frozen=True, kw_only=True)
class NightReport:
    """Values of the report, which omits the sections of empty values."""

    root: str
    commits_root: str | None = None
    """folder of the commits, if not below root"""
    status: Status
    number: int | str | None
    """number of the release, or a text that stands for it until it is known; None for a candidate"""
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
    index: IndexSection
    counts: NightCounts
    decisions: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    throughput: Throughput | None = None
    lengths: Histogram | None = None
    max_length: int | None = None
    geometry: VectorCharts = VectorCharts()
    curves: tuple[Curve, ...] = ()
    """curves by which settings of the transform were chosen"""
    examples: tuple[Answers, ...] = ()
    """rows as queries, with their nearest neighbours"""
    gates: Mapping[str, Gate] = field(default_factory=dict)
    """by name"""
    token_coverage: ScriptCoverage | None = None
    """token coverage by script"""
    warnings: tuple[str, ...] = ()
    previous: Summary | None = None
    """the previous release"""
    changed_rows: tuple[RowChange, ...] = ()
    """a few of the new, changed and deleted rows"""
    quarantined: tuple[QuarantinedRow, ...] = ()
    """a few of the quarantined rows"""
    answers: tuple[ChangedAnswers, ...] = ()
    """fixed queries with their results in the previous release and in this one"""
    change: ReleaseChange | None = None
    """differences from the previous release, except rows and answers"""
    relevance: RelevanceSection | None = None
    """measurements of gates.relevance"""
    settings: str = ""
    """YAML"""
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name of the release or candidate."""
        return f"Candidate {self.candidate[:8]}" if self.number is None else f"Release {self.number}"

    @property
    def question(self) -> str:
        """The heading of the page; the first sentences of the page answer it."""
        name = self.title[:1].lower() + self.title[1:]
        if self.status != "published":
            return f"Why was {name} {'refused' if self.status == 'refused' else 'not published'}?"
        return f"What can be searched in {name}?" if self.parent is None else f"What changed in {name}?"

    @property
    def refusals(self) -> dict[str, Gate]:
        """Gates that did not pass, by name."""
        return {name: gate for name, gate in self.gates.items() if not gate.passed}

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
        "interval": lambda recall: percent_interval(recall.low, recall.high),
        "gate_name": gate_name,
        "filter_name": filter_name,
        "shell": shlex.quote,
        "literal": repr,
        "script": script_phrase,
        "setting": lambda value: excerpt(json.dumps(value, ensure_ascii=False)),
    }
    return render_template(
        "night.html.j2",
        filters,
        report=report,
        charts=_charts(report),
        flow=_row_parts(report.counts),
        deltas=_format_differences(report),
        changed_rows=_changed_rows(report.counts),
        kinds=list(group_by_kind(report.changed_rows)),
        recall_note=_recall_note(report),
    )


def _changed_rows(counts: NightCounts) -> str:
    """Describe how many rows, or chunks, are new, changed and deleted."""
    new = counted(counts.new, "row" if counts.documents is None else "chunk")
    return f"{new} new, {counts.changed:,} changed, {counts.deleted:,} deleted"


def _format_differences(report: NightReport) -> dict[str, str]:
    """Describe how the metrics at the top differ from the previous release; empty if unknown."""
    previous, index = report.previous, report.index
    if previous is None:
        return dict.fromkeys(("rows", "recall", "latency", "index", "time"), "")
    recall, latency, number = index.metrics.recall["10"], index.metrics.latency, previous.release
    points = None if previous.recall_at_10 is None else 100 * previous.recall_at_10
    return {
        "rows": format_difference(report.counts.good, previous.rows, number, 1),
        "recall": format_difference(100 * recall.value, points, number, 0.1, " points"),
        "latency": _latency_difference(latency, previous),
        "index": format_difference(100 * index.bytes / previous.index_bytes, 100, number, 0.1, " %")
        if previous.index_bytes
        else "",
        "time": format_difference(report.seconds, previous.seconds, number, 1, " s"),
    }


def _latency_difference(now: Latency, previous: Summary) -> str:
    """Describe how the median and the p99 differ from the previous release, in one phrase if both
    differ by the same amount.
    """
    median, p99 = (
        format_difference(value, before, previous.release, 0.01, " ms")
        for value, before in ((now.p50_ms, previous.p50_ms), (now.p99_ms, previous.p99_ms))
    )
    return median if median == p99 else f"median {median}; p99 {p99}"


def _recall_note(report: NightReport) -> str:
    """Describe the queries on which recall was measured."""
    rows = "Recall is measured with rows of the corpus as queries."
    if USER_QUERY_RECALL in report.gates:
        compared = (
            report.gates[name].sentence for name in (QUERY_DRIFT, FAR_QUERIES) if name in report.gates
        )
        sentences = "".join(f" {sentence[0].upper()}{sentence[1:]}." for sentence in dict.fromkeys(compared))
        return (
            f"{rows} The line recall@10 queries is measured with gates.queries, which are not from it. The "
            "search effort is chosen with one half of each, and recall measured with the other. A gate of "
            f"recall passes if what it requires is not above the 95 % interval.{sentences}"
        )
    if report.index.kind == "flat":
        return f"{rows} This index compares each query with every row, so recall is as high for other texts."
    return (
        f"{rows} It may be lower for other texts, above all if the index compresses vectors; "
        "set gates.queries to measure that."
    )


def _charts(report: NightReport) -> dict[str, Markup]:
    """Draw the charts for which there are values, by name."""
    vectors, metrics = report.geometry, report.index.metrics
    charts = {
        f"choice of {curve.setting}": night.choice_chart(curve.points, curve.chosen, curve.setting)
        for curve in report.curves
    }
    if vectors.spectrum:
        charts["spectrum"] = night.spectrum_chart(vectors.spectrum, vectors.spectrum_whitened)
    if vectors.cosines:
        charts["cosines"] = night.cosine_chart(vectors.cosines, vectors.cosines_whitened)
    if report.lengths and report.lengths.total:
        charts["lengths"] = night.length_chart(report.lengths, report.max_length or 0)
    if metrics.curve:
        charts["recall"] = night.recall_chart(
            metrics.curve,
            metrics.effort,
            report.index.target,
            metrics.effort_name or "nprobe",
            metrics.user_curve,
        )
    return charts


def _row_parts(counts: NightCounts) -> list[tuple[str, str, int]]:
    """Return (CSS class, label, number) of each kind of rows, without empty kinds."""
    return [
        part
        for part in (
            ("encoded", "encoded", counts.encoded),
            ("reused", "reused", counts.reused),
            ("bad", "quarantined", counts.quarantined),
            ("filtered", "filtered", counts.filtered),
        )
        if part[2]
    ]
