"""Extend last night's index, in place or by a delta and tombstones; rebuild it if a rule demands it.

This is a module of its own beside `build`, because only nights extend an index.
"""

from dataclasses import dataclass, replace

from pipeline.config import digest_of
from pipeline.flows.context import FlowContext, ItemNeeds, map_in_order
from pipeline.flows.index import rebuild_rules
from pipeline.flows.index.build import (
    IndexInput,
    build_index,
    delete_shards,
    fill_parts,
    index_identity,
    part_memory,
    shard_count,
)
from pipeline.flows.index.extend_tasks import (
    AskUsers,
    ExtendedParts,
    Extension,
    GrowPart,
    JoinTruth,
    parts_to_grow,
)
from pipeline.flows.index.finish_tasks import MergeShards
from pipeline.flows.index.measure_tasks import MeasureGrown, Measurement, SampleQueries, ScanTruth, scan_truth
from pipeline.flows.index.rebuild_rules import REBUILT
from pipeline.flows.index.records import BuiltIndex
from pipeline.flows.index.survey import Survey, SurveyResult
from pipeline.flows.index.tasks import Build, FillShard
from pipeline.flows.rows import LiveRows, space_of
from pipeline.flows.workers.tasks import Pool
from pipeline.index.build.index_shape import IndexPlan, plan_extension
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.write_once import load_or_make_racing
from pipeline.store.releases.manifest import Choice, IndexPart, ReleaseManifest

# New rows are added to a part until it has this many times the rows of a full part.
_MAX_PART_GROWTH = 1.25

BuiltWithChoices = tuple[BuiltIndex, tuple[Choice, ...]]
"""an index, and the decisions that led to it"""


def extend_index(
    context: FlowContext,
    vectors: IndexInput,
    previous: ReleaseManifest | None,
    *,
    new_addresses: bool = False,
) -> BuiltWithChoices:
    """Extend the previous release's index to tonight's vectors; build a new one if that is not possible.

    Work that an earlier run finished is not repeated.

    Args:
        vectors: all of tonight's vectors, with all dead rows. Old units keep their ordinals; the ordinals of
            new units begin at the previous release's next_ordinal.
        previous: the previous release; None on the first night.
        new_addresses: whether all rows are in new units.

    Returns:
        The index over the live rows, and every decision about it with its numbers.

    Raises:
        SpaceMismatch: the units are of two spaces.
    """
    space_id = space_of(vectors.units)
    if choice := rebuild_rules.nothing_to_extend(previous, space_id, new_addresses=new_addresses):
        return build_index(context, vectors), (choice,)
    assert previous is not None, "there is nothing to extend before the first release"
    ordered = replace(vectors, units=tuple(sorted(vectors.units, key=lambda unit: unit.ordinal)))
    source = LiveRows(context.store, space_id, context.job.corpus.id, vectors.dead)
    try:
        return _Extender(context, ordered, source, previous).extend()
    except _Rebuild as rebuild:
        return build_index(
            context, replace(ordered, previous_queries=previous.index.queries)
        ), rebuild.choices


class _Rebuild(Exception):
    """The index has to be rebuilt; `choices` name the reasons."""

    def __init__(self, *choices: Choice | None) -> None:
        self.choices = tuple(filter(None, choices))


class _ExtensionRecord(Stored):
    """Record of a finished extension, which a later run loads."""

    built: BuiltIndex
    truth: Choice


