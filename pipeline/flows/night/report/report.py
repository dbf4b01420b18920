"""Collect the values of a night's report, which its page shows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.config import to_yaml
from pipeline.errors import DataError
from pipeline.evaluate.bootstrap import ScoreEstimate
from pipeline.evaluate.relevance import SliceScores
from pipeline.flows.context import FlowContext
from pipeline.flows.encode.rejected import rejected_warnings
from pipeline.flows.encode.result import LENGTH_BIN
from pipeline.flows.encode.worker_stats import WorkerStats
from pipeline.flows.index.rebuild_rules import REBUILT, near_dead_warnings
from pipeline.flows.night.candidate import Candidate
from pipeline.flows.night.gates.corpus_language import language_warnings
from pipeline.flows.night.gates.fixed_queries import texts_at
from pipeline.flows.night.gates.relevance import SHOWN_SLICES, MeasuredRelevance
from pipeline.flows.night.release_changes import differing_settings, measure_drift
from pipeline.log import Stage, announce, counted
from pipeline.report.changes import ChangedAnswers, QuarantinedRow, ReleaseChange, RowChange
from pipeline.report.night import IndexSection, NightCounts, NightReport, Throughput, VectorCharts
from pipeline.report.relevance import QueryScores, RelevanceSection, SliceRow
from pipeline.settings import Job
from pipeline.stats.sample import PAIRS, Histogram, cosine_histogram, singular_spectrum
from pipeline.stats.spectrum import spectrum_of
from pipeline.stats.tensors import unpack
from pipeline.store.files.base import Store
from pipeline.store.records.units import (
    BAD_FILES,
    EMPTIED,
    LEFT_OUT,
    Corpus,
    counts_under,
    describe_unmatched,
)
from pipeline.store.releases.change_examples import ChangedRow, ChangedRows
from pipeline.store.releases.fixed_query_results import Answers, Hit
from pipeline.store.releases.manifest import READABLE, ReleaseManifest, report_path
from pipeline.store.releases.summary import Summary
from pipeline.text.formats.quarantine import corpus_rows, unit_rows, with_places
from pipeline.text.tokens.coverage import ScriptCoverage, token_warnings
from pipeline.transforms.chain import name_of
from pipeline.transforms.compare import noun
from pipeline.transforms.transform import Transform
from pipeline.transforms.whitening import Whitening

_PER_REASON = 3  # quarantined rows shown for each reason
# Limits of the search for quarantined rows.
_MAX_CORPUS_TABLES = 2
_MAX_UNITS = 20  # units whose quarantined rows are read
_MAX_TABLE_ROWS = 16_384


def deleted_rows(
    store: Store, corpus_id: str, previous: ReleaseManifest, *, show_texts: bool
) -> Iterator[RowChange]:
    """Yield examples of rows that are no longer in a corpus.

    Args:
        show_texts: release.show_deleted_texts.
    """
    addresses = [row.before for row in _chosen_rows(store, corpus_id) if row.now is None]
    texts = texts_at(store, previous.units, [address for address in addresses if address is not None])
    yield from (RowChange(row.id, row.text if show_texts else "", None) for row in texts.values())


def changed_rows(store: Store, candidate: Candidate, previous: ReleaseManifest | None) -> Iterator[RowChange]:
    """Yield examples of new, changed and deleted rows; none on the first night, when all rows are new.

    Without release.show_deleted_texts, a text that a row has no longer is left out.
    """
    if previous is None:
        return
    show_texts = candidate.manifest.settings["release"]["show_deleted_texts"]
    rows = _chosen_rows(store, candidate.corpus.id)
    old_texts = texts_at(store, previous.units, [row.before for row in rows if row.before is not None])
    new_texts = texts_at(store, candidate.manifest.units, [row.now for row in rows if row.now is not None])
    for row in rows:
        old = None if row.before is None else old_texts.get(row.before)
        new = None if row.now is None else new_texts.get(row.now)
        if either := new or old:
            is_shown = show_texts or old is None or (new is not None and old.text == new.text)
            before = None if old is None else old.text if is_shown else ""
            yield RowChange(either.id, before, new.text if new else None)


def _chosen_rows(store: Store, corpus_id: str) -> tuple[ChangedRow, ...]:
    """Load the examples that ingestion chose; none if their file is missing or damaged. Damage is logged."""
    try:
        chosen = ChangedRows.load_intact(store, ChangedRows.path(corpus_id))
    except DataError as error:
        announce(f"the report shows no new, changed and deleted rows: {error}")
        return ()
    return chosen.rows if chosen else ()


def quarantined_rows(store: Store, candidate: Candidate) -> tuple[QuarantinedRow, ...]:
    """Return the first rows, at most three, for each reason for quarantine, in the order of the files."""
    unit_tables = (table for _, table in islice(unit_rows(store, candidate.manifest), _MAX_UNITS))
    return _first_of_each_reason(store, candidate.corpus, unit_tables)


def rejected_rows(store: Store, corpus: Corpus) -> tuple[QuarantinedRow, ...]:
    """Return the same as `quarantined_rows` for a corpus that is not encoded."""
    return _first_of_each_reason(store, corpus, ())


def _first_of_each_reason(
    store: Store, corpus: Corpus, unit_tables: Iterable[pa.Table]
) -> tuple[QuarantinedRow, ...]:
    found: dict[str, list[dict[str, Any]]] = {}
    for table in (*islice(corpus_rows(store, corpus), _MAX_CORPUS_TABLES), *unit_tables):
        for row in table.slice(0, _MAX_TABLE_ROWS).to_pylist():
            rows = found.setdefault(row["reason"], [])
            if len(rows) < _PER_REASON:
                rows.append(row)
    chosen = [row for rows in found.values() for row in rows]
    return tuple(QuarantinedRow(**row) for row in with_places(store, corpus, chosen))


def search_examples(store: Store, candidate: Candidate) -> tuple[Answers, ...]:
    """Return the example queries of the index with the ids and texts of their neighbours.

    A query whose row has died is left out if its unit is gone: only its vector is stored.
    """
    examples = candidate.built.examples
    addresses = {example.query for example in examples}
    addresses |= {address for example in examples for address, _ in example.neighbours}
    rows = texts_at(store, candidate.manifest.units, sorted(addresses))
    return tuple(
        Answers(
            query=rows[example.query].text,
            hits=tuple(
                Hit(id=rows[address].id, score=score, text=rows[address].text)
                for address, score in example.neighbours
            ),
        )
        for example in examples
        if example.query in rows
    )


_CHANGED_QUERIES = 5  # queries shown whose scores fell, and as many whose scores rose


@dataclass(frozen=True)
class ReleaseComparison:
    """Inputs of the comparison of a candidate with the previous release."""

    previous: ReleaseManifest | None
    """manifest of the previous release; None for the first"""
    summary: Summary | None
    """summary of the previous release, without answers if its file is missing; None for the first"""
    answers: tuple[Answers, ...]
    """the candidate's answers to the fixed queries"""
    relevance: MeasuredRelevance | None = None
    """the candidate's scores for the queries of gates.relevance; None if that is not set"""
    show_deleted_texts: bool = False
    """release.show_deleted_texts"""

    @property
    def changes(self) -> tuple[ChangedAnswers, ...]:
        """The answers of both releases to the queries that both of them answered."""
        if self.summary is None:
            return ()
        previous_hits = {each.query: each.hits for each in self.summary.answers}
        return tuple(
            ChangedAnswers(each.query, self._shown(previous_hits[each.query], each.hits), each.hits)
            for each in self.answers
            if each.query in previous_hits
        )

    def _shown(self, before: tuple[Hit, ...], now: tuple[Hit, ...]) -> tuple[Hit, ...]:
        """Return earlier hits with their present texts; without a text where tonight's hits have none.

        The row of such a hit may be deleted.
        """
        if self.show_deleted_texts:
            return before
        texts = {hit.id: hit.text for hit in now}
        return tuple(hit.model_copy(update={"text": texts.get(hit.id, "")}) for hit in before)


