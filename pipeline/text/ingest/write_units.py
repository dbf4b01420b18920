"""Write the new units and the key tables of some consecutive buckets, whose ids are resolved."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import Settings
from pipeline.errors import Defect
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.units import CorpusUnit
from pipeline.store.releases.change_examples import ChangedRow
from pipeline.store.rows.arrays import one_chunk
from pipeline.text.ingest.read_rows import ReadPart, ReadRows, read_part
from pipeline.text.ingest.resolve_bucket import BucketRecord
from pipeline.text.ingest.resolve_ids import ABSENT, resolved_schema
from pipeline.text.ingest.unit_writer import POSITION, UnitWriter
from pipeline.text.key_tables.buckets import deletion_marks
from pipeline.text.key_tables.keys import keys_schema, store_table, text_hashes
from pipeline.text.key_tables.partitions import (
    PartitionReader,
    partition_of,
    read_from_all,
    store_partitions,
)
from pipeline.text.task_map import WorkFolder

_DELETED_COLUMNS = ("id", "file", "row")
_TOGETHER_BYTES = 64 << 20  # bytes of rows read together from several parts: about the size of one part
# rows of one table for `rechunk`, which measures all remaining rows of a table at each cut
_STEP_ROWS = 16_384


@dataclass(frozen=True)
class BucketGroup:
    """Consecutive buckets whose new rows are written to units together."""

    number: int
    first_ordinal: int
    most_units: int
    """number of ordinals that are reserved for the units"""
    buckets: tuple[BucketRecord, ...]


class ExampleRow(Settings):
    """An example of a change."""

    key: int
    row: ChangedRow


class GroupRecord(Stored):
    """The units and tables of a group of buckets."""

    units: tuple[CorpusUnit, ...]
    keys: tuple[FileRef | None, ...]
    """the base or delta of each bucket of the key table; None if no line changed"""
    texts: FileRef
    """text keys and addresses of the new rows, in partitions by text"""
    examples: tuple[tuple[ExampleRow, ...], ...]
    """examples of new, changed and deleted rows"""


@dataclass(frozen=True)
class WriteUnits:
    """Write the units and the key tables of a `BucketGroup`. Returns a `GroupRecord`."""

    work: WorkFolder
    """folder of the temporary files"""
    store: Store
    """store of the units and tables"""
    tables: str
    """folder of the tables"""
    schema: pa.Schema
    """schema of units"""
    listed: tuple[str, ...]
    """names of the files in tonight's listing"""
    parts: tuple[ReadPart, ...]
    """rows read tonight, in the order of (file, row)"""
    partitions: int
    """number of partitions of each of these parts"""
    revived: tuple[ReadPart, ...]
    """rows of unchanged files that have to be written, in partitions by bucket"""
    buckets: int
    """number of buckets"""
    text_buckets: int
    """number of buckets of the text table"""
    unit_rows: int
    """largest number of rows of a unit"""

    def start(self) -> Callable[[BucketGroup], GroupRecord]:
        """Return the function that writes a group."""
        tonight = _PartsReader.of(self.work.store, self.parts, self.partitions)
        revived = _PartsReader.of(self.work.store, self.revived, self.buckets)
        return lambda group: self.work.load_or_make(
            f"group-{group.number:05d}",
            GroupRecord,
            lambda scratch: _Group(self, group, (tonight, revived), scratch).write(),
        )


