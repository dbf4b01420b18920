"""The report of a night, as the value that the page shows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np

from pipeline.config import to_yaml
from pipeline.errors import DataError
from pipeline.flows.encode.rejected import rejected_warnings
from pipeline.flows.encode.unit import LENGTH_BIN, Spent
from pipeline.flows.index.rules import near_dead_warnings
from pipeline.flows.night.asked import texts_at
from pipeline.flows.night.candidate import Candidate
from pipeline.flows.night.overview import Summary
from pipeline.flows.night.set_aside import quarantined_rows
from pipeline.flows.run import Run
from pipeline.log import Stage, say
from pipeline.post import Transform
from pipeline.post.chain import name_of
from pipeline.post.compare import noun
from pipeline.post.whitening import Whitening
from pipeline.report.changes import ChangedAnswers, Neighbour, Previous, RowChange
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
from pipeline.settings import Job
from pipeline.stats.sample import PAIRS, Histogram, cosine_histogram, singular_spectrum
from pipeline.stats.spectrum import spectrum_of
from pipeline.stats.tensors import unpack
from pipeline.store.answers import Answers, Hit
from pipeline.store.base import Store
from pipeline.store.manifest import Choice, ReleaseManifest
from pipeline.store.units import ChangedRow as DrawnRow
from pipeline.store.units import ChangedRows
from pipeline.text.tokens.coverage import ScriptCoverage, token_warnings


@dataclass(frozen=True)
class Compared:
    """The previous release, its summary, and the candidate's answers to the fixed queries."""

    before: ReleaseManifest | None
    last: Summary | None
    answers: tuple[Answers, ...]

    @property
    def both(self) -> tuple[ChangedAnswers, ...]:
        """Answers of both releases to the queries that both were asked."""
        if self.before is None or self.last is None:
            return ()
        then = {each.query: each.hits for each in self.last.answers}
        common = [each for each in self.answers if each.query in then]
        return tuple(
            ChangedAnswers(each.query, _neighbours(then[each.query]), _neighbours(each.hits))
            for each in common
        )


def summarize(run: Run, candidate: Candidate, compared: Compared) -> NightReport:
    """Return the report of a candidate, without release number and status, which are known later."""
    manifest, decision, store = candidate.manifest, candidate.decision, run.store
    finished = run.stages.finished
    return NightReport(
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
        transform=_words(decision.transform) if decision.transform else None,
        index=_index(candidate),
        counts=_counts(candidate),
        decisions=_decisions(candidate),
        stages=tuple(StageTime(stage.name, stage.seconds, stage.done or None) for stage in finished),
        throughput=_throughput(candidate.spent, finished),
        lengths=_lengths(candidate),
        max_length=candidate.folder.max_length,
        geometry=_geometry(candidate, store),
        curves=decision.curves,
        examples=tuple(_examples(store, candidate)),
        gates=tuple(
            GateRow(name, gate.value, gate.threshold, gate.passed, gate.relation)
            for name, gate in manifest.gates.items()
        ),
        covered=ScriptCoverage.of(manifest.counts),
        warnings=warnings_of(manifest),
        settings=to_yaml(Job.model_validate(manifest.settings)),
        packages=manifest.packages,
        previous=_previous(compared),
        changed_rows=tuple(_changed_rows(store, candidate, compared.before)),
        quarantined=quarantined_rows(store, candidate),
        answers=compared.both,
    )


def warnings_of(release: ReleaseManifest) -> tuple[str, ...]:
    """Return warnings about tokens, rejected texts and queries near dead rows, as sentences."""
    return (
        *token_warnings(release.counts),
        *rejected_warnings(release.counts, release.counts["total"]),
        *near_dead_warnings(release.choices),
    )


def _previous(compared: Compared) -> Previous | None:
    """Figures of the previous release; those that its manifest does not have come from its summary."""
    before, last = compared.before, compared.last
    if before is None:
        return None
    found = Previous(before.release, before.rows, sum(ref.bytes for ref in before.index.files))
    if last is None:
        gate = before.gates.get("recall_at_10")
        return replace(found, recall_at_10=gate.value if gate else None, kept_answers=False)
    return replace(
        found, recall_at_10=last.recall_at_10, p50_ms=last.p50_ms, p99_ms=last.p99_ms, seconds=last.seconds
    )