def summarize(context: FlowContext, candidate: Candidate, comparison: ReleaseComparison) -> NightReport:
    """Return the report of a candidate, without release number and status, which are known later."""
    manifest, decision, store = candidate.manifest, candidate.decision, context.store
    finished = context.stages.finished
    report = NightReport(
        root=store.uri,
        commits_root=manifest.settings["release"]["commits_root"],
        status="published",
        number=None,
        candidate=manifest.id,
        parent=manifest.parent,
        created=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        encoder=str(manifest.settings["encoder"]["path"]),
        dim=candidate.folder.dim,
        space_id=manifest.space_id,
        transform_id=manifest.transform_id,
        transform=_transform_width(decision.transform) if decision.transform else None,
        index=_index_section(candidate),
        counts=_row_counts(candidate),
        decisions=tuple(_decisions(candidate)),
        stages=tuple(finished),
        throughput=_encode_throughput(candidate.encode_stats, finished),
        lengths=_lengths(candidate),
        max_length=candidate.folder.max_length,
        curves=decision.curves,
        gates=manifest.gates,
        token_coverage=ScriptCoverage.of(manifest.counts),
        warnings=warnings_of(manifest),
        settings=to_yaml(Job.model_validate(manifest.settings)),
        packages=manifest.packages,
        previous=comparison.summary,
        answers=comparison.changes,
        relevance=_relevance_section(comparison.relevance, context.job.gates.relevance.slices or ""),
    )
    return _with_rows(report, store, candidate, comparison) if manifest.gates[READABLE].passed else report


