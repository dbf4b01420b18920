"""One corpus unit becomes one embedding unit: raw vectors, moments, rows set aside, and a record that is
created once.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import digest_of
from pipeline.errors import MODEL_FAILURES, SpaceMismatch
from pipeline.flows.encode.attempts import LIMIT, Attempts
from pipeline.flows.encode.isolate import Apart
from pipeline.flows.encode.reuse import Knowing, KnownVectors, find_known
from pipeline.flows.rows import Placed
from pipeline.flows.workers.metrics import count_encoded
from pipeline.flows.workers.tasks import progress
from pipeline.flows.workers.worker import assigned_cpus, loaded
from pipeline.log import listening
from pipeline.settings import ClusterSettings, EncoderSettings, EncodeSettings
from pipeline.stats.moments import Moments
from pipeline.store.base import Store
from pipeline.store.once import create_record, put_by_content, stored_by_content
from pipeline.store.schema import QUARANTINE, kept_name, vector_column, vectors_schema, writer_options
from pipeline.store.units import CorpusUnit, FileRef, UnitRecord
from pipeline.text.tokens.coverage import CoverageCounter

LENGTH_BIN = 8  # tokens per bar of the length histogram
# of the patience: a process that hangs is ended before the worker that waits for it counts as hanging
_SOONER = 0.8
_READ_ROWS = 2_048  # the first vectors of a unit are under way while the rest is still being tokenized
# what a model raises on a text that it cannot digest; errors of storage and ours are none of these
_UNUSABLE = (
    "unusable_vector",
    "the encoder gave a vector that is zero or not finite, or becomes so in encode.vectors",
)


@dataclass
class Spent:
    """Where a worker's seconds went; logged and reported, never stored."""

    seconds: dict[str, float] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    """what the worker had to say"""

    def add(self, what: str, seconds: float) -> None:
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    def merge(self, other: "Spent") -> "Spent":
        merged = Spent(dict(self.seconds), tuple(dict.fromkeys(self.said + other.said)))
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
    run: str
    """one driver's run"""
    sources: tuple[Placed, ...] = ()
    """units of the release before, in this space: texts that they hold are not encoded again"""
    patience_s: float = ClusterSettings().patience_s
    """without progress of a process that encodes texts apart"""

    def start(self) -> Callable[[CorpusUnit], tuple[UnitRecord, Spent]]:
        os.environ.setdefault(
            "RAYON_NUM_THREADS", str(max(self.encode.threads, assigned_cpus()))
        )  # else each worker's tokenizer takes all cores
        start = time.perf_counter()
        with listening() as heard:
            encoder = loaded(self.encoder, self.encode)
        if encoder.space_id != self.space_id:
            where, remedy = (
                f"encoder {self.encoder.path} on this worker",
                "make the same files available on every node",
            )
            raise SpaceMismatch(
                where, f"space {self.space_id} as on the driver", f"space {encoder.space_id}", remedy
            )
        encoder.check()
        loading, sources = [time.perf_counter() - start], {placed.ordinal: placed for placed in self.sources}

        def work(unit: CorpusUnit) -> tuple[UnitRecord, Spent]:
            spent = Spent({"load": loading.pop()} if loading else {}, tuple(heard))
            path = record_path(self.space_id, unit, self.encode, self.id_name)
            record = load_record(self.store, path, self.space_id)
            if record is None or not record.is_complete(self.store):
                attempts = Attempts(self.store, path, self.run)
                made = self._made(encoder, unit, sources, spent, apart=attempts.begin() >= LIMIT)
                record = create_record(self.store, path, made)
                attempts.end()
                rows = record.rows - sum(record.copied.values())
                count_encoded(rows, int(spent.seconds.get("tokens", 0)), spent.seconds)
            return record, spent

        return work

    def _made(
        self, encoder: Any, unit: CorpusUnit, sources: Mapping[int, Placed], spent: Spent, *, apart: bool
    ) -> UnitRecord:
        """The unit's record.

        One that keeps killing its worker, or whose encoding fails, is encoded apart, so that only the rows at
        fault are set aside.
        """
        with self.store.scratch() as scratch:
            file = scratch / "vectors.parquet"
            try:
                known = (
                    KnownVectors.none(encoder.dim)
                    if apart
                    else find_known(self.store, unit, sources, self.space_id, encoder.dim)
                )
                result = (
                    self._apart(encoder, unit, file, spent)
                    if apart
                    else self._encoded(encoder, unit, file, spent, known)
                )
            except (
                pa.ArrowException
            ):  # a damaged corpus unit is no fault of the encoder, though Arrow's errors are ValueErrors too
                raise
            except MODEL_FAILURES as error:
                spent.said += (
                    (
                        f"unit {unit.sha256[:12]}: the encoder failed ({type(error).__name__}: {error}); "
                        "its rows were tried apart"
                    ),
                )
                result = self._apart(encoder, unit, file, spent)
            start = time.perf_counter()
            record = self._stored(unit, file, result, encoder.numerics_id)
            spent.add("store", time.perf_counter() - start)
        return record

    def _apart(self, encoder: Any, unit: UnitRecord, file: Path, spent: Spent) -> "_Result":
        with self.store.scratch() as scratch:
            child = Apart(
                self.encoder, self.encode, str(encoder.arithmetic.device), scratch, _SOONER * self.patience_s
            )
            return self._written(
                child, encoder.dim, unit, file, spent, child.rejected, partial(progress, last=True)
            )  # it judges by itself whether its process hangs

    def _encoded(
        self, encoder: Any, unit: UnitRecord, file: Path, spent: Spent, known: KnownVectors
    ) -> "_Result":
        before = asdict(encoder.counters)
        result = self._written(
            Knowing(encoder, known) if len(known.rows) else encoder, encoder.dim, unit, file, spent, {}
        )
        result.copied = dict(known.numerics)
        for name, value in asdict(encoder.counters).items():
            spent.add(name, value - before[name])
        return result

    def _written(
        self,
        encoder: "Streaming",
        dim: int,
        unit: UnitRecord,
        file: Path,
        spent: Spent,
        rejected: Mapping[int, tuple[str, str]],
        tell: Callable[[int], None] = progress,
    ) -> "_Result":
        """Vectors of the unit in `file`, in row order; the encoder tokenizes one batch ahead."""
        source = pq.ParquetFile(unit.file.open(self.store))
        names = [name for name in source.schema_arrow.names if name not in ("text", "file", "row")]
        kept = [
            source.schema_arrow.field(name).with_name(kept_name(name))
            for name in names
            if name not in ("id", "text_key")
        ]
        schema = vectors_schema(
            self.id_name, source.schema_arrow.field("id").type, kept, dim, self.space_id, self.encode.vectors
        )
        ahead: deque[pa.RecordBatch] = deque()

        def texts() -> Iterator[pa.Array]:
            for batch in source.iter_batches(_READ_ROWS):
                ahead.append(batch)
                yield batch["text"]

        result = _Result(Moments.empty(dim), rejected)
        with pq.ParquetWriter(file, schema, **writer_options(schema)) as writer:
            for encoded in encoder.encode_stream(texts(), tell):
                batch = ahead.popleft()
                good = result.add(encoded, batch, self.encode.vectors)
                table = _rows(batch.select(names), good, encoded.vectors, schema)
                start = time.perf_counter()
                writer.write_table(table)
                spent.add("store", time.perf_counter() - start)
        progress(result.rows, last=True)
        return result

    def _stored(self, unit: UnitRecord, file: Path, result: "_Result", numerics_id: str) -> UnitRecord:
        """The unit's record, its files in place.

        Names come from the content, so equal work meets in equal files and other bytes never replace them.
        """
        name, rows = f"{self.space_id[:16]}/{unit.sha256[:24]}", result.moments.count
        vectors = put_by_content(self.store, file, f"units/vectors/{name}", rows, digits=12)
        moments = stored_by_content(
            self.store, result.moments.to_bytes(), f"moments/{name}", ".safetensors", rows
        )
        return UnitRecord(
            name=f"vectors/{name}",
            **dict(vectors),
            counts=result.counts(),
            space_id=self.space_id,
            numerics_id=numerics_id,
            copied=result.copied,
            source=unit.sha256,
            dropped=tuple(result.dropped),
            moments=moments,
            quarantine=self._set_aside(name, result),
        )

    def _set_aside(self, name: str, result: "_Result") -> FileRef | None:
        if not result.bad:
            return None
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(result.bad, schema=QUARANTINE), sink)
        content = sink.getvalue().to_pybytes()
        return stored_by_content(self.store, content, f"quarantine/{name}", ".parquet", rows=len(result.bad))


