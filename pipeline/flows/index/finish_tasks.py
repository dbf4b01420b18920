"""Tasks that follow the filling of an index's shards: merge the shards of each part, and measure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.flows.context import FlowContext
from pipeline.flows.index.records import (
    BuiltIndex,
    ExampleQuery,
    FilledPart,
    ShardRecord,
    TrainedIndex,
    file_fields,
    load_queries,
    store_truth,
)
from pipeline.flows.index.tasks import Build
from pipeline.flows.workers.tasks import PlainTask
from pipeline.index.measure.metrics import IndexMetrics
from pipeline.stats.tensors import unpack
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.write_once import load_or_make, put_by_content
from pipeline.store.releases.manifest import IndexPart

if TYPE_CHECKING:
    from pipeline.index.build.merge import FilledShard
    from pipeline.index.measure.searched_parts import SearchedParts
    from pipeline.index.measure.truth import Neighbours, Queries

_EXAMPLES, _EXAMPLE_ANSWERS = 6, 4
_READERS = 16  # shards whose files are read together


@dataclass(frozen=True)
class MergeShards(PlainTask[FilledPart, IndexPart]):
    """Merge the shards of one part, in order, and store it."""

    build: Build
    on_disk: bool = False
    """whether the inverted lists get a file of their own"""
    effort: int | None = None
    """search effort that the file stores; None: the effort in the trained index"""

    def work(self, part: FilledPart) -> IndexPart:
        path = f"{self.build.work}/part-{part.number:05d}.json"
        return load_or_make(self.build.store, path, IndexPart, lambda: self._merge(part))

    def _merge(self, part: FilledPart) -> IndexPart:
        from pipeline.index.build.build import write_index
        from pipeline.index.build.merge import merge, merge_on_disk
        from pipeline.index.measure.search_effort import set_effort

        store = self.build.store
        with store.scratch() as scratch:
            shards = local_shards(store, part.shards)
            index, lists = merge_on_disk(shards, scratch) if self.on_disk else (merge(shards), None)
            if self.effort is not None:
                set_effort(index, self.effort)
            write_index(index, scratch / "index.faiss")
            files = (scratch / "index.faiss", lists) if lists else (scratch / "index.faiss",)
            return IndexPart(
                files=tuple(put_by_content(store, file, "indexes/", index.ntotal) for file in files),
                ids=tuple(shard.ids for shard in part.shards),
                next_ordinal=part.next_ordinal,
            )


@dataclass(frozen=True)
class Finish(PlainTask[FilledPart, BuiltIndex]):
    """Merge the shards of the only part, choose the search effort, measure, and store index and effort."""

    build: Build
    trained: TrainedIndex
    base_ordinals: int

    def work(self, part: FilledPart) -> BuiltIndex:
        from pipeline.index.build.build import write_index
        from pipeline.index.build.merge import merge, merge_on_disk
        from pipeline.index.files.parts import Parts
        from pipeline.index.measure.measure import measure

        build, store = self.build, self.build.store
        queries = load_queries(store, self.trained.queries)
        truth = joined_truth(store, part.shards, queries)
        with store.scratch() as scratch:
            shards = local_shards(store, part.shards)
            index, lists = merge_on_disk(shards, scratch) if build.plan.on_disk else (merge(shards), None)
            parts = Parts([index])
            found = measure(parts, queries, truth, build.settings, build.gates)
            write_index(index, scratch / "index.faiss")
            written = (scratch / "index.faiss", lists) if lists else (scratch / "index.faiss",)
            made = IndexPart(
                files=tuple(put_by_content(store, file, "indexes/", found.rows) for file in written),
                ids=tuple(shard.ids for shard in part.shards),
                next_ordinal=part.next_ordinal,
            )
            stored_truth = store_truth(store, truth, scratch)
        return _built(self, (made,), found, example_queries(parts, queries), stored_truth)


def finish_parts(
    context: FlowContext, task: Finish, filled: Sequence[FilledPart], merged: Sequence[IndexPart]
) -> BuiltIndex:
    """Choose the search effort of an index of several parts, and measure it; workers search the parts.

    The files do not store the effort: the release's manifest does, and readers set it.
    """
    from pipeline.flows.index.parts_on_workers import PartFiles, PartsOnWorkers
    from pipeline.index.measure.measure import measure

    build, store, trained = task.build, context.store, task.trained
    queries = load_queries(store, trained.queries)
    truth = joined_truth(store, [shard for part in filled for shard in part.shards], queries)
    parts = PartsOnWorkers(context, PartFiles(store), merged, trained.index, queries.addresses)
    found = measure(parts, queries, truth, build.settings, build.gates)
    with store.scratch() as scratch:
        stored_truth = store_truth(store, truth, scratch)
    return _built(task, merged, found, example_queries(parts, queries), stored_truth)


def _built(
    task: Finish,
    parts: Sequence[IndexPart],
    found: IndexMetrics,
    shown: tuple[ExampleQuery, ...],
    truth: FileRef,
) -> BuiltIndex:
    plan = task.build.plan
    measured = found.model_copy(update={"file_bytes": sum(part.bytes for part in parts)})
    near = {"recall_near_dead": found.recall_near_dead.value} if found.recall_near_dead else {}
    return BuiltIndex(
        kind=plan.kind,
        factory=plan.factory,
        dim=plan.dim,
        **file_fields(parts),
        rows=found.rows,
        settings=reader_settings(measured),
        measured=measured,
        examples=shown,
        plan=plan,
        trained=task.trained.index,
        queries=task.trained.queries,
        truth=truth,
        trained_on={
            "rows": found.rows,
            "imbalance": found.imbalance,
            "recall_at_10": found.recall["10"].value,
            **rows_effort_of(found),
            **near,
        },
        base_ordinals=task.base_ordinals,
    )


def rows_effort_of(measured: IndexMetrics) -> dict[str, int]:
    """Return the search effort that rows need, which later nights return to without texts of users."""
    return {} if measured.rows_effort is None else {"rows_effort": measured.rows_effort}


def reader_settings(measured: IndexMetrics) -> dict[str, Any]:
    """Return the measured values that a reader of the index files needs."""
    return measured.model_dump(include={"effort_name", "effort", "nlist", "fingerprint"})


def local_shards(store: Store, shards: Sequence[ShardRecord]) -> list["FilledShard"]:
    """Return the shards with local files, to be merged."""
    from pipeline.index.build.merge import FilledShard

    def fetch(shard: ShardRecord) -> FilledShard:
        probes, _ = unpack(shard.truth.read(store), "probe_addresses", "probe_vectors")
        local = shard.index.local(store)
        return FilledShard(
            local, shard.rows, probes["probe_addresses"], probes["probe_vectors"], shard.space_id
        )

    return in_threads(fetch, shards, _READERS)


def joined_truth(store: Store, shards: Sequence[ShardRecord], queries: "Queries") -> "Neighbours":
    """Return the queries' exact neighbours among the rows of all shards."""
    from pipeline.index.measure.truth import ExactTopK, Neighbours

    exact = ExactTopK(queries)
    truth = exact.empty()
    for start in range(0, len(shards), _READERS):
        contents = in_threads(lambda shard: shard.truth.read(store), shards[start : start + _READERS])
        for content in contents:
            found, _ = unpack(content, "addresses", "scores")
            truth = exact.merge(truth, Neighbours(found["addresses"], found["scores"]))
    return truth


def example_queries(index: "SearchedParts", queries: "Queries") -> tuple[ExampleQuery, ...]:
    """Return a few of the rows among the queries, each with its nearest rows in the index except itself."""
    queries = queries[~queries.of_users]
    chosen = queries[:: max(1, len(queries) // _EXAMPLES)][:_EXAMPLES]
    scores, found = index.search(chosen.vectors, min(_EXAMPLE_ANSWERS + 1, index.ntotal))
    examples = []
    for query, addresses, values in zip(
        chosen.addresses.tolist(), found.tolist(), scores.tolist(), strict=True
    ):
        pairs = zip(addresses, values, strict=True)
        others = [(address, score) for address, score in pairs if address not in (query, -1)]
        examples.append(ExampleQuery(query=query, neighbours=tuple(others[:_EXAMPLE_ANSWERS])))
    return tuple(examples)
