"""The tasks that write the text table (rows of units by text), and find rows whose vector can be copied."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.units import CorpusUnit, TableBucket
from pipeline.store.rows.address import ordinal_of, row_of
from pipeline.store.rows.arrays import one_chunk
from pipeline.text.key_tables.buckets import is_compacted, read_text_bucket
from pipeline.text.key_tables.keys import COPIES, TEXTS, store_table
from pipeline.text.key_tables.partitions import PartitionReader, read_from_all, store_partitions
from pipeline.text.task_map import WorkFolder

_SOURCES = pa.schema([("address", pa.int64()), ("source", pa.int64())])


class TextBucketRecord(Stored):
    """One bucket of the text table."""

    table: FileRef | None
    """the base or delta; None if there are no new lines"""
    is_base: bool
    sources: FileRef
    """`_SOURCES`: new rows whose text is in an earlier unit, partitioned by their group of buckets"""


@dataclass(frozen=True)
class ResolveTexts:
    """Write one bucket of the text table; the item is its number. Returns a `TextBucketRecord`."""

    work: WorkFolder
    """folder of the temporary files"""
    store: Store
    """store of the tables"""
    tables: str
    """folder of the tables"""
    buckets: int
    """number of buckets"""
    texts: tuple[FileRef, ...]
    """`GroupRecord.texts` of each group"""
    first_ordinals: tuple[int, ...]
    """first ordinal of each group"""
    old: tuple[TableBucket, ...]
    """buckets of the previous corpus's text table"""
    old_units: tuple[int, ...]
    """ordinals of the previous corpus's units"""
    kept_units: tuple[int, ...]
    """ordinals of the previous corpus's units that the new corpus keeps"""
    waiting: tuple[TableBucket, ...] = ()
    """buckets of the text table of the candidate that waits"""
    waiting_units: tuple[int, ...] = ()
    """ordinals of that candidate's units which no release has; all are higher than those of `old_units`"""

    def start(self) -> Callable[[int], TextBucketRecord]:
        """Return the function that writes a bucket."""
        work = PartitionReader(self.work.store, self.buckets)
        return lambda bucket: self.work.load_or_make(
            f"texts-{bucket:05d}",
            TextBucketRecord,
            lambda scratch: self._resolve(bucket, work, scratch),
        )

    def _resolve(self, bucket: int, work: PartitionReader, scratch: Path) -> TextBucketRecord:
        new_lines = work.read(self.texts, TEXTS, bucket, bucket + 1)
        stored_lines = read_text_bucket(self.store, self.old, bucket, self.buckets, self.old_units)
        sources, is_base = _SOURCES.empty_table(), True
        tables = [TEXTS.empty_table(), new_lines]
        if stored_lines is not None:  # vectors of units that are not kept can be copied, too
            sources = _find_sources(new_lines, stored_lines)
            can_extend = self.kept_units and len(self.old) == self.buckets
            is_base = is_compacted(self.old[bucket] if can_extend else None, new_lines.num_rows)
        if stored_lines is not None and is_base:
            unit = ordinal_of(stored_lines["address"].to_numpy())
            tables.append(stored_lines.filter(pa.array(np.isin(unit, self.kept_units))))
        if self.waiting_units:
            waiting = read_text_bucket(self.store, self.waiting, bucket, self.buckets, self.waiting_units)
            if waiting is not None:
                is_found = pc.is_in(new_lines["address"], value_set=one_chunk(sources["address"]))
                others = new_lines.filter(pc.invert(is_found))
                sources = pa.concat_tables([sources, _find_sources(others, waiting)])
        table = pa.concat_tables(tables).sort_by([("text_key", "ascending"), ("address", "ascending")])
        path = f"{self.tables}/texts-{bucket:05d}{'' if is_base else '-delta'}.parquet"
        ordinals = ordinal_of(sources["address"].to_numpy())
        groups = np.searchsorted(self.first_ordinals, ordinals, side="right") - 1
        return TextBucketRecord(
            table=store_table(self.store, scratch, table, path) if is_base or table.num_rows else None,
            is_base=is_base,
            sources=store_partitions(
                self.work.store,
                sources,
                groups,
                len(self.first_ordinals),
                f"{self.work.path}/texts-{bucket:05d}-sources.arrow",
            ),
        )


def _find_sources(new_lines: pa.Table, stored_lines: pa.Table) -> pa.Table:
    """Return the addresses of new rows whose text is stored, each with the address of the first such row."""
    indices = one_chunk(pc.index_in(new_lines["text_key"], value_set=stored_lines["text_key"]))
    addresses = new_lines["address"].filter(indices.is_valid())
    return pa.table([addresses, stored_lines["address"].take(indices.drop_null())], schema=_SOURCES)


@dataclass(frozen=True)
class UnitsToCopyTo:
    """The units of one group of buckets, with the number of the group."""

    group: int
    units: tuple[CorpusUnit, ...]


class CopiesRecord(Stored):
    """The units of a group, each with a reference to the table of its rows whose vectors can be copied."""

    units: tuple[CorpusUnit, ...]


@dataclass(frozen=True)
class GatherCopies:
    """Write, for each unit of `UnitsToCopyTo`, its rows with copyable vectors. Returns a `CopiesRecord`."""

    work: WorkFolder
    """folder of the temporary files"""
    store: Store
    """store of the tables"""
    tables: str
    """folder of the tables"""
    sources: tuple[FileRef, ...]
    """`TextBucketRecord.sources` of each bucket"""

    def start(self) -> Callable[[UnitsToCopyTo], CopiesRecord]:
        """Return the function that works on a group."""
        return lambda item: self.work.load_or_make(
            f"copies-{item.group:05d}",
            CopiesRecord,
            lambda scratch: CopiesRecord(units=tuple(self._gather(item, scratch))),
        )

    def _gather(self, item: UnitsToCopyTo, scratch: Path) -> Sequence[CorpusUnit]:
        rows = read_from_all(self.work.store, self.sources, _SOURCES, item.group, item.group + 1)
        rows = rows.sort_by("address")
        addresses = rows["address"].to_numpy()
        return [self._with_copies(unit, rows, ordinal_of(addresses), scratch) for unit in item.units]

    def _with_copies(
        self, unit: CorpusUnit, rows: pa.Table, ordinals: np.ndarray, scratch: Path
    ) -> CorpusUnit:
        """Write the table of a unit's rows that have a source; return the unit with a reference to it."""
        start, stop = np.searchsorted(ordinals, [unit.ordinal, unit.ordinal + 1])
        if start == stop:
            return unit
        of_unit = rows.slice(start, stop - start)
        numbers = row_of(of_unit["address"].to_numpy())
        table = pa.table([pa.array(numbers, pa.int32()), of_unit["source"]], schema=COPIES)
        path = f"{self.tables}/copies-{unit.name}.parquet"
        return unit.model_copy(update={"copies": store_table(self.store, scratch, table, path)})
