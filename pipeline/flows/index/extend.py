"""Extend last night's index: in place, or by a delta and tombstones; rebuild it if a rule asks for that."""

from dataclasses import dataclass, replace

from pipeline.config import digest_of
from pipeline.errors import SpaceMismatch
from pipeline.flows.index import rules
from pipeline.flows.index.build import (
    IndexInput,
    build_index,
    drop_parts,
    fill_shards,
    index_identity,
    made_once,
    map_shards,
    shard_count,
)
from pipeline.flows.index.delta import Survey, Surveyed
from pipeline.flows.index.extend_tasks import Extension, GrowInPlace, Grown, JoinDelta
from pipeline.flows.index.measure_tasks import MeasureGrown, Measurement, SampleQueries, ScanTruth
from pipeline.flows.index.records import BuiltIndex
from pipeline.flows.index.rules import REBUILT
from pipeline.flows.index.tasks import Build, FillShard
from pipeline.flows.rows import LiveRows, space_of
from pipeline.flows.run import Run
from pipeline.flows.workers.tasks import Pool
from pipeline.index.plan import GIB, IndexPlan
from pipeline.store.manifest import Choice, ReleaseManifest
from pipeline.store.stored import FileRef, Stored

BuiltWithChoices = tuple[BuiltIndex, tuple[Choice, ...]]


def extend_index(run: Run, vectors: IndexInput, before: ReleaseManifest) -> BuiltWithChoices:
    """Make tonight's index from that of release `before`. Work that an earlier run finished is not repeated.

    Args:
        vectors: all of tonight's vectors. Old units keep their ordinals, new ones follow from
            before.next_ordinal on. `dead` are all dead rows; before.dead are those of last night.

    Returns:
        The index over the live rows, and every decision about it with its numbers.

    Raises:
        SpaceMismatch: the units are of two spaces, or of another space than `before`.
    """
    if (space_id := space_of(vectors.units)) != before.space_id:
        where, expected = f"index of release {before.release}", f"vectors of space {before.space_id}"
        remedy = "vectors of two spaces cannot be compared: build an index of its own"
        raise SpaceMismatch(where, expected, f"space {space_id}", remedy)
    ordered = replace(vectors, units=tuple(sorted(vectors.units, key=lambda placed: placed.ordinal)))
    source = LiveRows(run.store, space_id, run.job.corpus.id, vectors.dead)
    try:
        return _Extender(run, ordered, source, before).extend()
    except _Rebuild as rebuild:
        return build_index(run, replace(ordered, previous_queries=before.index.queries)), rebuild.choices


class _Rebuild(Exception):
    """The index has to be rebuilt, for these reasons."""

    def __init__(self, *choices: Choice) -> None:
        self.choices = choices


class _ExtensionRecord(Stored):
    """Record of a finished extension, which a later run loads."""

    built: BuiltIndex
    truth: Choice


