"""Encode one corpus unit: vectors, their moments and quarantined rows, as files, and a record of these."""

import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import digest_of
from pipeline.errors import MODEL_FAILURES, SpaceMismatch
from pipeline.flows.encode.attempts import LIMIT, Attempts
from pipeline.flows.encode.isolate import IsolatedEncoder
from pipeline.flows.encode.result import UnitResult
from pipeline.flows.encode.reuse import ReusingEncoder, find_known
from pipeline.flows.rows import PlacedUnit
from pipeline.flows.workers.metrics import count_encoded
from pipeline.flows.workers.tasks import progress
from pipeline.flows.workers.worker import assigned_cpus, loaded
from pipeline.log import listening
from pipeline.settings import ClusterSettings, EncoderSettings, EncodeSettings
from pipeline.stats.moments import Moments
from pipeline.store.base import Store
from pipeline.store.once import create_record, put_by_content, stored_by_content, table_by_content
from pipeline.store.schema import QUARANTINE, kept_name, vector_column, vectors_schema, writer_options
from pipeline.store.units import CorpusUnit, UnitRecord

# A child that hangs is killed after this proportion of patience_s, before its worker is taken to hang.
_CHILD_PATIENCE = 0.8
_READ_ROWS = 2_048  # the first vectors of a unit are computed while the rest is still being tokenized


