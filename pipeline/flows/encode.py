"""Corpus units become embedding units: raw vectors, moments and a record each, on a pool of actors that hold the encoder."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError, ModelError, SpaceMismatch
from pipeline.flows.cluster import Cluster
from pipeline.flows.tally import Tally, tally
from pipeline.flows.units import Pool, map_units
from pipeline.log import Stages
from pipeline.models.folder import open_folder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from pipeline.stats.moments import Moments
from pipeline.store.schema import QUARANTINE, kept_name, vector_column, vectors_schema, writer_options
from pipeline.store.store import Store, sha256_of
from pipeline.store.units import Corpus, FileRef, Manifest, UnitRecord, create_record
from pipeline.text.normalize import normalize

LENGTH_BIN = 8          # tokens per bar of the length histogram
_READERS = 16           # small files read at once: over a network each waits for an answer
_READ_ROWS = 2_048      # the first vectors of a unit are under way while the rest is still being tokenized


@dataclass
class Spent:
    """Where a worker's seconds went; logged and reported, never stored."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, what: str, seconds: float) -> None:
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    def merge(self, other: "Spent") -> "Spent":
        merged = Spent(dict(self.seconds))
        for what, seconds in other.seconds.items():
            merged.add(what, seconds)
        return merged


@dataclass(frozen=True)
class EncodeUnit:
    """Encode one corpus unit. A unit whose record is there is returned as it is."""

    store: Store
    encoder: EncoderSettings
    encode: EncodeSettings
    space_id: str
    id_name: str
    tally: Tally

    def start(self) -> Callable[[UnitRecord], tuple[UnitRecord, Spent]]:
        from pipeline.device import resolve
        from pipeline.models.encoder import load_encoder

        os.environ.setdefault("RAYON_NUM_THREADS", str(max(self.encode.threads, assigned_cpus())))      # else each worker's tokenizer takes all cores
        start = time.perf_counter()
        encoder = load_encoder(self.encoder, self.encode, resolve(self.encode.device, float(gpu_assigned())))
        if encoder.space_id != self.space_id:
            where, remedy = f"encoder {self.encoder.path} on this worker", "make the same files available on every node"
            raise SpaceMismatch(where, f"space {self.space_id[:16]} as on the driver", f"space {encoder.space_id[:16]}", remedy)
        loading = [time.perf_counter() - start]

        def work(unit: UnitRecord) -> tuple[UnitRecord, Spent]:
            spent = Spent({"load": loading.pop()} if loading else {})
            path = record_path(self.space_id, unit, self.encode)
            record = UnitRecord.load(self.store, path)
            if record is None or self.store.size(record.path) != record.bytes:      # a truncated file is made again, to the same bytes
                record = create_record(self.store, path, self._made(encoder, unit, spent))
            return record, spent

        return work

    def _made(self, encoder: Any, unit: UnitRecord, spent: Spent) -> UnitRecord:
        with self.store.scratch() as scratch:
            file = scratch / "vectors.parquet"
            result = self._encoded(encoder, unit, file, spent)
            start = time.perf_counter()
            record = self._stored(unit, file, result, encoder.numerics_id)
            spent.add("store", time.perf_counter() - start)
        return record

    def _encoded(self, encoder: Any, unit: UnitRecord, file: Path, spent: Spent) -> "_Result":
        """Vectors of the unit in `file`, in row order; the encoder tokenizes one batch ahead."""
        source = pq.ParquetFile(self.store.open(unit.path))
        names = [name for name in source.schema_arrow.names if name not in ("text", "file", "row")]
        kept = [source.schema_arrow.field(name).with_name(kept_name(name)) for name in names if name not in ("id", "text_key")]
        schema = vectors_schema(self.id_name, source.schema_arrow.field("id").type, kept, encoder.dim, self.space_id, self.encode.vectors)
        ahead: deque[pa.RecordBatch] = deque()

        def texts() -> Iterator[pa.Array]:
            for batch in source.iter_batches(_READ_ROWS):
                ahead.append(batch)
                yield batch["text"]

        before = asdict(encoder.counters)
        result = _Result(Moments.empty(encoder.dim))
        with pq.ParquetWriter(file, schema, **writer_options(schema)) as writer:
            for encoded in encoder.encode_stream(texts()):
                batch = ahead.popleft()
                good = result.add(encoded, batch)
                table = _rows(batch.select(names), good, encoded.vectors, schema)
                start = time.perf_counter()
                writer.write_table(table)
                spent.add("store", time.perf_counter() - start)
                self.tally.put(unit.sha256, result.rows)
        for name, value in asdict(encoder.counters).items():
            spent.add(name, value - before[name])
        return result

    def _stored(self, unit: UnitRecord, file: Path, result: "_Result", numerics_id: str) -> UnitRecord:
        """The unit's record, its files in place. Names come from the content, so equal work meets in equal files and other bytes never replace them."""
        digest, size = sha256_of(file), file.stat().st_size
        name = f"{self.space_id[:16]}/{unit.sha256[:24]}"
        moments = result.moments.to_bytes()
        moments_ref = content_ref(moments, f"moments/{name}", ".safetensors", rows=result.moments.count)
        path = f"units/vectors/{name}-{digest[:12]}.parquet"
        self.store.put(file, path)
        self.store.write(moments_ref.path, moments)
        return UnitRecord(
            name=f"vectors/{name}", path=path, rows=result.moments.count, bytes=size, sha256=digest, counts=result.counts(), space_id=self.space_id,
            numerics_id=numerics_id, source=unit.sha256, dropped=tuple(result.dropped), moments=moments_ref, quarantine=self._set_aside(name, result),
        )

    def _set_aside(self, name: str, result: "_Result") -> FileRef | None:
        if not result.bad:
            return None
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(result.bad, schema=QUARANTINE), sink)
        content = sink.getvalue().to_pybytes()
        reference = content_ref(content, f"quarantine/{name}", ".parquet", rows=len(result.bad))
        self.store.write(reference.path, content)
        return reference