class Streaming(Protocol):
    """An encoder, or what stands in for it."""

    def encode_stream(self, batches: Iterable[pa.Array], tell: Callable[[int], None]) -> Iterator[Any]: ...


class _Result:
    """What adds up over the batches of a unit. rejected: (reason, detail) of rows that were given up, by row."""

    def __init__(self, moments: Moments, rejected: Mapping[int, tuple[str, str]]) -> None:
        self._rejected = rejected
        self.moments, self.rows, self.truncated, self.tokens = moments, 0, 0, 0
        self._covered = CoverageCounter()
        self.lengths: np.ndarray = np.zeros(0, np.int64)
        self.dropped: list[int] = []
        self.bad: list[dict[str, Any]] = []
        self.copied: dict[str, int] = {}

    def add(self, encoded: Any, batch: pa.RecordBatch, stored_as: str) -> np.ndarray:
        """Count a batch; the mask of its rows whose vector is usable as it will be stored."""
        good, vectors = ~np.asarray(encoded.bad), encoded.vectors
        if stored_as == "float16":
            with np.errstate(over="ignore"):
                vectors = vectors.astype(np.float16).astype(
                    np.float32
                )  # moments are those of the vectors as stored
            good &= np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
        for number in np.flatnonzero(~good):
            row = {name: batch[name][number].as_py() for name in ("file", "row", "id", "text")}
            reason, detail = self._rejected.get(self.rows + int(number), _UNUSABLE)
            self.bad.append(
                {
                    "file": row["file"],
                    "row": row["row"],
                    "id": str(row["id"]),
                    "reason": reason,
                    "detail": detail,
                    "excerpt": row["text"][:200],
                }
            )
            self.dropped.append(self.rows + int(number))
        self.moments = self.moments.merge(Moments.of(vectors[good]))
        self.rows += len(good)
        self.truncated += int(np.count_nonzero(encoded.counts.truncated))
        self.tokens += int(np.sum(encoded.counts.lengths))
        self._covered.add(batch["text"], encoded.counts)
        histogram = np.bincount(encoded.counts.lengths // LENGTH_BIN)
        size = max(len(histogram), len(self.lengths))
        self.lengths = np.pad(self.lengths, (0, size - len(self.lengths))) + np.pad(
            histogram, (0, size - len(histogram))
        )
        return good

    def counts(self) -> dict[str, int]:
        lengths = {
            f"length_{LENGTH_BIN * number:05d}": int(count)
            for number, count in enumerate(self.lengths)
            if count
        }
        reasons = Counter(f"quarantined_{row['reason']}" for row in self.bad)
        counts = {
            "rows": self.rows,
            "tokens": self.tokens,
            "truncated": self.truncated,
            "quarantined": len(self.bad),
        }
        return {**counts, **dict(sorted(reasons.items())), **lengths, **self._covered.counts()}


def _rows(batch: pa.RecordBatch, good: np.ndarray, vectors: np.ndarray, schema: pa.Schema) -> pa.Table:
    if not good.all():
        batch, vectors = batch.filter(pa.array(good)), vectors[good]
    row_id, text_key, *kept = batch.columns
    return pa.Table.from_arrays(
        [row_id, text_key, vector_column(vectors, schema.field("vector")), *kept], schema=schema
    )


def load_record(store: Store, path: str, space_id: str) -> UnitRecord | None:
    """The record at `path`; None when there is none, or only its beginning.

    SpaceMismatch for one whose vectors are of another space.
    """
    record = UnitRecord.load_intact(store, path)
    if record is not None and record.space_id != space_id:
        remedy = "a record was put where it does not belong: delete it, and the unit is encoded again"
        raise SpaceMismatch(
            store.uri_of(path), f"vectors of space {space_id}", f"space {record.space_id}", remedy
        )
    return record


def record_path(space_id: str, unit: UnitRecord, settings: EncodeSettings, id_name: str) -> str:
    """Where the record of that corpus unit's vectors stands; without the numerics, so that another thread
    count never encodes again.
    """
    kind = "" if settings.vectors == "float32" else f"-{settings.vectors}"
    named = (
        "" if id_name == "id" else f"-{digest_of(id_name)[:8]}"
    )  # a unit carries the user's name of the id column
    return f"units/vectors/{space_id[:16]}/{unit.sha256[:24]}{kind}{named}.json"
