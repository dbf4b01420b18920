"""Encode one corpus unit into files of vectors, moments and quarantined rows, and a record of these files."""

import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import digest_of
from pipeline.errors import MODEL_FAILURES, SpaceMismatch
from pipeline.flows.encode.isolate import IsolatedEncoder, Rejection
from pipeline.flows.encode.result import UnitResult
from pipeline.flows.encode.reuse import ReusingEncoder, find_known
from pipeline.flows.encode.samples import sample_unit
from pipeline.flows.encode.worker_stats import WorkerStats
from pipeline.flows.workers.metrics import count_encoded
from pipeline.flows.workers.tasks import progress
from pipeline.flows.workers.worker_encoder import assigned_cpus, worker_encoder
from pipeline.log import listening
from pipeline.prefetch import prefetch
from pipeline.settings import ClusterSettings, EncoderSettings, EncodeSettings
from pipeline.stats.moments import Moments
from pipeline.store.files.base import Store
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.units import CorpusUnit, UnitRecord
from pipeline.store.records.write_once import (
    create_record,
    put_by_content,
    store_by_content,
    store_table_by_content,
)
from pipeline.store.rows.schema import (
    QUARANTINE,
    original_name,
    vector_column,
    vectors_schema,
    writer_options,
)

if TYPE_CHECKING:
    from pipeline.models.inference.encoder import Encoder


MAX_ATTEMPTS = 3  # unfinished attempts of one run, after which the next attempt encodes in a child process


@dataclass(frozen=True)
class Attempts:
    """The attempts to encode one unit, as one file each beside the unit's record."""

    store: Store
    """store of the unit"""
    record: str
    """path of the unit's record"""
    run: str
    """id of the driver's run. Attempts of other runs do not count: users may have stopped those runs"""

    def begin(self) -> int:
        """Record an attempt. Returns the number of earlier attempts of this run that did not end."""
        earlier = [path for path in self._files() if f"/{self.run}-" in path]
        self.store.write(f"{self._folder}/{self.run}-{uuid.uuid4().hex[:12]}", b"")
        return len(earlier)

    def end(self) -> None:
        """Delete the files of all attempts: the unit is done."""
        for path in self._files():
            self.store.delete(path)

    def _files(self) -> list[str]:
        return [entry.path for entry in self.store.list(self._folder)]

    @property
    def _folder(self) -> str:
        return self.record.removesuffix(".json") + ".attempts"


# A child that hangs is killed after this proportion of patience_s, before its worker counts as hanging.
_CHILD_PATIENCE = 0.8
_READ_ROWS = 2_048  # so few that the first vectors are computed while other texts are being tokenized


@dataclass(frozen=True)
class EncodeUnit:
    """Encode one corpus unit. If it has a record whose files are complete, that record is returned."""

    store: Store
    """store of the units"""
    encoder: EncoderSettings
    """settings of the encoder, with a path that the worker can read"""
    encode: EncodeSettings
    """settings of the encoding"""
    space_id: str
    """id of the space of the driver's encoder"""
    id_name: str
    """column of the ids in the units of vectors"""
    sources: tuple[VectorUnit, ...] = ()
    """units of the previous release in this space; vectors of equal texts are copied from them"""
    patience_s: float = ClusterSettings().patience_s
    """seconds without progress of a child process before it is killed"""
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """id of the driver's run"""

    def start(self) -> Callable[[CorpusUnit], tuple[UnitRecord, WorkerStats]]:
        """Load the encoder. The returned function encodes a unit and returns its record and stats.

        Raises:
            SpaceMismatch: the encoder on this worker gives other vectors than on the driver.
        """
        # by default each worker's tokenizer would use all cores
        os.environ.setdefault("RAYON_NUM_THREADS", str(max(self.encode.threads, assigned_cpus())))
        start = time.perf_counter()
        with listening() as warnings:
            encoder = worker_encoder(self.encoder, self.encode)
        if encoder.space_id != self.space_id:
            raise SpaceMismatch(
                f"encoder {self.encoder.path} on this worker",
                f"space {self.space_id} as on the driver",
                f"space {encoder.space_id}",
                "make the same files available on every node",
            )
        unreported_load_s = [time.perf_counter() - start]  # the first unit reports it

        def work(unit: CorpusUnit) -> tuple[UnitRecord, WorkerStats]:
            load_s = unreported_load_s.pop() if unreported_load_s else 0.0
            stats = WorkerStats(load_s=load_s, warnings=tuple(warnings))
            path = record_path(self.space_id, unit, self.encode, self.id_name)
            record = load_record(self.store, path, self.space_id)
            if record is None or not record.is_complete(self.store):
                attempts = Attempts(self.store, path, self.run)
                encoding = _UnitEncoding(self, encoder, unit, stats)
                new_record = encoding.run(isolated=attempts.begin() >= MAX_ATTEMPTS)
                record = create_record(self.store, path, new_record)
                attempts.end()
                count_encoded(
                    record.rows - sum(record.copied.values()),
                    stats.tokens,
                    {
                        "device": stats.forward_s,
                        "tokenizer": stats.waiting_s,
                        "store": stats.store_s,
                        "model": stats.load_s,
                    },
                )
            return record, stats

        return work