class _Result:
    """What adds up over the batches of a unit."""

    def __init__(self, moments: Moments) -> None:
        self.moments, self.rows, self.truncated, self.tokens = moments, 0, 0, 0
        self.lengths: np.ndarray = np.zeros(0, np.int64)
        self.dropped: list[int] = []
        self.bad: list[dict[str, Any]] = []

    def add(self, encoded: Any, batch: pa.RecordBatch) -> np.ndarray:
        """Count a batch; the mask of its rows that have a usable vector."""
        good = ~np.asarray(encoded.bad)
        for number in np.flatnonzero(~good):
            row = {name: batch[name][number].as_py() for name in ("file", "row", "id", "text")}
            detail = "the encoder gave a vector that is zero or not finite"
            self.bad.append({"file": row["file"], "row": row["row"], "id": str(row["id"]), "reason": "unusable_vector", "detail": detail, "excerpt": row["text"][:200]})
            self.dropped.append(self.rows + int(number))
        self.moments = self.moments.merge(Moments.of(encoded.vectors[good]))
        self.rows += len(good)
        self.truncated += int(np.count_nonzero(encoded.truncated))
        self.tokens += int(np.sum(encoded.lengths))
        histogram = np.bincount(np.asarray(encoded.lengths) // LENGTH_BIN)
        size = max(len(histogram), len(self.lengths))
        self.lengths = np.pad(self.lengths, (0, size - len(self.lengths))) + np.pad(histogram, (0, size - len(histogram)))
        return good

    def counts(self) -> dict[str, int]:
        lengths = {f"length_{LENGTH_BIN * number:05d}": int(count) for number, count in enumerate(self.lengths) if count}
        return {"rows": self.rows, "tokens": self.tokens, "truncated": self.truncated, "quarantined": len(self.bad), **lengths}


def _rows(batch: pa.RecordBatch, good: np.ndarray, vectors: np.ndarray, schema: pa.Schema) -> pa.Table:
    if not good.all():
        batch, vectors = batch.filter(pa.array(good)), vectors[good]
    row_id, text_key, *kept = batch.columns
    return pa.Table.from_arrays([row_id, text_key, vector_column(vectors, schema.field("vector")), *kept], schema=schema)


class EncodeBlocks:
    """The encoder as a callable class for `Dataset.map_batches(..., batch_format="pyarrow")`: any Ray Dataset gains a vector column, block by block.

    A row without text (null, or nothing but white space) gets a null vector, and so does one whose vector would be zero or not finite. Larger batches fill
    buffers better: a few thousand rows.
    """

    def __init__(self, encoder: EncoderSettings | str, text: str = "text", vector: str = "vector", encode: EncodeSettings | None = None) -> None:
        from pipeline.device import resolve
        from pipeline.models.encoder import load_encoder

        settings = EncoderSettings(path=encoder) if isinstance(encoder, str) else encoder
        arithmetic = encode or EncodeSettings()
        self._encoder = load_encoder(settings, arithmetic, resolve(arithmetic.device, float(gpu_assigned())))
        self._text, self._vector = text, vector

    def __call__(self, block: pa.Table) -> pa.Table:
        if self._text not in block.column_names:
            remedy = "name it: fn_constructor_kwargs={'text': ...}"
            raise DataError("EncodeBlocks", f"a text column {self._text!r}", f"the columns {', '.join(block.column_names)}", remedy)
        texts = normalize(block[self._text].combine_chunks())
        filled = pc.fill_null(pc.greater(pc.utf8_length(texts), 0), False).to_numpy(zero_copy_only=False)
        vectors = np.zeros((len(texts), self._encoder.dim), np.float32)
        if filled.any():
            vectors[filled] = self._encoder.encode(texts.filter(pa.array(filled)).to_pylist())
        usable = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
        flat = pa.array(vectors.reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(flat, self._encoder.dim, mask=pa.array(~usable))
        return block.append_column(self._vector, column)


def encode(corpus: Corpus, job: Job, store: Store, cluster: Cluster, stages: Stages) -> tuple[Manifest, Spent]:
    """The corpus's embedding units, in its order. Units that have a record are not encoded again; longest first, so none is waited for at the end."""
    folder = open_folder(job.encoder)
    made = finished(store, corpus, folder.space_id, job.encode)
    todo = sorted((unit for unit in corpus.units if unit.sha256 not in made), key=lambda unit: (-unit.bytes, unit.sha256))
    spent = Spent()
    with stages("encode", corpus.rows) as bar:
        bar.skip(sum(unit.rows for unit in corpus.units if unit.sha256 in made))
        if todo:
            with tally(bar) as counted:
                task = EncodeUnit(store, job.encoder, job.encode, folder.space_id, job.corpus.id, counted)
                pool = Pool(cluster.workers(job.cluster, len(todo)), job.cluster.cpus_per_worker, job.cluster.gpus_per_worker)
                for number, (record, seconds) in map_units(task, todo, pool):
                    made[todo[number].sha256] = record
                    spent = spent.merge(seconds)
        bar.reach(sum(unit.rows for unit in todo))
        bar.stage.note = _waits(spent)
    records = tuple(made[unit.sha256] for unit in corpus.units)
    if not any(record.rows for record in records):
        raise ModelError(job.encoder.path, "finite, non-zero vectors", "none in the whole corpus", "check the encoder's weights and dtype")
    return Manifest(stage="vectors", units=records, parents=(corpus.digest,), settings_digest=folder.space_id), spent


def finished(store: Store, corpus: Corpus, space_id: str, settings: EncodeSettings) -> dict[str, UnitRecord]:
    """Records of units that need no encoding, by the sha256 of the corpus unit: those whose data file is there with its full size."""
    directory = record_path(space_id, corpus.units[0], settings).rpartition("/")[0]
    there = {entry.path: entry.size for entry in store.list(directory)}
    named = [(unit, path) for unit in corpus.units if (path := record_path(space_id, unit, settings)) in there]
    with ThreadPoolExecutor(_READERS) as pool:
        records = list(pool.map(lambda each: UnitRecord.load(store, each[1]), named))
    return {unit.sha256: record for (unit, _), record in zip(named, records, strict=True) if record is not None and there.get(record.path) == record.bytes}


def record_path(space_id: str, unit: UnitRecord, settings: EncodeSettings) -> str:
    """Where the record of that corpus unit's vectors stands; without the numerics, so that another thread count never encodes again."""
    kind = "" if settings.vectors == "float32" else f"-{settings.vectors}"
    return f"units/vectors/{space_id[:16]}/{unit.sha256[:24]}{kind}.json"


def content_ref(content: bytes, stem: str, suffix: str, rows: int = 0) -> FileRef:
    """A reference to bytes that are stored under their content's name."""
    from hashlib import sha256

    digest = sha256(content).hexdigest()
    return FileRef(path=f"{stem}-{digest[:12]}{suffix}", sha256=digest, rows=rows, bytes=len(content))


def gpu_assigned() -> bool:
    """Whether Ray gave this worker a GPU: torch sees a node's GPUs even where the worker asked for none."""
    import ray

    return bool(ray.is_initialized() and ray.get_gpu_ids())


def assigned_cpus() -> int:
    """Whole CPUs that Ray set aside for this worker, at least one."""
    import ray

    return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1))) if ray.is_initialized() else 1


def _waits(spent: Spent) -> str:
    seconds, tokens = spent.seconds, spent.seconds.get("tokens", 0)
    forward, tokenizer, stored = (seconds.get(name, 0.0) for name in ("forward_s", "waiting_s", "store"))
    whole = forward + tokenizer + stored
    return f"{tokens:,.0f} tokens; workers waited {tokenizer / whole:.1%} for the tokenizer, {stored / whole:.1%} for the store" if whole else ""
