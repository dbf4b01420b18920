"""What workers do for an index: sample and train, fill a shard, merge and measure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.flows.units import progress
from pipeline.index.kinds import IndexPlan
from pipeline.post.whitening import Whitening
from pipeline.settings import GateSettings, IndexSettings
from pipeline.stats.tensors import pack, unpack
from pipeline.store.schema import checked_space, vector_matrix
from pipeline.store.store import Store, sha256_of
from pipeline.store.units import FileRef, Stored, UnitRecord

_BATCH = 8_192          # rows added at once: 12 MB of float32 at d = 384
_EXAMPLES, _EXAMPLE_ANSWERS = 6, 4


class Placed(Stored):
    """An embedding unit with its place in the chain of releases."""

    ordinal: int
    unit: UnitRecord


class Shard(Stored):
    """Units that one worker fills into one part, in order."""

    number: int
    units: tuple[Placed, ...]


class ShardRecord(Stored):
    """What a filled shard leaves: the part, the queries' exact neighbours in it with rows to look up, and the ids of its addresses."""

    part: FileRef
    truth: FileRef
    ids: FileRef
    rows: int


class Example(Stored):
    """A row asked as a query, and its nearest others (address, score), best first."""

    query: int
    neighbours: tuple[tuple[int, float], ...]


class BuiltIndex(Stored):
    """A built and measured index."""

    kind: str
    factory: str
    dim: int
    parts: int
    files: tuple[FileRef, ...]
    ids: tuple[FileRef, ...]
    rows: int
    settings: dict[str, Any]
    """nprobe or efSearch as stored in the file, nlist, fingerprint of the trained part"""
    measured: dict[str, Any]
    """recall, curve, latency ... as pipeline.index.validate found them"""
    examples: tuple[Example, ...]
    queries: FileRef
    plan: IndexPlan


def placed_rows(placed: Placed) -> np.ndarray:
    """Addresses (n,) int64 of the unit's vectors, in its order: ordinal << 32 | row of the corpus unit."""
    dropped = np.asarray(placed.unit.dropped, dtype=np.int64)
    rows = np.delete(np.arange(placed.unit.rows + len(dropped), dtype=np.int64), dropped)
    return (np.int64(placed.ordinal) << 32) | rows