@dataclass(frozen=True)
class _UnitEncoding:
    """Encodes one unit, and adds its timings to `stats`."""

    task: EncodeUnit
    encoder: "Encoder"
    unit: CorpusUnit
    stats: WorkerStats

    def run(self, *, isolated: bool) -> UnitRecord:
        """Encode the unit, store its files, and return its record.

        A unit that keeps killing its worker, or whose encoding fails, is encoded in a child process, so that
        only the rows at fault are quarantined.
        """
        with self.task.store.scratch() as scratch:
            file = scratch / "vectors.parquet"
            before = self.encoder.max_tokens
            try:
                result = self._encode_in_child(file) if isolated else self._encode_in_process(file)
                while self.encoder.max_tokens != before:  # vectors of one unit come from passes of one size
                    self._report_halving(before)
                    before = self.encoder.max_tokens
                    result = self._encode_in_process(file)
            except pa.ArrowException:  # the corpus unit is damaged; some of these are MODEL_FAILURES, too
                raise
            except MODEL_FAILURES as error:
                self.stats.warnings += (
                    f"unit {self.unit.sha256[:12]}: the encoder failed ({type(error).__name__}: {error}); "
                    "its rows were encoded in a child process",
                )
                result = self._encode_in_child(file)
            start = time.perf_counter()
            record = self._store_files(file, result)
            self.stats.store_s += time.perf_counter() - start
        return record

    def _report_halving(self, before: int) -> None:
        now = self.encoder.max_tokens
        self.stats.warnings += (
            f"a GPU has too little memory for encode.max_tokens={before}, so its worker goes on with {now}: "
            "vectors may differ in their last bits (numerics_id); for the same bits every night, set "
            f"encode.max_tokens={now}",
        )

    def _encode_in_child(self, file: Path) -> UnitResult:
        task, device = self.task, str(self.encoder.arithmetic.device)
        with task.store.scratch() as scratch:
            child = IsolatedEncoder(
                task.encoder, task.encode, device, scratch, _CHILD_PATIENCE * task.patience_s
            )
            # IsolatedEncoder itself kills a child that hangs. With last=True the driver does not expect more
            # rows, so that this worker does not count as hanging while a child starts again.
            return self._write_vectors(child, file, child.rejected, partial(progress, last=True))

    def _encode_in_process(self, file: Path) -> UnitResult:
        task = self.task
        device = self.encoder.arithmetic.device.kind
        known = find_known(task.store, self.unit, task.sources, task.space_id, device)
        counters, before = self.encoder.counters, replace(self.encoder.counters)
        start = time.perf_counter()
        if known:
            result = self._write_vectors(ReusingEncoder(self.encoder, known), file, {}, progress)
            result.copied = dict(known.numerics)
        else:
            result = self._write_vectors(self.encoder, file, {}, progress)
        self.stats.tokens += counters.tokens - before.tokens
        self.stats.repeats += counters.repeats - before.repeats
        self.stats.forward_s += counters.forward_s - before.forward_s
        self.stats.waiting_s += counters.waiting_s - before.waiting_s
        if device == "cuda":  # the time in which the encoder waited for writing
            encoding_s = counters.forward_s - before.forward_s + counters.waiting_s - before.waiting_s
            self.stats.store_s += max(0.0, time.perf_counter() - start - encoding_s)
        return result

    def _schema(self, columns: pa.Schema, names: Sequence[str]) -> pa.Schema:
        """Return the schema of the vectors' file.

        Args:
            columns: schema of the corpus unit.
            names: columns of the corpus unit that the file repeats.
        """
        task = self.task
        user_columns = [
            columns.field(name).with_name(original_name(name))
            for name in names
            if name not in ("id", "text_key")
        ]
        row_id = columns.field("id").with_name(task.id_name)
        return vectors_schema(row_id, user_columns, self.encoder.dim, task.space_id, task.encode.vectors)

    def _write_vectors(
        self,
        encoder: "Encoder | ReusingEncoder | IsolatedEncoder",
        file: Path,
        rejected: Mapping[int, Rejection],
        on_rows: Callable[[int], None],
    ) -> UnitResult:
        """Write the vectors of the unit to `file`, in row order; the encoder tokenizes one batch ahead."""
        task = self.task
        source = pq.ParquetFile(self.unit.file.open(task.store))
        names = [name for name in source.schema_arrow.names if name not in ("text", "file", "row")]
        schema = self._schema(source.schema_arrow, names)
        ahead: deque[pa.RecordBatch] = deque()

        def texts() -> Iterator[pa.Array]:
            for batch in source.iter_batches(_READ_ROWS):
                ahead.append(batch)
                yield batch["text"]

        result = UnitResult(Moments.empty(self.encoder.dim), rejected)
        with ExitStack() as opened:
            writer = opened.enter_context(pq.ParquetWriter(file, schema, **writer_options(schema)))
            batches = encoder.encode_stream(texts(), on_rows)
            on_gpu = self.encoder.arithmetic.device.kind == "cuda"
            if is_ahead := on_gpu and not isinstance(encoder, IsolatedEncoder):
                batches = opened.enter_context(closing(prefetch(batches)))  # the GPU goes on during writing
            for encoded in batches:
                batch, vectors = ahead.popleft(), encoded.vectors
                good = result.add(encoded, batch, task.encode.vectors)
                if not good.all():
                    batch, vectors = batch.filter(pa.array(good)), vectors[good]
                row_id, text_key, *others = batch.select(names).columns
                arrays = [row_id, text_key, vector_column(vectors, schema.field("vector")), *others]
                start = time.perf_counter()
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                self.stats.store_s += 0.0 if is_ahead else time.perf_counter() - start
        progress(result.rows, last=True)
        return result

    def _store_files(self, file: Path, result: UnitResult) -> UnitRecord:
        """Store the unit's files and return its record.

        Files are named by their content, so a file is never replaced by other bytes.
        """
        store, space_id, source = self.task.store, self.task.space_id, self.unit.sha256
        name, rows = f"{space_id[:16]}/{source[:24]}", result.moments.count
        with ThreadPoolExecutor(2) as threads:  # the other files are made while the vectors are uploaded
            sampling = threads.submit(sample_unit, store, pq.ParquetFile(file), name)
            moments = threads.submit(
                store_by_content, store, result.moments.to_bytes(), f"moments/{name}", ".safetensors", rows
            )
            vectors = put_by_content(store, file, f"units/vectors/{name}", rows, digits=12)
        quarantine = None
        if result.quarantined:
            rejected = pa.Table.from_pylist(result.quarantined, schema=QUARANTINE)
            quarantine = store_table_by_content(store, rejected, f"quarantine/{name}")
        return UnitRecord(
            name=f"vectors/{name}",
            **dict(vectors),
            counts=result.counts(),
            space_id=space_id,
            numerics_id=self.encoder.numerics_id,
            copied=result.copied,
            source=source,
            dropped=tuple(result.dropped),
            moments=moments.result(),
            quarantine=quarantine,
            sample=sampling.result(),
        )


def load_record(store: Store, path: str, space_id: str) -> UnitRecord | None:
    """Load the record at `path`; None if it is missing or truncated.

    Raises:
        SpaceMismatch: the record's vectors are of another space.
    """
    record = UnitRecord.load_intact(store, path)
    if record is not None and record.space_id != space_id:
        raise SpaceMismatch(
            store.uri_of(path),
            f"vectors of space {space_id}",
            f"space {record.space_id}",
            "the record is in the folder of another space: delete it, and the unit is encoded again",
        )
    return record


def record_path(space_id: str, unit: UnitRecord, settings: EncodeSettings, id_name: str) -> str:
    """Return the path of the record of the corpus unit's vectors.

    The path does not depend on the numerics: after a change of encode.threads nothing is encoded again.
    """
    dtype_suffix = "" if settings.vectors == "float32" else f"-{settings.vectors}"
    # the file has the id column under the user's name
    id_suffix = "" if id_name == "id" else f"-{digest_of(id_name)[:8]}"
    return f"units/vectors/{space_id[:16]}/{unit.sha256[:24]}{dtype_suffix}{id_suffix}.json"