@dataclass(frozen=True)
class _Extender:
    """Extension of the index of release `before` to tonight's vectors."""

    run: Run
    vectors: IndexInput
    source: LiveRows
    before: ReleaseManifest

    def extend(self) -> BuiltWithChoices:
        """Extend the index. Raises _Rebuild as soon as a rule asks for it, the cheapest rules first."""
        before, vectors, settings = self.before, self.vectors, self.run.job.index
        self._check_manifest()
        work = self._work()
        surveyed = self.run.workers.run(Survey(self.source, before, work), vectors.units, Pool(1))
        plan = vectors.plan(surveyed.rows, settings)
        self._check_rows(surveyed, plan)
        delta_reason = rules.delta_reason(plan, before.index, settings.rewrite_gib)
        checks = [rules.quantizer_fit(before.index, surveyed.rows, None)]
        if delta_reason:
            checks.append(rules.compaction(surveyed.delta, surveyed.tombstone_rows, surveyed.rows))
        _rebuild_if_asked(checks)
        extension = self._extension(surveyed, plan, work)
        path = f"{work}/extended.json"
        found = made_once(
            self.run.store, path, _ExtensionRecord, lambda: self._make(extension, bool(delta_reason))
        )
        checks[0] = rules.quantizer_fit(before.index, surveyed.rows, found.built.measured)
        _rebuild_if_asked(checks[:1])
        return found.built, (self._describe(extension, found.built, delta_reason), *checks, found.truth)

    def _check_manifest(self) -> None:
        """Apply the rules that need only the manifest and the sizes of files."""
        before, index, vectors, store = self.before, self.before.index, self.vectors, self.run.store
        other = rules.changed_settings(self.run.job, before, vectors.transform, vectors.dim)
        if other := other or rules.changed_units(vectors.units, before):
            raise _Rebuild(other)
        training_files = index.trained, index.queries, index.truth
        if None in training_files or "fingerprint" not in index.settings:
            reason = f"release {before.release} was published by a version that did not store the training"
            raise _Rebuild(rules.unusable_files(reason))
        for file in filter(None, (*index.files, *before.ids, *training_files, before.tombstones)):
            if (size := store.size(file.path)) is None:
                raise _Rebuild(rules.unusable_files(f"{file.path} is gone"))
            if size != file.bytes:
                reason = f"{file.path} has {size:,} bytes instead of {file.bytes:,}"
                raise _Rebuild(rules.unusable_files(reason))

    def _check_rows(self, surveyed: Surveyed, plan: IndexPlan) -> None:
        """Apply the rules that need tonight's rows."""
        index, rows = self.before.index, self.before.rows
        if surveyed.unusable:
            raise _Rebuild(rules.unusable_files(surveyed.unusable))
        if surveyed.revived:
            reason = f"{surveyed.revived:,} rows that were removed from it are live again"
            raise _Rebuild(rules.unusable_files(reason))
        if why := rules.turnover(rows - surveyed.gone.rows, rows) or rules.changed_kind(plan, index):
            raise _Rebuild(why)

    def _extension(self, surveyed: Surveyed, plan: IndexPlan, work: str) -> Extension:
        job, index = self.run.job, self.before.index
        same = {
            "factory": index.factory,
            "nlist": index.settings.get("nlist") or 0,
            "why": f"extends that of release {self.before.release}",
        }
        plan, transform = plan.model_copy(update=same), self.vectors.transform
        build = Build(self.source, plan, job.index, job.gates, transform, work, index.queries)
        live_units = [
            (unit, live) for unit, live in zip(self.vectors.units, surveyed.live, strict=True) if live
        ]
        units, counts = zip(*live_units, strict=True)
        return Extension(build, self.before, surveyed, units, counts)

    def _work(self) -> str:
        """Return the directory of this extension, named by a digest of everything that determines it."""
        fields = {"index", "ids", "tombstones", "dead", "rows", "next_ordinal"}
        before = self.before.model_dump(mode="json", include=fields)
        vectors = self.vectors
        identity = index_identity(self.run.job, vectors.units, vectors.dead, vectors.transform)
        return f"indexes/work/{digest_of({**identity, 'before': before})[:24]}"

    def _make(self, extension: Extension, with_delta: bool) -> _ExtensionRecord:
        """Extend and measure the index. Raises _Rebuild if last night's files cannot be used."""
        grown = self._fill_delta(extension) if with_delta else self._change_in_place(extension)
        if grown.unusable:
            raise _Rebuild(rules.unusable_files(grown.unusable))
        measured, truth = self._measure(extension, grown)
        if measured.built is None:
            raise _Rebuild(rules.unusable_files(measured.unusable))
        return _ExtensionRecord(built=measured.built, truth=truth)

    def _change_in_place(self, extension: Extension) -> Grown:
        rows = extension.rows_since(self.before.next_ordinal)
        with self.run.stages("extend", rows) as bar:
            grown = self.run.workers.run(GrowInPlace(extension), None, Pool(1))
            bar.reach(rows)
        return grown

    def _fill_delta(self, extension: Extension) -> Grown:
        """Fill the delta from all units after the base. Last night's delta is not reused."""
        since, build = self.before.index.base_ordinals, extension.build
        units, rows = extension.since(since), extension.rows_since(since)
        count = shard_count(self.run, build.plan, len(units))
        # Shards differ with their number, so each number has a directory of its own.
        build = replace(build, work=f"{build.work}/delta-{count}")
        task = FillShard(build, extension.trained)
        records = fill_shards(self.run, task, units, rows, count) if count else ()
        with self.run.stages("extend"):
            grown = self.run.workers.run(JoinDelta(extension), records, Pool(1))
        drop_parts(self.run.store, records)
        return grown

    def _measure(self, extension: Extension, grown: Grown) -> tuple[Measurement, Choice]:
        """Measure against exact neighbours: those of last night, updated, or those of a scan of all rows.

        All rows are scanned if, for some queries, too few of last night's neighbours are live, or if too many
        queries are dead rows.
        """
        workers, bound = self.run.workers, rules.MOST_DEAD_QUERIES
        dead_queries = extension.surveyed.dead_queries
        queries, measured = extension.trained.queries, Measurement()
        with self.run.stages("measure"):
            if dead_queries <= bound:
                measured = workers.run(MeasureGrown(extension, grown, queries), (), Pool(1))
            else:
                queries = workers.run(SampleQueries(extension.build), self.vectors.units, Pool(1))
        numbers = {
            "dead_queries": dead_queries,
            "dead_queries_bound": bound,
            "short_queries": measured.short_queries,
        }
        dead = f"{dead_queries:.1%} of the queries' own rows are dead"
        if measured.built or measured.unusable:
            sentence = f"exact neighbours are carried from last night; {dead} ({bound:.0%} at most)"
            return measured, Choice(what="index truth", chosen="carried", sentence=sentence, numbers=numbers)
        if measured.short_queries:
            reason = f"{measured.short_queries} queries had too few live neighbours"
        else:
            reason = dead
        pieces = self._scan(extension, queries)
        with self.run.stages("measure"):
            measured = workers.run(MeasureGrown(extension, grown, queries), pieces, Pool(1))
        sentence = f"all rows were searched for exact neighbours: {reason}"
        return measured, Choice(what="index truth", chosen="scanned", sentence=sentence, numbers=numbers)

    def _scan(self, extension: Extension, queries: FileRef) -> tuple[FileRef, ...]:
        task, rows = ScanTruth(self.source, extension.build.map, queries), extension.surveyed.rows
        count = self.run.workers.index_workers(self.run.job.cluster, len(extension.units))
        with self.run.stages("truth", rows) as bar:
            pieces = map_shards(self.run, task, extension.units, count, bar)
            bar.reach(rows)
        return pieces

    def _describe(self, extension: Extension, built: BuiltIndex, delta_reason: str) -> Choice:
        """Describe whether the index was changed in place or has two parts, and why."""
        surveyed, new = extension.surveyed, extension.rows_since(self.before.next_ordinal)
        gone, dead = surveyed.gone.rows, surveyed.tombstone_rows
        numbers: dict[str, float | int | None] = {
            "rows": built.rows,
            "new_rows": new,
            "gone_rows": gone,
            "parts": built.parts,
            "file_gib": built.measured.file_bytes / GIB,
            "rewrite_bound_gib": self.run.job.index.rewrite_gib,
        }
        changed = f"{new:,} rows added, {gone:,} taken out"
        if not delta_reason:
            sentence = f"last night's index, changed in place: {changed}"
            return Choice(what="index", chosen="in place", sentence=sentence, numbers=numbers)
        numbers |= {"delta_rows": surveyed.delta, "tombstones": dead}
        sentence = f"base, delta and tombstones, since {delta_reason}: {changed}"
        sentence += f"; the delta has {surveyed.delta:,} rows, the base {dead:,} dead ones"
        return Choice(what="index", chosen="base and delta", sentence=sentence, numbers=numbers)


def _rebuild_if_asked(checks: list[Choice]) -> None:
    if refused := [choice for choice in checks if choice.chosen == REBUILT]:
        raise _Rebuild(*refused)