def _changed_rows(store: Store, candidate: Candidate, before: ReleaseManifest | None) -> Iterator[RowChange]:
    """Examples of new, changed and deleted rows with their texts; none on the first night, when all rows are
    new.
    """
    if before is None:
        return
    rows = _drawn(store, candidate.corpus.id)
    then = texts_at(store, before.units, [row.before for row in rows if row.before is not None])
    now = texts_at(store, candidate.manifest.units, [row.now for row in rows if row.now is not None])
    for row in rows:
        was, text = (
            place.get(address) if address is not None else None
            for place, address in ((then, row.before), (now, row.now))
        )
        if was or text:
            name = (text or was or ("", ""))[0]
            yield RowChange(name, was[1] if was else None, text[1] if text else None)


def _drawn(store: Store, corpus_id: str) -> tuple[DrawnRow, ...]:
    """The rows that were drawn while the corpus was read; none where their file is missing or damaged, which
    is said.
    """
    try:
        drawn = ChangedRows.load_intact(store, ChangedRows.path(corpus_id))
    except DataError as error:
        say(f"the report shows no new, changed and deleted rows: {error}")
        return ()
    return drawn.rows if drawn else ()


def _neighbours(hits: tuple[Hit, ...]) -> tuple[Neighbour, ...]:
    return tuple(Neighbour(hit.id, hit.score, hit.text) for hit in hits)


def _index(candidate: Candidate) -> Index:
    built, measured = candidate.built, candidate.built.measured
    at_10 = measured["recall"]["10"]
    return Index(
        kind=built.kind,
        factory=built.factory,
        bytes=sum(ref.bytes for ref in built.files),
        files=tuple(ref.path for ref in built.files),
        ids=tuple(ref.path for ref in built.ids),
        nprobe=measured["effort"],
        effort=measured["effort_name"] or "nprobe",
        latency=QueryLatency(measured["latency"]["p50_ms"], measured["latency"]["p99_ms"]),
        curve=tuple(
            RecallPoint(point["effort"], point["recall_at_10"], point["query_ms"])
            for point in measured["curve"]
        ),
        target=candidate.manifest.settings["gates"]["recall_at_10"],
        recall_at_10=ProportionInterval(at_10["value"], at_10["low"], at_10["high"]),
        recall={f"recall@{k}": value["value"] for k, value in measured["recall"].items() if k != "10"},
    )


def _counts(candidate: Candidate) -> Counts:
    counts = candidate.manifest.counts
    reasons = {
        name.removeprefix("quarantined_"): count
        for name, count in counts.items()
        if name.startswith("quarantined_")
    }
    # files that hold rows beyond corpus.max_rows are skipped, their rows never read: they are no part of the
    # total
    return Counts(
        read=counts["total"],
        live=candidate.manifest.rows,
        encoded=counts["encoded"],
        reused=counts["reused"],
        quarantined=reasons,
        new=counts["new"],
        changed=counts["changed"],
        deleted=counts["deleted"],
        truncated=counts["truncated"],
        duplicate_texts=int(candidate.spent.seconds.get("repeats", 0)),
    )


def _decisions(candidate: Candidate) -> tuple[str, ...]:
    manifest = candidate.manifest
    extended = any(choice.what == "index" and choice.chosen != "built anew" for choice in manifest.choices)
    return (
        *map(_told, manifest.choices),
        *_effort(candidate.built.measured, manifest.settings["gates"]["recall_at_10"], extended),
    )


def _told(choice: Choice) -> str:
    """The decision as a sentence that stands by itself."""
    return (
        choice.sentence
        if choice.sentence[0].isupper()
        else f"{choice.what.capitalize()}: {choice.sentence.rstrip('.')}."
    )


