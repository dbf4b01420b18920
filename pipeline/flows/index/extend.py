"""Tonight's index out of last night's: changed in place where faiss can, else a base with a delta and
tombstones, and built anew where a rule says so.
"""

from dataclasses import dataclass, replace

from pipeline.config import digest_of
from pipeline.errors import DataError, SpaceMismatch
from pipeline.flows.index import rules
from pipeline.flows.index.build import (
    Filling,
    IndexInput,
    build_index,
    contiguous,
    drop_parts,
    fill_shards,
    index_identity,
)
from pipeline.flows.index.delta import Survey, Surveyed
from pipeline.flows.index.extend_tasks import (
    Asked,
    Extension,
    GrowInPlace,
    Grown,
    JoinDelta,
    MeasureGrown,
    Measurement,
    SampleQueries,
    ScanTruth,
)
from pipeline.flows.index.rules import ANEW
from pipeline.flows.index.tasks import Build, BuiltIndex, FillShard, Shard
from pipeline.flows.rows import LiveRows, Placed, space_of
from pipeline.flows.run import Run
from pipeline.flows.workers.tasks import Pool
from pipeline.index.plan import IndexPlan
from pipeline.post import Transform
from pipeline.settings import Job
from pipeline.store.base import Store
from pipeline.store.manifest import Choice, ReleaseManifest
from pipeline.store.once import create_record
from pipeline.store.units import FileRef, Stored

Built = tuple[BuiltIndex, tuple[Choice, ...]]


def extend_index(run: Run, vectors: IndexInput, before: ReleaseManifest) -> Built:
    """Make tonight's index out of that of release `before`; whatever an earlier run finished is kept.

    Args:
        vectors: all of tonight. Old units have the ordinals that they had, new ones follow from
            before.next_ordinal on. `dead` are all dead rows of theirs; before.dead names those of last night.

    Returns:
        The index over the live rows, and every decision about it with its numbers.

    Raises:
        SpaceMismatch: the units are of two spaces, or of another space than `before`.
    """
    if (space_id := space_of(vectors.units)) != before.space_id:
        remedy = "vectors of two spaces cannot be compared: build an index of its own"
        raise SpaceMismatch(
            f"index of release {before.release}",
            f"vectors of space {before.space_id}",
            f"space {space_id}",
            remedy,
        )
    ordered = replace(vectors, units=tuple(sorted(vectors.units, key=lambda placed: placed.ordinal)))
    source = LiveRows(run.store, space_id, run.job.corpus.id, vectors.dead)
    extending = _Extending(run, ordered, source, before)
    why = extending.at_once()
    return extending.anew(why) if why else extending.extended()


class _Extended(Stored):
    """A finished extension: taken up again by a run after it."""

    built: BuiltIndex
    truth: Choice


