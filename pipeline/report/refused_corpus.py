"""Render the report of a night whose corpus was refused before anything was encoded: a page of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.charts.frame import shorten
from pipeline.report.changes import QuarantinedRow, RowChange
from pipeline.report.evaluation_report import Section
from pipeline.report.formats import MAX_EXCERPT, gate_name, gate_value, plain
from pipeline.report.page import render_template
from pipeline.store.releases.manifest import Gate


@dataclass(frozen=True, kw_only=True)
class RefusedCorpus:
    """Values of the page."""

    created: str
    """date and time, as shown on the page"""
    release: int
    """number of the current release"""
    link: str
    """path of the current release's report, relative to the folder of this page"""
    changes: str
    """the changes of the corpus, as a sentence"""
    gates: Mapping[str, Gate]
    deleted: tuple[RowChange, ...] = ()
    """examples of deleted rows"""
    quarantined: tuple[QuarantinedRow, ...] = ()
    """a few of the quarantined rows"""
    settings: str = ""
    """YAML"""
    packages: Mapping[str, str] = field(default_factory=dict)


def render_refused(report: RefusedCorpus) -> str:
    """Render the page; all texts are escaped."""
    refusals = [gate.sentence for gate in report.gates.values() if not gate.passed]
    return render_template(
        "refused_corpus.html.j2",
        {"plain": gate_value, "gate_name": gate_name},
        report=report,
        refusals=refusals,
        sections=_sections(report),
    )


def _sections(report: RefusedCorpus) -> list[Section]:
    sections = []
    if report.deleted:
        examples = [(row.id, shorten(row.before or "not shown", MAX_EXCERPT)) for row in report.deleted]
        shown = (("id", "text"), *examples)
        sections.append(Section("Examples of deleted rows", table=shown, has_texts=True))
    if report.quarantined:
        bad = [
            (plain(row.reason), row.file, "" if row.row < 0 else f"{row.row:,}", row.id or "")
            for row in report.quarantined
        ]
        table = (("reason", "file", "row", "id"), *bad)
        sections.append(Section("Examples of quarantined rows", table=table, has_texts=True))
    return sections