def _effort(measured: dict[str, Any], target: float | None, extended: bool) -> tuple[str, ...]:
    if measured["effort"] is None:
        return ()
    name, effort, latency = measured["effort_name"], measured["effort"], measured["latency"]
    reached, low = max(
        ((point["recall_at_10"], point["low"]) for point in measured["curve"] if point["effort"] == effort),
        default=(None, 0.0),
    )
    meets = target is not None and low >= target
    chosen = (
        (
            f"the least whose recall@10 on one half of the queries ({reached:.4f}, at least {low:.4f}) "
            f"meets {target:g}"
        )
        if meets
        else "as set, or the best there is"
    )
    if raised_from := measured.get("raised_from"):
        chosen = f"raised from {raised_from}, which live rows need, for queries near dead rows"
    if extended and reached is not None:
        chosen = (
            "as chosen when the index was built anew last; recall@10 on one half of the queries is "
            f"{reached:.4f} tonight"
        )
    return (
        (
            f"{name} is {effort}: {chosen}. One query takes {latency['p50_ms']:.2f} ms on one thread "
            f"(p50), {latency['p99_ms']:.2f} ms (p99)."
        ),
    )


def _throughput(spent: Spent, finished: Sequence[Stage]) -> Throughput | None:
    encoding = next((stage for stage in finished if stage.name == "encode" and stage.done), None)
    if encoding is None or not spent.seconds:
        return None
    seconds = spent.seconds
    whole = sum(seconds.get(name, 0.0) for name in ("forward_s", "waiting_s", "store"))
    waiting = (
        {"tokenizer": seconds.get("waiting_s", 0.0) / whole, "store": seconds.get("store", 0.0) / whole}
        if whole
        else {}
    )
    return Throughput(encoding.done / encoding.seconds, seconds.get("tokens", 0) / encoding.seconds, waiting)


def _lengths(candidate: Candidate) -> Histogram | None:
    """Tokens of a text; texts that were cut stand beyond the limit."""
    counts = candidate.vectors.counts()
    bins = {
        int(name.removeprefix("length_")): count
        for name, count in counts.items()
        if name.startswith("length_")
    }
    if not bins:
        return None
    limit, cut = candidate.folder.max_length, counts.get("truncated", 0)
    edges = [*range(0, limit, LENGTH_BIN), limit + 1, limit + 1 + LENGTH_BIN]
    heights = [0] * (len(edges) - 1)
    for start, count in bins.items():
        heights[min(start // LENGTH_BIN, len(heights) - 2)] += count
    heights[-2] -= cut
    heights[-1] = cut
    return Histogram(tuple(map(float, edges)), tuple(heights), counts["tokens"] / max(counts["rows"], 1))


def _geometry(candidate: Candidate, store: Store) -> VectorCharts:
    sample = unpack(
        candidate.built.queries.read(store),
        "addresses",
        "vectors",
    )[0]["vectors"]
    if len(sample) < 2:
        return VectorCharts()
    fitted = candidate.decision.fitted
    moved = fitted(sample) if fitted else None
    name = name_of(fitted) if fitted else "whitening"
    notes = [f"From {len(sample):,} rows sampled by hash; {PAIRS:,} random pairs."]
    if fitted:
        raw = spectrum_of(candidate.decision.moments)
        used = (
            ""
            if candidate.decision.used
            else f" The {noun(name)} shown was fitted and compared, and is not used."
        )
        notes.append(
            f"Raw vectors: rank {raw.rank} of {len(raw.eigenvalues)}, effective rank "
            f"{raw.effective_rank:.0f}, condition {raw.condition:.2g}.{used}"
        )
    return VectorCharts(
        moved="whitened" if name == "whitening" else "transformed",
        spectrum=_values(singular_spectrum(sample)),
        spectrum_whitened=_values(singular_spectrum(moved)) if moved is not None else None,
        cosines=cosine_histogram(sample),
        cosines_whitened=cosine_histogram(moved) if moved is not None else None,
        notes=tuple(notes),
    )


def _words(transform: Transform) -> str:
    """A transform with the width that it gives."""
    plain = isinstance(transform, Whitening) and transform.kept is None
    return (
        f"whitening to {transform.k} components"
        if plain
        else f"{name_of(transform)}, {transform.k} dimensions"
    )


def _values(spectrum: np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in spectrum)


def _examples(store: Store, candidate: Candidate) -> list[SearchExample]:
    """Queries with their neighbours, as texts."""
    found = candidate.built.examples
    wanted = {
        address
        for example in found
        for address in (example.query, *(address for address, _ in example.neighbours))
    }
    rows = texts_at(store, candidate.manifest.units, sorted(wanted))
    return [
        SearchExample(
            rows[example.query][1],
            tuple(
                Neighbour(rows[address][0], score, rows[address][1]) for address, score in example.neighbours
            ),
        )
        for example in found
    ]
