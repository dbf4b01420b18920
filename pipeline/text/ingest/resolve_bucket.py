"""Resolve the ids of one bucket of a corpus: the lines read tonight are joined with the key table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import Settings
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.units import Changes, TableBucket
from pipeline.text.ingest.read_files import ID_HASHES
from pipeline.text.ingest.read_rows import ReadPart, read_lines
from pipeline.text.ingest.resolve_ids import ABSENT, LineChange, ResolvedIds, line_schema, resolve_ids
from pipeline.text.ingest.sorted_rows import ADDRESSES, range_of
from pipeline.text.key_tables.buckets import find_changed_lines, is_compacted, read_key_bucket
from pipeline.text.key_tables.keys import document_ids, id_hashes, keys_schema, line_identities
from pipeline.text.key_tables.partitions import (
    PartitionReader,
    read_from_all,
    store_partitions,
    store_whole,
)
from pipeline.text.task_map import WorkFolder

REVIVED = pa.schema([("file", pa.int32()), ("row", pa.int64()), ("text_key", pa.binary(16))])
"""Schema of the rows of unchanged files that were duplicates on an earlier night and are live now."""


class ExampleLine(Settings):
    """A new, changed or deleted row, as an example of the changes."""

    key: int
    """first half of the row's text key; the rows with the smallest keys are the examples"""
    before: int | None
    """address in the previous corpus; None for a new row"""
    line: int | None
    """index of its line in `BucketRecord.lines`; None for a deleted row"""


class BucketRecord(Stored):
    """The resolved lines of one bucket."""

    bucket: int
    lines: FileRef
    """lines for the key table, sorted by (id, file, row); see `ResolvedIds.lines`"""
    is_base: bool
    """whether `lines` has all lines of the bucket; otherwise it has only those that changed"""
    rows_read: int
    """number of rows of the bucket that were read tonight"""
    rows_written: int
    """number of rows, read tonight or revived, that have to be written to a new unit"""
    changes: Changes
    live_rows: int = 0
    """number of live input rows; a row that is cut into chunks counts once"""
    deleted_documents: int = 0
    """number of input rows that were live in the previous corpus and are not any more"""
    filtered_documents: int = 0
    """number of these rows that are filtered tonight"""
    revived: FileRef | None = None
    """`REVIVED`, in the order of (file, row)"""
    dead: FileRef | None = None
    """`ADDRESSES` that are no longer live, in partitions by `ResolveBucket.unit_ranges`"""
    duplicates: FileRef | None = None
    """`ResolvedIds.duplicates`, in partitions by `ResolveBucket.row_ranges`"""
    deleted: FileRef | None = None
    """id, file and row of the stored lines to delete from the key table; None if `is_base`"""
    examples: tuple[tuple[ExampleLine, ...], ...] = ()
    """new, changed and deleted rows"""