def batches(store: Store, units: Sequence[Placed], space_id: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(addresses, raw vectors float32) of all units, in order, a block at a time."""
    for placed in units:
        addresses, start = placed_rows(placed), 0
        source = checked_space(pq.ParquetFile(store.open(placed.unit.path)), placed.unit.path, space_id)
        for batch in source.iter_batches(_BATCH, columns=["vector"]):
            vectors = vector_matrix(batch["vector"]).astype(np.float32, copy=False)
            yield addresses[start : start + len(vectors)], vectors
            start += len(vectors)


@dataclass(frozen=True)
class Build:
    """What all steps of one build share. work: directory of its parts, named by what is built."""

    store: Store
    plan: IndexPlan
    settings: IndexSettings
    gates: GateSettings
    transform: Whitening | None
    space_id: str
    work: str
    id_name: str

    def trained(self) -> str:
        return f"{self.work}/trained.faiss"

    def queries(self) -> str:
        return f"{self.work}/queries.safetensors"

    def load_queries(self) -> Any:
        from pipeline.index.truth import Queries

        tensors, _ = unpack(self.store.read(self.queries()), "addresses", "vectors")
        return Queries(tensors["addresses"], tensors["vectors"])


@dataclass(frozen=True)
class Train:
    """Sample queries and training rows over all units, and train the empty index."""

    build: Build

    def start(self) -> Callable[[tuple[Placed, ...]], None]:
        return self._work

    def _work(self, units: tuple[Placed, ...]) -> None:
        from pipeline.index.build import train, write_index

        build = self.build
        addresses, vectors = sample_vectors(build.store, units, build.space_id, build.id_name, build.settings.queries, "queries")
        _, sample = sample_vectors(build.store, units, build.space_id, build.id_name, max(build.plan.train_rows, 1), "train")
        index = train(build.plan, build.transform, sample, build.settings.seed)
        with build.store.scratch() as scratch:
            write_index(index, scratch / "trained.faiss")
            # created once: of two nights that train the same, on machines that round differently, all shards follow one
            build.store.create(build.trained(), (scratch / "trained.faiss").read_bytes())
        build.store.create(build.queries(), pack({"addresses": addresses, "vectors": vectors}, {}))


def sample_vectors(store: Store, units: Sequence[Placed], space_id: str, id_name: str, count: int, salt: str) -> tuple[np.ndarray, np.ndarray]:
    """(addresses, raw vectors) of `count` rows over all units, each giving its share by hash of id. Another salt is an independent sample."""
    from pipeline.index.sample import apportion, sample_rows

    shares = apportion([placed.unit.rows for placed in units], count)
    taken = []
    for placed, share in zip(units, shares, strict=True):
        if share:
            source = checked_space(pq.ParquetFile(store.open(placed.unit.path)), placed.unit.path, space_id)
            rows = sample_rows(source.read(columns=[id_name])[id_name], int(share), salt)
            taken.append((placed_rows(placed)[rows], _vectors_at(source, rows)))
    return np.concatenate([rows for rows, _ in taken]), np.concatenate([vectors for _, vectors in taken])


def _vectors_at(source: pq.ParquetFile, rows: np.ndarray) -> np.ndarray:
    """The vectors (n, d) float32 of those rows (ascending), a row group in memory at a time."""
    found, start = [], 0
    for number in range(source.num_row_groups):
        end = start + source.metadata.row_group(number).num_rows
        wanted = rows[(rows >= start) & (rows < end)] - start
        if len(wanted):
            found.append(vector_matrix(source.read_row_group(number, columns=["vector"])["vector"])[wanted].astype(np.float32, copy=False))
        start = end
    return np.concatenate(found)


@dataclass(frozen=True)
class FillShard:
    """Fill one part, find the queries' exact neighbours in it, and write the ids of its addresses. A shard with a record is left as it is."""

    build: Build

    def start(self) -> Callable[[Shard], ShardRecord]:
        return self._work

    def _work(self, shard: Shard) -> ShardRecord:
        store = self.build.store
        path = f"{self.build.work}/shard-{shard.number:05d}.json"
        record = ShardRecord.load(store, path)
        if record is None or any(store.size(ref.path) != ref.bytes for ref in (record.part, record.truth, record.ids)):
            record = self._filled(shard)
            store.write(path, record.to_json())
        return record

    def _filled(self, shard: Shard) -> ShardRecord:
        from pipeline.index.build import fill, read_index, threads, write_index
        from pipeline.index.truth import ExactTopK

        build = self.build
        index = read_index(build.store.local(build.trained()), mapped=False)
        with build.store.scratch() as scratch, threads(1):
            filled = fill(index, self._counted(shard), ExactTopK(build.load_queries(), build.transform))
            write_index(index, scratch / "part.faiss")
            found = filled.neighbours
            assert found is not None
            tensors = {"addresses": found.addresses, "scores": found.scores, "probe_addresses": filled.probe_addresses, "probe_vectors": filled.probe_vectors}
            (scratch / "truth").write_bytes(pack(tensors, {}))
            self._write_ids(shard, scratch / "ids.arrow")
            stem = f"{build.work}/shard-{shard.number:05d}"
            part = put_by_content(build.store, scratch / "part.faiss", stem, ".faiss", filled.rows)
            truth = put_by_content(build.store, scratch / "truth", stem, ".safetensors", len(found.addresses))
            ids = put_by_content(build.store, scratch / "ids.arrow", "ids/", ".arrow", filled.rows)
        return ShardRecord(part=part, truth=truth, ids=ids, rows=filled.rows)

    def _counted(self, shard: Shard) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        done = 0
        for addresses, vectors in batches(self.build.store, shard.units, self.build.space_id):
            yield addresses, vectors
            done += len(addresses)
            progress(done)

    def _write_ids(self, shard: Shard, file: Path) -> None:
        """Address, id and kept columns of every row, in address order: Arrow IPC that a searcher maps into memory."""
        from pipeline.index.ids import write_ids

        def tables() -> Iterator[pa.Table]:
            for placed in shard.units:
                source = pq.ParquetFile(self.build.store.open(placed.unit.path))
                names = [name for name in source.schema_arrow.names if name not in ("text_key", "vector")]
                rows = source.read(columns=names).rename_columns(["id", *names[1:]])
                yield rows.add_column(0, pa.field("address", pa.int64(), nullable=False), [pa.array(placed_rows(placed))])

        write_ids(file, tables())


@dataclass(frozen=True)
class Finish:
    """Merge the parts in order, choose the search effort, and measure."""

    build: Build

    def start(self) -> Callable[[tuple[ShardRecord, ...]], BuiltIndex]:
        return self._work

    def _work(self, shards: tuple[ShardRecord, ...]) -> BuiltIndex:
        from pipeline.index.finish import finish
        from pipeline.index.merge import Part
        from pipeline.index.truth import Neighbours

        build, store = self.build, self.build.store
        with store.scratch() as scratch:
            found = [unpack(store.read(shard.truth.path), "addresses", "scores", "probe_addresses", "probe_vectors")[0] for shard in shards]
            truths = [Neighbours(each["addresses"], each["scores"]) for each in found]
            parts = [
                Part(store.local(shard.part.path, shard.part.sha256), shard.rows, each["probe_addresses"], each["probe_vectors"])
                for shard, each in zip(shards, found, strict=True)
            ]
            queries = build.load_queries()
            files, measured = finish(build.plan, build.settings, build.gates, queries, parts, truths, scratch)
            examples = _examples(files[0], queries, build.plan.on_disk)
            refs = tuple(put_by_content(store, file, "indexes/", file.suffix, measured["rows"]) for file in files)
        settings = {name: measured[name] for name in ("effort_name", "effort", "nlist", "fingerprint")}
        size = store.size(build.queries()) or 0
        return BuiltIndex(
            kind=build.plan.kind, factory=build.plan.factory, dim=build.plan.dim, parts=1, files=refs, ids=tuple(shard.ids for shard in shards), rows=measured["rows"],
            settings=settings, measured=measured, examples=examples, queries=FileRef(path=build.queries(), sha256="", bytes=size), plan=build.plan,
        )


def _examples(file: Path, queries: Any, on_disk: bool) -> tuple[Example, ...]:
    """A few queries with what the index answers, their own address left out."""
    from pipeline.index.build import read_index

    index = read_index(file, on_disk=on_disk)
    asked = queries[:: max(1, len(queries) // _EXAMPLES)][:_EXAMPLES]
    scores, found = index.search(asked.vectors, min(_EXAMPLE_ANSWERS + 1, index.ntotal))
    answers = []
    for query, addresses, values in zip(asked.addresses.tolist(), found.tolist(), scores.tolist(), strict=True):
        others = [(address, score) for address, score in zip(addresses, values, strict=True) if address not in (query, -1)]
        answers.append(Example(query=query, neighbours=tuple(others[:_EXAMPLE_ANSWERS])))
    return tuple(answers)


def put_by_content(store: Store, file: Path, stem: str, suffix: str, rows: int) -> FileRef:
    """The file, stored under its content's name."""
    digest, size = sha256_of(file), file.stat().st_size
    separator = "" if stem.endswith("/") else "-"
    reference = FileRef(path=f"{stem}{separator}{digest[:24]}{suffix}", sha256=digest, rows=rows, bytes=size)
    store.put(file, reference.path)
    return reference