@dataclass(frozen=True)
class _Extending:
    run: Run
    vectors: IndexInput
    source: LiveRows
    before: ReleaseManifest

    @property
    def units(self) -> tuple[Placed, ...]:
        return self.vectors.units

    @property
    def transform(self) -> Transform | None:
        return self.vectors.transform

    @property
    def job(self) -> Job:
        return self.run.job

    @property
    def store(self) -> Store:
        return self.run.store

    def at_once(self) -> Choice | None:
        """Why the index is built anew, as far as the manifest and the sizes of files tell."""
        index = self.before.index
        if why := rules.other_settings(
            self.job, self.before, self.transform, self.vectors.dim
        ) or rules.other_units(self.units, self.before):
            return why
        if (
            index.trained is None
            or index.queries is None
            or index.truth is None
            or "fingerprint" not in index.settings
        ):
            return rules.unusable(
                f"release {self.before.release} was published by a version that kept no training"
            )
        needed = (
            *index.files,
            *self.before.ids,
            index.trained,
            index.queries,
            index.truth,
            *([self.before.tombstones] if self.before.tombstones else []),
        )
        for reference in needed:
            if (size := self.store.size(reference.path)) != reference.bytes:
                return rules.unusable(
                    f"{reference.path} is gone"
                    if size is None
                    else f"{reference.path} has {size:,} bytes instead of {reference.bytes:,}"
                )
        return None

    def anew(self, *why: Choice) -> Built:
        """Built from the units, and what decided that."""
        vectors = replace(self.vectors, asked_before=self.before.index.queries)
        return build_index(self.run, vectors), why

    def extended(self) -> Built:
        """Extended, or built anew once the rows or the measurement ask for it."""
        before, work = self.before, self._work()
        surveyed = self.run.workers.run(Survey(self.source, before, work), self.units, Pool(1))
        plan = self.vectors.plan(surveyed.rows, self.job.index)
        if why := self._by_rows(surveyed) or rules.other_kind(plan, before.index):
            return self.anew(why)
        apart = rules.stands_apart(plan, before.index, self.job.index.rewrite_gib)
        compacted = (
            (
                rules.compaction(
                    surveyed.delta, surveyed.tombstones.rows if surveyed.tombstones else 0, surveyed.rows
                ),
            )
            if apart
            else ()
        )
        trained = rules.training(before.index, surveyed.rows, None)
        if doubts := [choice for choice in (trained, *compacted) if choice.chosen == ANEW]:
            return self.anew(*doubts)
        found = self._made(self._extension(surveyed, plan, work), bool(apart))
        if isinstance(found, str):
            return self.anew(rules.unusable(found))
        trained = rules.training(before.index, surveyed.rows, found.built.measured)
        if trained.chosen == ANEW:
            return self.anew(trained)
        return found.built, (self._form(surveyed, found.built, apart), trained, *compacted, found.truth)

    def _extension(self, surveyed: Surveyed, plan: IndexPlan, work: str) -> Extension:
        index = self.before.index
        same = {
            "factory": index.factory,
            "nlist": index.settings.get("nlist") or 0,
            "why": f"extends that of release {self.before.release}",
        }
        build = Build(
            self.source,
            plan.model_copy(update=same),
            self.job.index,
            self.job.gates,
            self.transform,
            work,
            index.queries,
        )
        live = [(placed, count) for placed, count in zip(self.units, surveyed.live, strict=True) if count]
        return Extension(
            build,
            self.before,
            surveyed,
            tuple(placed for placed, _ in live),
            tuple(count for _, count in live),
        )

    def _by_rows(self, surveyed: Surveyed) -> Choice | None:
        if surveyed.unusable:
            return rules.unusable(surveyed.unusable)
        if surveyed.revived:
            return rules.unusable(f"{surveyed.revived:,} rows that it has taken out are live again")
        return rules.turnover(self.before.rows - surveyed.gone.rows, self.before.rows)

    def _work(self) -> str:
        """The directory of this extension, by all that goes into it."""
        before = self.before.model_dump(
            mode="json", include={"index", "ids", "tombstones", "dead", "rows", "next_ordinal"}
        )
        what = {**index_identity(self.job, self.units, self.source.dead, self.transform), "before": before}
        return f"indexes/work/{digest_of(what)[:24]}"

    def _made(self, extension: Extension, apart: bool) -> _Extended | str:
        """The extended index, or why last night's files cannot be used."""
        done = f"{extension.build.work}/extended.json"
        if found := _Extended.load_complete(self.store, done):
            return found
        try:
            grown = self._beside(extension) if apart else self._in_place(extension)
        except (
            FileNotFoundError,
            DataError,
        ):  # a second run beside this one finished the same extension and removed its parts
            if found := _Extended.load_complete(self.store, done):
                return found
            raise
        measured, truth = (
            self._measured(extension, grown)
            if not grown.unusable
            else (Measurement(unusable=grown.unusable), None)
        )
        if measured.built is None or truth is None:
            return measured.unusable
        return create_record(self.store, done, _Extended(built=measured.built, truth=truth))

    def _in_place(self, extension: Extension) -> Grown:
        rows = extension.rows_since(self.before.next_ordinal)
        with self.run.stages("extend", rows) as bar:
            grown = self.run.workers.run(GrowInPlace(extension), None, Pool(1))
            bar.reach(rows)
        return grown

    def _beside(self, extension: Extension) -> Grown:
        """The delta, filled anew from all units after the base."""
        since = self.before.index.base_ordinals
        units, rows = extension.since(since), extension.rows_since(since)
        most = self.run.workers.index_workers(self.job.cluster, max(1, len(units)))
        count = (
            min(self.job.index.shards or most, len(units))
            if extension.build.plan.shardable
            else min(1, len(units))
        )
        # a run on a larger cluster cuts other shards, so those of this number of shards have a place of their
        # own
        build = replace(extension.build, work=f"{extension.build.work}/delta-{count}")
        records = (
            fill_shards(self.run, FillShard(build, extension.trained), Filling(units, rows, count, most))
            if count
            else ()
        )
        with self.run.stages("extend"):
            grown = self.run.workers.run(JoinDelta(extension), records, Pool(1))
        drop_parts(self.store, records)
        return grown

    def _measured(self, extension: Extension, grown: Grown) -> tuple[Measurement, Choice]:
        """Measured with the rankings carried from last night, or, where they are too short or their queries
        too many dead, after a scan of all rows.
        """
        stale, asked = extension.surveyed.dead_queries, Asked(queries=extension.trained.queries)
        numbers: dict[str, float | int | None] = {
            "dead_queries": stale,
            "dead_queries_bound": rules.MOST_DEAD_QUERIES,
        }
        measured = Measurement()
        with self.run.stages("measure"):
            if stale <= rules.MOST_DEAD_QUERIES:
                measured = self.run.workers.run(MeasureGrown(extension), (grown, asked), Pool(1))
            else:
                asked = Asked(
                    queries=self.run.workers.run(SampleQueries(extension.build), self.units, Pool(1))
                )
        numbers["short_queries"] = measured.short_queries
        if measured.built or measured.unusable:
            sentence = (
                f"exact neighbours are carried from last night; {stale:.1%} of the queries' own rows are "
                f"dead ({rules.MOST_DEAD_QUERIES:.0%} at most)"
            )
            return measured, Choice(what="index truth", chosen="carried", sentence=sentence, numbers=numbers)
        pieces = self._scan(extension, asked)
        with self.run.stages("measure"):
            measured = self.run.workers.run(
                MeasureGrown(extension), (grown, asked.model_copy(update={"pieces": pieces})), Pool(1)
            )
        short = (
            f"{numbers['short_queries']} rankings had become too short"
            if numbers["short_queries"]
            else f"{stale:.1%} of the queries' own rows are dead"
        )
        return measured, Choice(
            what="index truth",
            chosen="scanned",
            sentence=f"all rows were searched for exact neighbours: {short}",
            numbers=numbers,
        )

    def _scan(self, extension: Extension, asked: Asked) -> tuple[FileRef, ...]:
        workers = self.run.workers.index_workers(self.job.cluster, len(extension.units))
        shards = [
            Shard(number=number, units=part)
            for number, part in enumerate(contiguous(extension.units, workers))
        ]
        with self.run.stages("truth", extension.surveyed.rows) as bar:
            pieces = dict(
                self.run.workers.map_units(
                    ScanTruth(extension.build.source, extension.build.map, asked.queries),
                    shards,
                    Pool(workers),
                    bar,
                )
            )
            bar.reach(extension.surveyed.rows)
        return tuple(pieces[number] for number in range(len(shards)))

    def _form(self, surveyed: Surveyed, built: BuiltIndex, apart: str) -> Choice:
        new = sum(
            count
            for placed, count in zip(self.units, surveyed.live, strict=True)
            if placed.ordinal >= self.before.next_ordinal
        )
        numbers: dict[str, float | int | None] = {
            "rows": built.rows,
            "new_rows": new,
            "gone_rows": surveyed.gone.rows,
            "parts": built.parts,
        }
        numbers |= {
            "file_gib": built.measured.file_bytes / 2**30,
            "rewrite_bound_gib": self.job.index.rewrite_gib,
        }
        changed = f"{new:,} rows added, {surveyed.gone.rows:,} taken out"
        if not apart:
            return Choice(
                what="index",
                chosen="in place",
                sentence=f"last night's index, changed in place: {changed}",
                numbers=numbers,
            )
        numbers |= {
            "delta_rows": surveyed.delta,
            "tombstones": surveyed.tombstones.rows if surveyed.tombstones else 0,
        }
        sentence = (
            f"base, delta and tombstones, since {apart}: {changed}; the delta has {surveyed.delta:,} rows, "
            f"the base {numbers['tombstones']:,} dead ones"
        )
        return Choice(what="index", chosen="base and delta", sentence=sentence, numbers=numbers)
