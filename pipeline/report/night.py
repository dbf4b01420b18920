"""The release report: one HTML file for people, with everything inside; no network, no script."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from pipeline.charts import frame, night
from pipeline.charts.night import Point
from pipeline.post.choose import Curve
from pipeline.report.changes import (
    ChangedAnswers,
    ChangedRow,
    Neighbour,
    Previous,
    QuarantinedRow,
    delta,
    kinds,
)
from pipeline.report.page import fill
from pipeline.stats.sample import Histogram
from pipeline.store.manifest import OUTSIDE_RECALL
from pipeline.text.tokens.coverage import ScriptCoverage, script_phrase

EXCERPT = 240  # characters of a text that are shown

Status = Literal["published", "refused", "held"]
"""held: passed every gate, and is not published because the root is held at another release"""


@dataclass(frozen=True)
class Interval:
    """A share with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one query searched by itself on one thread."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Counts:
    """Rows: read = live + sum of quarantined (by reason) + skipped; live = encoded + reused. The others are counted besides."""

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
    """live rows whose text equals that of another row: encoded once"""


@dataclass(frozen=True)
class Stage:
    """A stage of the night and its wall time."""

    name: str
    seconds: float
    rows: int | None = None


@dataclass(frozen=True)
class Throughput:
    """Of encoding: rates, and the share of the time that workers waited for tokenizer, device, store ... (0 to 1)."""

    rows_per_s: float
    tokens_per_s: float
    waiting: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Index:
    """The published index. files and ids: paths relative to the root. curve: search effort rising; empty for exhaustive search."""

    kind: str
    factory: str
    bytes: int
    files: tuple[str, ...]
    ids: tuple[str, ...] = ()
    nprobe: int | None = None
    """the search effort stored in the file"""
    effort: str = "nprobe"
    """or efSearch"""
    curve: tuple[Point, ...] = ()
    target: float | None = None
    recall_at_10: Interval | None = None
    recall: Mapping[str, float] = field(default_factory=dict)
    """further figures: {"recall@1": 0.99, "recall@100": 0.97}"""
    latency: Latency | None = None


@dataclass(frozen=True)
class Geometry:
    """Raw vectors and, where a transform was fitted, whitened ones: singular spectrum (shares of the largest), cosines of random pairs."""

    spectrum: tuple[float, ...] | None = None
    spectrum_whitened: tuple[float, ...] | None = None
    cosines: Histogram | None = None
    cosines_whitened: Histogram | None = None
    notes: tuple[str, ...] = ()
    """sentences below the charts: rank, condition, sample sizes"""
    moved: str = "whitened"
    """what the latter are called, by the kind of transform"""


@dataclass(frozen=True)
class Example:
    """A query and its nearest neighbours, best first."""

    query: str
    neighbours: tuple[Neighbour, ...]