@dataclass(frozen=True)
class _Extender:
    """Extension of the index of the previous release to tonight's vectors."""

    context: FlowContext
    vectors: IndexInput
    source: LiveRows
    previous: ReleaseManifest

    def extend(self) -> BuiltWithChoices:
        """Extend the index. Rules are checked in the order of their cost.

        Raises:
            _Rebuild: a rule demands that the index is rebuilt.
        """
        previous, vectors, settings = self.previous, self.vectors, self.context.job.index
        last = previous.index
        _rebuild_if(
            rebuild_rules.changed_settings(self.context.job, previous, vectors.transform, vectors.dim)
            or rebuild_rules.changed_units(vectors.units, previous)
            or rebuild_rules.unusable_files(self._incomplete_file())
        )
        work = self._work_directory()
        survey = self.context.workers.run(Survey(self.source, previous, work), vectors.units, Pool(1))
        plan = plan_extension(survey.rows, vectors.indexed_dim, settings, last.kind, last.factory)
        revived = f"{survey.revived:,} rows that were removed from it are live again"
        _rebuild_if(
            rebuild_rules.unusable_files(survey.unusable or (revived if survey.revived else None))
            or rebuild_rules.turnover(previous.rows - survey.gone_rows, previous.rows)
            or rebuild_rules.changed_kind(plan, last)
        )
        delta_reason = rebuild_rules.delta_reason(plan, last, settings.rewrite_gib)
        checks = [rebuild_rules.quantizer_fit(last, survey.rows, None)]
        if delta_reason is not None:
            checks.append(rebuild_rules.compaction(survey.delta, survey.tombstone_rows, survey.rows))
        _rebuild_if(*checks)
        extension = self._extension(survey, plan, work)
        record = load_or_make_racing(
            self.context.store,
            f"{work}/extended.json",
            _ExtensionRecord,
            lambda: self._extend_and_measure(extension, with_delta=delta_reason is not None),
        )
        built_files = record.built.index_files()  # if the effort changed, compared with tonight's recall
        checks[0] = rebuild_rules.quantizer_fit(built_files, survey.rows, record.built.measured)
        _rebuild_if(checks[0])
        new_rows = extension.live_rows_from(previous.next_ordinal)
        extended = rebuild_rules.extended(record.built, survey, new_rows, delta_reason, settings.rewrite_gib)
        return record.built, (extended, *checks, record.truth)

    def _incomplete_file(self) -> str | None:
        """Describe a file of the previous release that is missing or has another size; None if none is."""
        previous, index, store = self.previous, self.previous.index, self.context.store
        training_files = index.trained, index.queries, index.truth
        if None in training_files or "fingerprint" not in index.settings:
            return f"release {previous.release} was published by a version that did not store the training"
        for file in filter(None, (*index.files, *previous.ids, *training_files, previous.tombstones)):
            if (size := store.size(file.path)) is None:
                return f"{file.path} is gone"
            if size != file.bytes:
                return f"{file.path} has {size:,} bytes instead of {file.bytes:,}"
        return None

    def _extension(self, survey: SurveyResult, plan: IndexPlan, work: str) -> Extension:
        """Return the inputs of the extension; its plan keeps last night's factory and number of lists."""
        job, index = self.context.job, self.previous.index
        kept_fields = {
            "factory": index.factory,
            "nlist": index.settings.get("nlist") or 0,
            "why": f"extends that of release {self.previous.release}",
        }
        plan, transform = plan.model_copy(update=kept_fields), self.vectors.transform
        users = self.vectors.user_queries
        build = Build(self.source, plan, job.index, job.gates, transform, work, index.queries, users)
        asked = self.context.workers.run(AskUsers(self.context.store, self.previous), users, Pool(1))
        live_units = [
            (unit, live) for unit, live in zip(self.vectors.units, survey.live, strict=True) if live
        ]
        units, counts = zip(*live_units, strict=True)
        return Extension(build, self.previous, survey, units, counts, asked)

    def _work_directory(self) -> str:
        """Return the directory of this extension, named by a digest of everything that determines it."""
        fields = {"index", "ids", "tombstones", "dead", "rows", "next_ordinal"}
        previous = self.previous.model_dump(mode="json", include=fields)
        identity = index_identity(self.context.job, self.vectors)
        return f"indexes/work/{digest_of({**identity, 'before': previous})[:24]}"

    def _extend_and_measure(self, extension: Extension, *, with_delta: bool) -> _ExtensionRecord:
        """Extend and measure the index. Raises _Rebuild if last night's files cannot be used."""
        extended = self._fill_delta(extension) if with_delta else self._change_in_place(extension)
        measurement, truth = self._measure(extension, extended)
        if measurement.built is None:
            raise _Rebuild(rebuild_rules.unusable_files(measurement.unusable))
        return _ExtensionRecord(built=measurement.built, truth=truth)

    def _change_in_place(self, extension: Extension) -> ExtendedParts:
        """Remove dead rows from the parts that hold them. New rows go to the last part, or to new parts."""
        first_added, old_parts = self.previous.next_ordinal, self.previous.index_parts()
        units, rows = extension.units_from(first_added), extension.live_rows_from(first_added)
        fits = old_parts[-1].rows + rows <= _MAX_PART_GROWTH * (extension.build.plan.part_rows or rows)
        items = parts_to_grow(old_parts, last_takes_new_rows=fits)
        gone = DeadRows(self.context.store, extension.survey.gone)
        changed = [item for item in items if item.takes_new_rows or len(item.own_rows(gone))]
        with self.context.stages("extend", rows) as bar:
            needs = ItemNeeds(part_memory(extension.build))
            made = map_in_order(self.context, GrowPart(extension), changed, needs=needs)
            bar.reach(rows)
        parts = dict(enumerate(old_parts))
        for item, grown in zip(changed, made, strict=True):
            if grown.part is None:
                raise _Rebuild(rebuild_rules.unusable_files(grown.unusable))
            parts[item.number] = grown.part
        added = made[-1].added if fits else None
        new_parts: tuple[IndexPart, ...] = ()
        if added is None:
            new_parts, added = self._fill_parts(extension, units, rows)
        kept = tuple(part for part in parts.values() if part.rows)
        base_ordinals = max(
            self.previous.index.base_ordinals, *(unit.ordinal + 1 for unit in extension.units)
        )
        return ExtendedParts(
            parts=(*kept, *new_parts), added=added, first_added=first_added, base_ordinals=base_ordinals
        )

    def _fill_delta(self, extension: Extension) -> ExtendedParts:
        """Fill the delta from all units after the base. Last night's delta is not reused."""
        first_added = self.previous.index.base_ordinals
        units, rows = extension.units_from(first_added), extension.live_rows_from(first_added)
        delta, added = self._fill_parts(extension, units, rows)
        return ExtendedParts(
            parts=(*self._base_parts(), *delta),
            delta_parts=len(delta),
            added=added,
            first_added=first_added,
            base_ordinals=first_added,
            tombstones=extension.survey.tombstones,
        )

    def _base_parts(self) -> tuple[IndexPart, ...]:
        parts = self.previous.index_parts()
        return tuple(part for part in parts if part.next_ordinal <= self.previous.index.base_ordinals)

    def _fill_parts(
        self, extension: Extension, units: tuple[VectorUnit, ...], rows: int
    ) -> tuple[tuple[IndexPart, ...], FileRef]:
        """Fill units into new parts.

        Returns:
            The parts (none if there are no units), and the file of the queries' exact neighbours among these
            rows.
        """
        context, build, previous_index = self.context, extension.build, self.previous.index
        # The content of shards depends on how many there are, so each count has a directory of its own.
        shards = shard_count(context.job.index, build.plan, len(units), rows) if units else 0
        build = replace(build, work=f"{build.work}/delta-{shards}")
        filled = fill_parts(context, FillShard(build, extension.trained), units, rows) if units else ()
        with context.stages("extend"):
            merge = MergeShards(build, effort=previous_index.settings.get("effort"))
            parts = map_in_order(context, merge, filled, needs=ItemNeeds(part_memory(build)))
            truth = context.workers.run(JoinTruth(extension), filled, Pool(1))
        delete_shards(context.store, filled)
        return parts, truth

    def _measure(self, extension: Extension, extended: ExtendedParts) -> tuple[Measurement, Choice]:
        """Measure the index against the queries' exact neighbours.

        Last night's neighbours are updated if possible. All rows are scanned if a query has too few live
        neighbours left, if a text of users is new, or if too many queries are dead rows. In the latter case
        queries are sampled again.
        """
        workers, bound = self.context.workers, rebuild_rules.MAX_DEAD_QUERIES
        dead_queries = extension.survey.dead_queries
        queries, measurement = extension.trained.queries, Measurement()
        with self.context.stages("measure"):
            if dead_queries <= bound and extension.asked.truth is not None:
                measurement = MeasureGrown(extension, extended, queries).measure_on(self.context, ())
            elif dead_queries > bound:
                queries = workers.run(SampleQueries(extension.build), self.vectors.units, Pool(1))
        numbers = {
            "dead_queries": dead_queries,
            "dead_queries_bound": bound,
            "short_queries": measurement.short_queries,
        }
        dead = f"{dead_queries:.1%} of the queries are rows that have died"
        if measurement.built or measurement.unusable:
            sentence = f"last night's exact neighbours were updated; {dead} ({bound:.0%} at most)"
            return measurement, Choice(
                what="index truth", chosen="carried", sentence=sentence, numbers=numbers
            )
        short = measurement.short_queries
        reason = f"{short} queries had too few live neighbours" if short else dead
        if extension.asked.truth is None and dead_queries <= bound:
            reason = "gates.queries has texts that last night's did not have"
        pieces = self._scan(extension, queries)
        with self.context.stages("measure"):
            measurement = MeasureGrown(extension, extended, queries).measure_on(self.context, pieces)
        sentence = f"all rows were searched for exact neighbours: {reason}"
        return measurement, Choice(what="index truth", chosen="scanned", sentence=sentence, numbers=numbers)

    def _scan(self, extension: Extension, queries: FileRef) -> tuple[FileRef, ...]:
        """Write the queries' exact neighbours among all live rows to several files."""
        task, rows = ScanTruth(self.source, extension.build.affine, queries), extension.survey.rows
        with self.context.stages("truth", rows) as bar:
            scanned = scan_truth(self.context, task, extension.units, self.previous.index.dim, bar)
            bar.reach(rows)
        return tuple(each.truth for each in scanned)


def _rebuild_if(*choices: Choice | None) -> None:
    """Raise _Rebuild with the decisions that demand a rebuild, if there are any."""
    if rebuilding := [choice for choice in choices if choice and choice.chosen == REBUILT]:
        raise _Rebuild(*rebuilding)