def _with_rows(
    report: NightReport, store: Store, candidate: Candidate, comparison: ReleaseComparison
) -> NightReport:
    """Return the report with the sections that are read from files of the candidate."""
    return replace(
        report,
        geometry=_geometry(candidate, store),
        examples=search_examples(store, candidate),
        changed_rows=tuple(changed_rows(store, candidate, comparison.previous)),
        quarantined=quarantined_rows(store, candidate),
        change=_release_change(store, comparison.previous, candidate.manifest),
    )


def warnings_of(release: ReleaseManifest) -> tuple[str, ...]:
    """Return warnings about files, tokens, rejected texts, dead rows and the language, as sentences."""
    return (
        *_file_warnings(release.counts),
        *token_warnings(release.counts),
        *rejected_warnings(release.counts, release.counts["total"]),
        *near_dead_warnings(release.choices),
        *language_warnings(release.choices),
    )


def _file_warnings(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield warnings about files of the corpus without rows; the log of the night names them."""
    if bad := counts.get(BAD_FILES):
        yield f"{counted(bad, 'file')} of the corpus left out as unreadable; the quarantine says why"
    if left_out := counts.get(LEFT_OUT):
        yield f"{counted(left_out, 'file')} below corpus.uri not read, by the names of the files"
    if unmatched := describe_unmatched(counts):
        yield unmatched
    if emptied := counts.get(EMPTIED):
        yield f"{counted(emptied, 'file')} of the corpus had rows before this release, and now none"


def _release_change(
    store: Store, previous: ReleaseManifest | None, manifest: ReleaseManifest
) -> ReleaseChange | None:
    """Compare a candidate with the previous release, if there is one."""
    if previous is None:
        return None
    return ReleaseChange(
        previous.release,
        f"../../{report_path(previous.release)}",  # both reports are in folders two levels below the root
        measure_drift(store, previous, manifest),
        differing_settings(previous, manifest),
    )


def _relevance_section(measured: MeasuredRelevance | None, column: str) -> RelevanceSection | None:
    """Return the scores of the user's queries, and the largest losses and gains since the last release.

    Args:
        column: the column of the slices; empty without slices.
    """
    if measured is None:
        return None
    sentences, change = tuple(gate.sentence for gate in measured.gates.values()), measured.change
    section = RelevanceSection(
        measured.scores.metric,
        sentences,
        metrics=tuple(measured.slices[0].estimates) if measured.slices else (),
        slices=tuple(map(_slice_row, measured.slices[:SHOWN_SLICES])),
        omitted_slices=max(0, len(measured.slices) - SHOWN_SLICES),
        slice_column=column,
    )
    if change is None or measured.scores.gold is not None:  # the cosine of a single pair says nothing
        return section
    differences = change.now - change.before
    order = np.argsort(differences, kind="stable")
    order = order[differences[order] != 0]
    shown = (
        order
        if len(order) <= 2 * _CHANGED_QUERIES
        else np.r_[order[:_CHANGED_QUERIES], order[-_CHANGED_QUERIES:]]
    )
    changed = (
        QueryScores(change.keys[row][0], float(change.before[row]), float(change.now[row])) for row in shown
    )
    return replace(section, differing=len(order), changed=tuple(changed))


def _slice_row(found: SliceScores) -> SliceRow:
    """Return the scores of a slice as the page shows them."""
    change = found.change
    return SliceRow(
        name=found.name,
        count=found.rows,
        scores=tuple(_with_interval(each, "{:.3f}") for each in found.estimates.values()),
        change=_with_interval(change.difference, "{:+.3f}") if change else "",
        is_worse=change is not None and change.is_worse,
    )


def _with_interval(measured: ScoreEstimate, spec: str) -> str:
    """Return a value with its interval, such as 0.612 [0.590, 0.633]; "not defined" without a value."""
    if measured.value is None:
        return "not defined"
    if measured.low is None or measured.high is None:
        return spec.format(measured.value)
    return f"{spec.format(measured.value)} [{spec.format(measured.low)}, {spec.format(measured.high)}]"


def _index_section(candidate: Candidate) -> IndexSection:
    built = candidate.built
    return IndexSection(
        kind=built.kind,
        factory=built.factory,
        bytes=sum(file.bytes for file in built.files),
        files=tuple(file.path for file in built.files),
        ids=tuple(file.path for file in built.ids),
        metrics=built.measured,
        target=candidate.manifest.settings["gates"]["recall_at_10"],
    )


def _row_counts(candidate: Candidate) -> NightCounts:
    """Return the row counts that the report shows."""
    counts = candidate.manifest.counts
    # Without skipped rows: files beyond corpus.max_rows are not read, and the total does not count them.
    return NightCounts(
        **dict(candidate.manifest.row_counts),
        encoded=counts["encoded"],
        reused=counts["reused"],
        reasons=counts_under("quarantined_", counts),
        filters=counts_under("filtered_", counts),
        new=counts["new"],
        changed=counts["changed"],
        deleted=counts["deleted"],
        truncated=counts["truncated"],
        duplicate_texts=candidate.encode_stats.repeats,
        documents=counts.get("documents"),
    )


def _decisions(candidate: Candidate) -> Iterator[str]:
    """Yield the decisions of the night as sentences; the decision about the search effort comes last."""
    choices, measured = candidate.manifest.choices, candidate.built.measured
    for choice in choices:
        if choice.sentence[0].isupper():
            yield choice.sentence
        else:
            yield f"{choice.what.capitalize()}: {choice.sentence.rstrip('.')}."
    effort = measured.effort
    if effort is None:
        return
    target = candidate.manifest.settings["gates"]["recall_at_10"]
    point = next((point for point in measured.curve if point.effort == effort), None)
    was_extended = any(choice.what == "index" and choice.chosen != REBUILT for choice in choices)
    if measured.rows_effort not in (None, effort):
        reason = f"raised from {measured.rows_effort}, because queries of gates.queries need more"
    elif was_extended and point:
        found = f"recall@10 on one half of the queries is {point.recall_at_10:.4f} tonight"
        reason = f"as chosen when the index was last built from scratch; {found}"
    elif measured.raised_from:
        reason = f"raised from {measured.raised_from}, because queries near dead rows need more"
    elif target is not None and point and point.low >= target:
        found = f"recall@10 on one half of the queries ({point.recall_at_10:.4f}, at least {point.low:.4f})"
        reason = f"the smallest value whose {found} meets {target:g}"
    else:
        reason = "as set, or the largest value"
    yield (
        f"{measured.effort_name} is {effort}: {reason}. One query takes "
        f"{measured.latency.p50_ms:.2f} ms on one thread (p50), {measured.latency.p99_ms:.2f} ms (p99)."
    )


def _encode_throughput(stats: WorkerStats, finished: Sequence[Stage]) -> Throughput | None:
    """Return the speed of encoding and the time spent waiting; None if nothing was encoded."""
    encoding = next((stage for stage in finished if stage.name == "encode" and stage.done), None)
    if encoding is None or not stats.tokens:
        return None
    return Throughput(
        encoding.done / encoding.seconds, stats.tokens / encoding.seconds, stats.waiting_proportions()
    )


def _lengths(candidate: Candidate) -> Histogram | None:
    """Return the histogram of tokens per text, with truncated texts in a bar beyond the limit."""
    counts = candidate.vectors.counts()
    if not (bins := counts_under("length_", counts)):
        return None
    limit, truncated = candidate.folder.max_length, counts.get("truncated", 0)
    edges = [*range(0, limit, LENGTH_BIN), limit + 1, limit + 1 + LENGTH_BIN]
    heights = [0] * (len(edges) - 1)
    for start, count in bins.items():
        heights[min(int(start) // LENGTH_BIN, len(heights) - 2)] += count
    # until here a truncated text counts as a text of exactly the limit's length
    heights[-2:] = [heights[-2] - truncated, truncated]
    return Histogram(tuple(map(float, edges)), tuple(heights), counts["tokens"] / max(counts["rows"], 1))


def _geometry(candidate: Candidate, store: Store) -> VectorCharts:
    """Compare sampled vectors before and after the fitted transform."""
    tensors, _ = unpack(candidate.built.queries.read(store), "addresses", "vectors")
    sample = tensors["vectors"]
    if len(sample) < 2:
        return VectorCharts()
    sampling_note = f"From {len(sample):,} rows sampled by hash; {PAIRS:,} random pairs."
    raw = VectorCharts(
        spectrum=tuple(singular_spectrum(sample).tolist()),
        cosines=cosine_histogram(sample),
        notes=(sampling_note,),
    )
    decision = candidate.decision
    if not decision.fitted:
        return raw
    spectrum, name = spectrum_of(decision.moments), name_of(decision.fitted)
    transformed = decision.fitted(sample)
    unused = "" if decision.used else f" The {noun(name)} shown was fitted for comparison, and is not used."
    spectrum_note = (
        f"Raw vectors: rank {spectrum.rank} of {len(spectrum.eigenvalues)}, effective rank "
        f"{spectrum.effective_rank:.0f}, condition {spectrum.condition:.2g}.{unused}"
    )
    return replace(
        raw,
        transformed_name="whitened" if name == "whitening" else "transformed",
        spectrum_whitened=tuple(singular_spectrum(transformed).tolist()),
        cosines_whitened=cosine_histogram(transformed),
        notes=(sampling_note, spectrum_note),
    )


def _transform_width(transform: Transform) -> str:
    """Return the name of a transform with the width of its vectors."""
    if isinstance(transform, Whitening) and transform.kept is None:
        return f"whitening to {transform.k} components"
    return f"{name_of(transform)}, {transform.k} dimensions"