@dataclass(frozen=True)
class _PartsReader:
    """Reader of the rows of parts, each of which has `count` partitions."""

    reader: PartitionReader
    parts: tuple[ReadPart, ...]
    count: int

    @classmethod
    def of(cls, work: Store, parts: tuple[ReadPart, ...], count: int) -> "_PartsReader":
        """Return a reader that has read nothing."""
        return cls(PartitionReader(work, count), parts, count)

    def read(self, units: pa.Schema, first: int, stop: int) -> Iterator[ReadRows]:
        """Yield the rows of the partitions from `first` to `stop`, part by part.

        Threads read several parts at once, up to _TOGETHER_BYTES: with many buckets, each part has only a few
        rows of a bucket.
        """
        group, size = list[ReadPart](), 0
        for part in self.parts:
            part_size = (part.lines.bytes + part.contents.bytes) * (stop - first) // self.count
            if group and size + part_size > _TOGETHER_BYTES:
                yield from self._read_group(group, units, first, stop)
                group, size = [], 0
            group.append(part)
            size += part_size
        yield from self._read_group(group, units, first, stop)

    def _read_group(
        self, group: Sequence[ReadPart], units: pa.Schema, first: int, stop: int
    ) -> Sequence[ReadRows]:
        return in_threads(lambda part: read_part(self.reader, part, units, first, stop), group)