@dataclass(frozen=True)
class ResolveBucket:
    """Resolve the ids of one bucket; the item is its number. Returns a `BucketRecord`."""

    work: WorkFolder
    """folder of the temporary files"""
    parts: tuple[ReadPart, ...]
    """rows read tonight, in the order of (file, row)"""
    partitions: int
    """number of partitions of each part"""
    buckets: int
    """number of buckets, at most the number of partitions"""
    store: Store
    """store of the key table"""
    keys: tuple[TableBucket, ...]
    """buckets of the previous corpus's key table"""
    other_keys: tuple[TableBucket, ...]
    """buckets of the previous corpus's key table if its ids have another type, or only one of the two corpora
    has chunks
    """
    id_type: pa.DataType
    """type of the ids"""
    listed: tuple[str, ...]
    """names of the files in tonight's listing"""
    unchanged: tuple[str, ...]
    """names of the listed files that were not read tonight"""
    reuse: bool
    """whether unchanged rows keep their addresses"""
    unit_ranges: tuple[int, ...]
    """first address of each range; see `sorted_rows.unit_ranges`"""
    row_ranges: tuple[int, ...]
    """first identity of each range of input rows; see `sorted_rows.row_ranges`"""
    filtered: tuple[FileRef, ...] = ()
    """`ReadRecord.filtered` of all items that have filtered rows"""

    def start(self) -> Callable[[int], BucketRecord]:
        """Return the function that resolves a bucket."""
        work = PartitionReader(self.work.store, self.partitions)
        return lambda bucket: self.work.load_or_make(
            f"bucket-{bucket:05d}",
            BucketRecord,
            lambda scratch: self._resolve(bucket, self._lines_read(work, bucket)),
        )

    def _resolve(self, bucket: int, lines_read: pa.Table) -> BucketRecord:
        stored_lines = self._stored_lines(bucket)
        resolved = resolve_ids(self._lines_before(stored_lines), lines_read, reuse=self.reuse)
        changed, deleted = self._changes(stored_lines, resolved)
        is_base = is_compacted(self._reused_bucket(bucket), len(changed) + deleted.num_rows)
        chosen = np.arange(resolved.lines.num_rows) if is_base else changed
        is_revived = resolved.lines["position"].to_numpy()[resolved.to_write] == ABSENT
        revived = resolved.lines.select(REVIVED.names).take(pa.array(resolved.to_write[is_revived]))
        revived = revived.sort_by([("file", "ascending"), ("row", "ascending")])
        duplicates, dead = resolved.duplicates(), pa.table([resolved.dead], schema=ADDRESSES)
        identities = line_identities(duplicates["file"].to_numpy(), duplicates["row"].to_numpy())
        duplicate_ranges = range_of(identities, self.row_ranges)
        dead_ranges = range_of(resolved.dead, self.unit_ranges)
        stem = f"{self.work.path}/bucket-{bucket:05d}"
        lines = resolved.lines.take(pa.array(chosen))

        def store_rows(table: pa.Table, name: str) -> FileRef | None:
            return store_whole(self.work.store, table, f"{stem}-{name}.arrow") if table.num_rows else None

        def store_ranges(table: pa.Table, ranges: np.ndarray, count: int, name: str) -> FileRef | None:
            path = f"{stem}-{name}.arrow"
            return store_partitions(self.work.store, table, ranges, count, path) if table.num_rows else None

        return BucketRecord(
            bucket=bucket,
            lines=store_whole(self.work.store, lines, f"{stem}-lines.arrow"),
            is_base=is_base,
            rows_read=lines_read.num_rows,
            rows_written=len(resolved.to_write),
            changes=resolved.changes,
            live_rows=resolved.live_rows,
            deleted_documents=resolved.deleted.num_rows + self._count_lost(bucket, resolved),
            filtered_documents=self._count_filtered(bucket, resolved),
            revived=store_rows(revived, "revived"),
            dead=store_ranges(dead, dead_ranges, len(self.unit_ranges), "dead"),
            duplicates=store_ranges(duplicates, duplicate_ranges, len(self.row_ranges), "duplicates"),
            deleted=None if is_base else store_rows(deleted, "deleted"),
            examples=tuple(tuple(_examples(of_kind, chosen)) for of_kind in resolved.examples),
        )

    def _lines_read(self, work: PartitionReader, bucket: int) -> pa.Table:
        """Return the lines read tonight, with their positions among the rows of the bucket."""
        width = self.partitions // self.buckets
        first = bucket * width
        tables = in_threads(
            lambda part: read_lines(work, part, self.id_type, first, first + width), self.parts
        )
        schema = line_schema(self.id_type)
        if not tables:
            return schema.empty_table()
        lines = pa.concat_tables(tables)
        columns = {name: lines[name] for name in lines.column_names}
        columns["address"] = pa.nulls(lines.num_rows, pa.int64())
        columns["position"] = pa.array(np.arange(lines.num_rows, dtype=np.int64))
        return pa.table(columns, schema=schema)

    def _count_filtered(self, bucket: int, resolved: ResolvedIds) -> int:
        """Count the deleted rows whose id a filtered row has."""
        if not (self.filtered and resolved.deleted.num_rows):
            return 0
        width = self.partitions // self.buckets
        first = bucket * width
        rows = read_from_all(self.work.store, self.filtered, ID_HASHES, first, first + width)
        return int(np.isin(id_hashes(resolved.deleted), rows["hash"].to_numpy()).sum())

    def _reused_bucket(self, bucket: int) -> TableBucket | None:
        """Return the stored bucket that a delta can extend; None if there is none."""
        return self.keys[bucket] if self.reuse and len(self.keys) == self.buckets else None

    def _stored_lines(self, bucket: int) -> pa.Table:
        """Return last night's lines of the key table."""
        lines = read_key_bucket(self.store, self.keys, bucket, self.buckets)
        return keys_schema(self.id_type).empty_table() if lines is None else lines

    def _count_lost(self, bucket: int, resolved: ResolvedIds) -> int:
        """Count the rows of `other_keys` whose id, compared as a string, is no longer live."""
        if not self.other_keys:
            return 0
        parts = max(len(self.other_keys), self.buckets)
        width, count = parts // self.buckets, 0
        is_live = pa.array(~resolved.lines["duplicate"].to_numpy())
        live = document_ids(resolved.lines.select(["id", "row"]).filter(is_live))
        for part in range(bucket * width, (bucket + 1) * width):
            lines = read_key_bucket(self.store, self.other_keys, part, parts, ("id", "row", "address"))
            if lines is not None:
                before = document_ids(lines.filter(lines["address"].is_valid()))
                count += pc.sum(pc.invert(pc.is_in(before, value_set=live))).as_py() or 0
        return count

    def _changes(self, stored_lines: pa.Table, resolved: ResolvedIds) -> tuple[np.ndarray, pa.Table]:
        """Return the indices of the resolved lines that are not stored yet, and the lines to delete."""
        listed = pa.array(self.listed, pa.string())
        is_changed, is_deleted = find_changed_lines(stored_lines, listed, resolved.lines)
        is_changed[resolved.to_write] = True  # lines that will get an address
        deleted = stored_lines.select(["id", "file", "row"]).filter(pa.array(is_deleted))
        return np.flatnonzero(is_changed), deleted

    def _lines_before(self, stored_lines: pa.Table) -> pa.Table:
        """Return stored lines in `line_schema`; `file` is ABSENT if the file is gone or was read again."""
        schema = line_schema(self.id_type)
        index = pc.index_in(stored_lines["file"], value_set=pa.array(self.listed, pa.string()))
        is_unchanged = pc.is_in(stored_lines["file"], value_set=pa.array(self.unchanged, pa.string()))
        columns = {name: stored_lines[name] for name in ("id", "text_key", "carried", "row", "address")}
        columns["file"] = pc.if_else(is_unchanged, index, ABSENT)
        columns["position"] = pa.repeat(pa.scalar(ABSENT, pa.int64()), stored_lines.num_rows)
        return pa.table(columns, schema=schema)


def _examples(examples: Sequence[LineChange], chosen: np.ndarray) -> list[ExampleLine]:
    """Return the examples, each with the index of its line among the chosen lines, which include it."""
    return [
        ExampleLine(
            key=key,
            before=None if before == ABSENT else before,
            line=None if now == ABSENT else int(np.searchsorted(chosen, now)),
        )
        for key, before, now in examples
    ]