@dataclass(frozen=True)
class Gate:
    """A condition for publishing; value None: could not be measured; threshold None: only reported."""

    name: str
    value: float | None
    threshold: float | None
    passed: bool
    relation: Literal["at least", "at most", "exactly"] = "at least"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the report shows; whatever is None or empty is left out of the page."""

    root: str
    commits_root: str | None = None
    """where the commits lie, if not below root"""
    status: Status
    number: int | None
    """of the release; None for a refused candidate"""
    candidate: str
    """id of the manifest"""
    parent: int | None = None
    created: str | None = None
    """when, as it is to be read"""
    encoder: str
    dim: int
    """of the raw vectors"""
    space_id: str
    transform_id: str | None = None
    transform: str | None = None
    """what the index applies, in words"""
    index: Index
    counts: Counts
    decisions: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    throughput: Throughput | None = None
    lengths: Histogram | None = None
    max_length: int | None = None
    geometry: Geometry = Geometry()
    curves: tuple[Curve, ...] = ()
    """by which sizes of the transform were chosen"""
    examples: tuple[Example, ...] = ()
    gates: tuple[Gate, ...] = ()
    covered: ScriptCoverage | None = None
    """tokens by script"""
    warnings: tuple[str, ...] = ()
    """in sentences"""
    previous: Previous | None = None
    changed_rows: tuple[ChangedRow, ...] = ()
    """a few of the new, changed and deleted rows"""
    quarantined: tuple[QuarantinedRow, ...] = ()
    """a few of the rows that were set aside"""
    answers: tuple[ChangedAnswers, ...] = ()
    """to the fixed queries"""
    settings: str = ""
    """YAML"""
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def refusals(self) -> tuple[Gate, ...]:
        return tuple(gate for gate in self.gates if not gate.passed)

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)


def render(report: Report) -> str:
    """The page, complete in itself (UTF-8). Every text from the corpus is escaped."""
    filters: dict[str, Callable[..., Any]] = {
        "plain": _plain,
        "excerpt": _excerpt,
        "cosine": _cosine,
        "interval": _interval,
        "gate_name": _gate_name,
        "shell": shlex.quote,
        "literal": repr,
        "script": script_phrase,
    }
    values = {
        "charts": _charts(report),
        "flow": _flow(report.counts),
        "deltas": _deltas(report),
        "kinds": list(kinds(report.changed_rows)),
    }
    values["asked"] = _asked(report)
    return fill("night.html.j2", filters, report=report, **values)


def _deltas(report: Report) -> dict[str, str]:
    """How each tile differs from the previous release, in words; empty where that is unknown."""
    before, index = report.previous, report.index
    if before is None:
        return dict.fromkeys(("rows", "recall", "latency", "index", "time"), "")
    recall, latency, number = index.recall_at_10, index.latency, before.number
    points = None if before.recall_at_10 is None else 100 * before.recall_at_10
    return {
        "rows": delta(report.counts.live, before.rows, number, 1),
        "recall": delta(100 * recall.value, points, number, 0.1, " points") if recall else "",
        "latency": delta(latency.p50_ms, before.p50_ms, number, 0.01, " ms") if latency else "",
        "index": delta(100 * index.bytes / before.bytes, 100, number, 0.1, " %") if before.bytes else "",
        "time": delta(report.seconds, before.seconds, number, 1, " s"),
    }


def _asked(report: Report) -> str:
    """Which queries recall was measured with."""
    rows = "Recall is measured with rows of the corpus as queries."
    if any(gate.name == OUTSIDE_RECALL for gate in report.gates):
        return f"{rows} Recall@10 queries is that of the texts of gates.queries, which come from outside: it is reported and refuses nothing."
    if report.index.kind == "flat":
        return (
            f"{rows} This index compares each query with every row, so that texts from outside lose nothing."
        )
    return (
        f"{rows} For texts from outside it may be lower, most of all where the index compresses: "
        "gates.queries measures that."
    )


def _charts(report: Report) -> dict[str, Any]:
    """The charts for which there are values, by name."""
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
    """(css class, words, rows): where the rows that were read went; parts without rows are left out."""
    parts = [
        ("encoded", "encoded", counts.encoded),
        ("reused", "reused", counts.reused),
        ("bad", "quarantined", sum(counts.quarantined.values())),
        ("skipped", "skipped", counts.skipped),
    ]
    return [part for part in parts if part[2]]


def _plain(value: float | None) -> str:
    """A gate's figure: whole numbers as such, others with four decimals at most."""
    if value is None:
        return "not measured"
    if value == int(value):
        return f"{int(value):,}"
    digits = 4 if abs(1 - value) > 1e-3 else 7  # a canary's cosine of 0.9999998 is not 1
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def _cosine(value: float) -> str:
    """Three decimals and a true minus sign, but no minus before zero."""
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "\u2212")


_GATES = {
    "row_conservation": "rows indexed, quarantined or skipped",
    "indexed_rows": "rows in the index",
    "finite_vectors": "non-finite vectors",
    "unique_ids": "repeated ids",
    "quarantined": "rows quarantined, of those read",
    "size_gib": "index files, GiB",
    "p99_ms": "latency (p99), ms",
    "canary_cosine": "cosine of unchanged texts with the previous release",
}


def _gate_name(name: str) -> str:
    """What the gate counts: finite_vectors -> non-finite vectors, recall_at_10 -> recall@10."""
    if name in _GATES:
        return _GATES[name]
    for key, words in {"recall_at_": "recall@", "_gib": ", GiB", "_ms": ", ms", "_": " "}.items():
        name = name.replace(key, words)
    return name


def _interval(share: Interval) -> str:
    """95.1 to 96.2 %."""
    return f"{frame.percent(share.low).removesuffix(' %')} to {frame.percent(share.high)}"


def _excerpt(text: str) -> str:
    """One line, at most 240 characters; control characters would break the page and become U+FFFD."""
    line = "".join(
        letter if letter.isprintable() else "\ufffd" for letter in " ".join(text[: 4 * EXCERPT].split())
    )
    return line if len(line) <= EXCERPT else line[: EXCERPT - 1].rstrip() + "…"