class _Group:
    """The work on one group of buckets.

    The rows of its buckets that were read tonight have positions in the order of (bucket, file, row); revived
    rows follow, in the same order.
    """

    def __init__(
        self,
        task: WriteUnits,
        group: BucketGroup,
        readers: tuple["_PartsReader", "_PartsReader"],
        scratch: Path,
    ) -> None:
        self.task, self.group, self.scratch = task, group, scratch
        self.tonight, self.revived = readers
        self.files = pa.array(task.listed, pa.string())
        read = [bucket.rows_read for bucket in group.buckets]
        revived = [bucket.revived.rows if bucket.revived else 0 for bucket in group.buckets]
        self.starts = [0, *accumulate([*read, *revived])]
        self.writer = UnitWriter(
            task.store, scratch, task.unit_rows, group.first_ordinal, positions=self.starts[-1]
        )

    def write(self) -> GroupRecord:
        """Write the units, then the tables with the addresses of their rows."""
        task = self.task
        to_write = np.zeros(self.starts[-1], dtype=bool)
        for number in range(len(self.group.buckets)):
            positions = self._positions(number, self._lines(number))
            to_write[positions[positions != ABSENT]] = True
        self.writer.write(self._read_tonight(), to_write)
        self.writer.write_joined(self._revived())
        if len(self.writer.units) > self.group.most_units:
            raise Defect(
                task.store.uri_of(task.tables),
                f"at most {self.group.most_units} units of {to_write.sum()} rows",
                str(len(self.writer.units)),
                "report this with the corpus",
            )
        texts, keys = self.writer.texts, list[FileRef | None]()
        examples = (list[ExampleRow](), list[ExampleRow](), list[ExampleRow]())  # new, changed and deleted
        for number, bucket in enumerate(self.group.buckets):
            lines = self._lines(number)
            addresses = self._addresses(number, lines)
            keys.append(self._store_keys(bucket, lines, addresses))
            for of_kind, added in zip(examples, _example_rows(bucket, addresses), strict=True):
                of_kind += added
        return GroupRecord(
            units=tuple(self.writer.units),
            keys=tuple(keys),
            texts=store_partitions(
                task.work.store,
                texts,
                partition_of(text_hashes(texts), task.text_buckets),
                task.text_buckets,
                f"{task.work.path}/group-{self.group.number:05d}-texts.arrow",
            ),
            examples=tuple(map(tuple, examples)),
        )

    def _lines(self, number: int) -> pa.Table:
        schema = resolved_schema(self.task.schema.field("id").type)
        return read_from_all(self.task.work.store, [self.group.buckets[number].lines], schema)

    def _positions(self, number: int, lines: pa.Table) -> np.ndarray:
        """Return (n,) int64: the position of each line's row, ABSENT for rows that need not be written."""
        in_bucket = lines["position"].to_numpy()
        to_write = ~lines["duplicate"].to_numpy() & lines["address"].is_null().to_numpy()
        positions = np.where(to_write & (in_bucket != ABSENT), in_bucket + self.starts[number], ABSENT)
        revived = np.flatnonzero(to_write & (in_bucket == ABSENT))
        file, row = (lines[name].to_numpy()[revived] for name in ("file", "row"))
        first = self.starts[len(self.group.buckets) + number]
        positions[revived[np.lexsort([row, file])]] = np.arange(first, first + len(revived))
        return positions

    def _read_tonight(self) -> Iterator[pa.Table]:
        """Yield the rows of all buckets that were read tonight, in the order of their positions."""
        width = self.task.partitions // self.task.buckets
        for bucket, start in zip(self.group.buckets, self.starts, strict=False):
            first = bucket.bucket * width
            yield from self._rows(self.tonight, first, first + width, start)

    def _revived(self) -> Iterator[pa.Table]:
        """Yield the revived rows of all buckets, in the order of their positions."""
        for bucket, start in zip(self.group.buckets, self.starts[len(self.group.buckets) :], strict=False):
            if bucket.revived:
                yield from self._rows(self.revived, bucket.bucket, bucket.bucket + 1, start)

    def _rows(self, parts: "_PartsReader", first: int, stop: int, start: int) -> Iterator[pa.Table]:
        """Yield the rows of some partitions; their positions begin at `start`."""
        for rows in parts.read(self.task.schema, first, stop):
            table = rows.unit_rows(self.files, self.task.schema)
            positions = np.arange(start, start + table.num_rows)
            table = table.append_column(POSITION, pa.array(positions))
            yield from (table.slice(row, _STEP_ROWS) for row in range(0, len(positions), _STEP_ROWS))
            start += len(positions)

    def _addresses(self, number: int, lines: pa.Table) -> np.ndarray:
        """Return (n,) int64: the address of each line's row in a kept or new unit; ABSENT if none."""
        positions = self._positions(number, lines)
        addresses = pc.fill_null(lines["address"], ABSENT).to_numpy().copy()
        is_new = positions != ABSENT
        addresses[is_new] = self.writer.addresses[positions[is_new]]
        return addresses

    def _store_keys(self, bucket: BucketRecord, lines: pa.Table, addresses: np.ndarray) -> FileRef | None:
        """Store the base or delta of a bucket: its lines with their addresses.

        Returns None if no line changed.
        """
        columns = {name: lines[name] for name in ("id", "text_key", "carried", "row")}
        columns["file"] = self.files.take(one_chunk(lines["file"]))
        columns["address"] = pa.array(addresses, mask=addresses == ABSENT)
        schema = keys_schema(lines.schema.field("id").type)
        stem = f"{self.task.tables}/{bucket.bucket:05d}"
        if bucket.is_base:
            table = pa.table(columns, schema=schema)
            return store_table(self.task.store, self.scratch, table, f"{stem}.parquet")
        marks = deletion_marks(self._deleted(bucket), schema)
        delta = pa.concat_tables([pa.table(columns, schema=marks.schema), marks])
        if not delta.num_rows:
            return None
        return store_table(self.task.store, self.scratch, delta, f"{stem}-delta.parquet")

    def _deleted(self, bucket: BucketRecord) -> pa.Table:
        """Return id, file and row of the lines that the key table no longer has."""
        keys = keys_schema(self.task.schema.field("id").type)
        schema = pa.schema([keys.field(name) for name in _DELETED_COLUMNS])
        return read_from_all(self.task.work.store, [bucket.deleted] if bucket.deleted else [], schema)


def _example_rows(bucket: BucketRecord, addresses: np.ndarray) -> Iterator[list[ExampleRow]]:
    """Yield the bucket's examples of new, changed and deleted rows; `addresses` has each line's address."""
    for of_kind in bucket.examples:
        rows = []
        for example in of_kind:
            now = None if example.line is None else int(addresses[example.line])
            rows.append(ExampleRow(key=example.key, row=ChangedRow(before=example.before, now=now)))
        yield rows