@dataclass
class WorkerStats:
    """Seconds of a worker by activity, and counters of its encoder; logged and reported, never stored."""

    seconds: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    """sentences, each once"""

    def add(self, name: str, seconds: float) -> None:
        """Add seconds of an activity, or to a counter."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def merge(self, other: "WorkerStats") -> "WorkerStats":
        """Return the sums, and each warning once."""
        sums = {
            name: self.seconds.get(name, 0.0) + other.seconds.get(name, 0.0)
            for name in {**self.seconds, **other.seconds}
        }
        return WorkerStats(sums, tuple(dict.fromkeys(self.warnings + other.warnings)))


@dataclass(frozen=True)
class EncodeUnit:
    """Encode one corpus unit. A complete unit that has a record is returned as it is.

    Attributes:
        store: store of the units.
        encoder: settings of the encoder, with a path that the worker can read.
        encode: settings of the encoding.
        space_id: space of the encoder on the driver.
        id_name: column of the ids in the units of vectors.
        sources: units of the previous release in this space; vectors of equal texts are copied from them.
        patience_s: seconds without progress of a child process before it is killed.
        run: id of the driver's run.
    """

    store: Store
    encoder: EncoderSettings
    encode: EncodeSettings
    space_id: str
    id_name: str
    sources: tuple[PlacedUnit, ...] = ()
    patience_s: float = ClusterSettings().patience_s
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def start(self) -> Callable[[CorpusUnit], tuple[UnitRecord, WorkerStats]]:
        """Load the encoder; the work encodes a unit and returns its record with the seconds spent.

        Raises:
            SpaceMismatch: the encoder of this worker makes other vectors than the driver's.
        """
        # by default each worker's tokenizer would use all cores
        os.environ.setdefault("RAYON_NUM_THREADS", str(max(self.encode.threads, assigned_cpus())))
        start = time.perf_counter()
        with listening() as heard:
            encoder = loaded(self.encoder, self.encode)
        if encoder.space_id != self.space_id:
            raise SpaceMismatch(
                f"encoder {self.encoder.path} on this worker",
                f"space {self.space_id} as on the driver",
                f"space {encoder.space_id}",
                "make the same files available on every node",
            )
        encoder.check()
        loading_s = [time.perf_counter() - start]  # reported once, with the first unit

        def work(unit: CorpusUnit) -> tuple[UnitRecord, WorkerStats]:
            stats = WorkerStats({"load": loading_s.pop()} if loading_s else {}, tuple(heard))
            path = record_path(self.space_id, unit, self.encode, self.id_name)
            record = load_record(self.store, path, self.space_id)
            if record is None or not record.is_complete(self.store):
                attempts = Attempts(self.store, path, self.run)
                made = _Encoding(self, encoder, unit, stats).record(isolated=attempts.begin() >= LIMIT)
                record = create_record(self.store, path, made)
                attempts.end()
                count_encoded(
                    record.rows - sum(record.copied.values()),
                    int(stats.seconds.get("tokens", 0)),
                    stats.seconds,
                )
            return record, stats

        return work


@dataclass(frozen=True)
class _Encoding:
    """The encoding of one unit, which adds its timings to `stats`."""

    task: EncodeUnit
    encoder: Any
    unit: CorpusUnit
    stats: WorkerStats

    def record(self, *, isolated: bool) -> UnitRecord:
        """Encode the unit, store its files, and return its record.

        A unit that keeps killing its worker, or whose encoding fails, is encoded in a child process, so that
        only the rows at fault are quarantined.
        """
        with self.task.store.scratch() as scratch:
            file = scratch / "vectors.parquet"
            try:
                result = self._encode_in_child(file) if isolated else self._encode_here(file)
            except pa.ArrowException:  # the corpus unit is damaged; some of Arrow's errors are ValueErrors
                raise
            except MODEL_FAILURES as error:
                self.stats.warnings += (
                    f"unit {self.unit.sha256[:12]}: the encoder failed ({type(error).__name__}: {error}); "
                    "its rows were encoded in a child process",
                )
                result = self._encode_in_child(file)
            start = time.perf_counter()
            record = self._store_files(file, result)
            self.stats.add("store", time.perf_counter() - start)
        return record

    def _encode_in_child(self, file: Path) -> UnitResult:
        task, device = self.task, str(self.encoder.arithmetic.device)
        with task.store.scratch() as scratch:
            child = IsolatedEncoder(
                task.encoder, task.encode, device, scratch, _CHILD_PATIENCE * task.patience_s
            )
            # IsolatedEncoder detects a child that hangs. With last=True the rows do not count as progress, so
            # that CPU time keeps this worker alive while the child starts again.
            return self._write_vectors(child, file, child.rejected, partial(progress, last=True))

    def _encode_here(self, file: Path) -> UnitResult:
        known = find_known(self.task.store, self.unit, self.task.sources, self.task.space_id)
        before = asdict(self.encoder.counters)
        result = self._write_vectors(
            ReusingEncoder(self.encoder, known) if known else self.encoder, file, {}, progress
        )
        if known:
            result.copied = dict(known.numerics)
        for name, value in asdict(self.encoder.counters).items():
            self.stats.add(name, value - before[name])
        return result

    def _write_vectors(
        self,
        encoder: "StreamEncoder",
        file: Path,
        rejected: Mapping[int, tuple[str, str]],
        on_rows: Callable[[int], None],
    ) -> UnitResult:
        """Write the vectors of the unit to `file`, in row order; the encoder tokenizes one batch ahead."""
        task, source = self.task, pq.ParquetFile(self.unit.file.open(self.task.store))
        columns = source.schema_arrow
        names = [name for name in columns.names if name not in ("text", "file", "row")]
        kept = [
            columns.field(name).with_name(kept_name(name)) for name in names if name not in ("id", "text_key")
        ]
        schema = vectors_schema(
            columns.field("id").with_name(task.id_name),
            kept,
            self.encoder.dim,
            task.space_id,
            task.encode.vectors,
        )
        ahead: deque[pa.RecordBatch] = deque()

        def texts() -> Iterator[pa.Array]:
            for batch in source.iter_batches(_READ_ROWS):
                ahead.append(batch)
                yield batch["text"]

        result = UnitResult(Moments.empty(self.encoder.dim), rejected)
        with pq.ParquetWriter(file, schema, **writer_options(schema)) as writer:
            for encoded in encoder.encode_stream(texts(), on_rows):
                batch, vectors = ahead.popleft(), encoded.vectors
                good = result.add(encoded, batch, task.encode.vectors)
                if not good.all():
                    batch, vectors = batch.filter(pa.array(good)), vectors[good]
                row_id, text_key, *others = batch.select(names).columns
                arrays = [row_id, text_key, vector_column(vectors, schema.field("vector")), *others]
                start = time.perf_counter()
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                self.stats.add("store", time.perf_counter() - start)
        progress(result.rows, last=True)
        return result

    def _store_files(self, file: Path, result: UnitResult) -> UnitRecord:
        """Store the unit's files and return its record.

        Files are named by their content: equal work gives equal files, and other bytes never replace them.
        """
        store, space_id, source = self.task.store, self.task.space_id, self.unit.sha256
        name, rows = f"{space_id[:16]}/{source[:24]}", result.moments.count
        vectors = put_by_content(store, file, f"units/vectors/{name}", rows, digits=12)
        quarantine = None
        if result.bad:
            quarantine = table_by_content(
                store, pa.Table.from_pylist(result.bad, schema=QUARANTINE), f"quarantine/{name}"
            )
        return UnitRecord(
            name=f"vectors/{name}",
            **dict(vectors),
            counts=result.counts(),
            space_id=space_id,
            numerics_id=self.encoder.numerics_id,
            copied=result.copied,
            source=source,
            dropped=tuple(result.dropped),
            moments=stored_by_content(
                store, result.moments.to_bytes(), f"moments/{name}", ".safetensors", rows
            ),
            quarantine=quarantine,
        )


class StreamEncoder(Protocol):
    """Interface of Encoder, ReusingEncoder and IsolatedEncoder."""

    def encode_stream(self, batches: Iterable[pa.Array], on_rows: Callable[[int], None]) -> Iterator[Any]:
        """Encode batches of texts; yield one Encoded per batch, in order."""
        ...


def load_record(store: Store, path: str, space_id: str) -> UnitRecord | None:
    """Load the record at `path`; None if it is missing or truncated.

    Raises:
        SpaceMismatch: its vectors are of another space.
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

    It does not depend on the numerics: with another number of threads nothing is encoded again.
    """
    kind = "" if settings.vectors == "float32" else f"-{settings.vectors}"
    # the id column of a unit has the user's name
    named = "" if id_name == "id" else f"-{digest_of(id_name)[:8]}"
    return f"units/vectors/{space_id[:16]}/{unit.sha256[:24]}{kind}{named}.json"
