"""Sort the dead addresses and the duplicate ids of all buckets, range by range.

The ranges are the same in every bucket, so that a task sorts one range of all buckets.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.store.files.base import Store
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.units import CorpusUnit, InputFile
from pipeline.store.rows.address import address_of, ordinal_of
from pipeline.text.ingest.resolve_ids import duplicate_schema, quarantine_duplicates
from pipeline.text.key_tables.keys import line_identities
from pipeline.text.key_tables.partitions import read_from_all, store_whole
from pipeline.text.task_map import WorkFolder

ADDRESSES = pa.schema([("address", pa.int64())])
"""Schema of dead addresses."""
RANGE_ROWS = 1 << 22  # rows of the corpus in one range, which bounds its addresses and duplicates
_END = address_of((1 << 31) - 1, 0)  # higher than the addresses of all units


def unit_ranges(units: Iterable[CorpusUnit]) -> tuple[int, ...]:
    """Group units into ranges of at least RANGE_ROWS rows; return each range's first address."""
    starts, rows = [0], 0
    for unit in units:
        if rows >= RANGE_ROWS:
            starts.append(address_of(unit.ordinal, 0))
            rows = 0
        rows += unit.rows
    return tuple(starts)


def row_ranges(files: Sequence[InputFile]) -> tuple[int, ...]:
    """Return the first identity (see `line_identities`) of each range of about RANGE_ROWS input rows."""
    starts, rows = [0], 0
    for index, file in enumerate(files):
        if rows >= RANGE_ROWS:
            starts.append(_identity(index, 0))
            rows = 0
        starts += [_identity(index, row) for row in range(RANGE_ROWS, file.rows, RANGE_ROWS)]
        rows += file.rows
    return tuple(starts)


def _identity(file: int, row: int) -> int:
    return int(line_identities(np.array([file]), np.array([row]))[0])


def range_of(values: np.ndarray, starts: Sequence[int]) -> np.ndarray:
    """Return (n,) int64: the index of the range that each value is in."""
    return np.searchsorted(starts, values, side="right") - 1


class DeadRange(Stored):
    """The dead addresses of a range of units."""

    addresses: FileRef
    """`ADDRESSES`, ascending"""
    units: tuple[tuple[int, int], ...]
    """(ordinal, number of dead rows) of each unit that has dead rows"""


@dataclass(frozen=True)
class SortDead:
    """Sort the dead addresses of one range; the item is its number. Returns a `DeadRange`."""

    work: WorkFolder
    """folder of the temporary files"""
    store: Store
    """store of the earlier dead addresses"""
    earlier: FileRef | None
    """dead addresses of the previous corpus"""
    dead: tuple[FileRef, ...]
    """`BucketRecord.dead` of each bucket that has such addresses"""
    starts: tuple[int, ...]
    """first address of each range"""

    def start(self) -> Callable[[int], DeadRange]:
        """Return the function that sorts a range."""
        earlier = DeadRows(self.store, self.earlier)
        return lambda number: self.work.load_or_make(
            f"dead-{number:05d}", DeadRange, lambda scratch: self._sort(number, earlier)
        )

    def _sort(self, number: int, earlier: DeadRows) -> DeadRange:
        new = read_from_all(self.work.store, self.dead, ADDRESSES, number, number + 1)["address"].to_numpy()
        first, end = (ordinal_of(start) for start in (*self.starts, _END)[number : number + 2])
        dead = np.sort(np.concatenate([earlier.between(first, end), new]))
        ordinals, counts = np.unique(ordinal_of(dead), return_counts=True)
        table, path = pa.table([dead], schema=ADDRESSES), f"{self.work.path}/dead-{number:05d}.arrow"
        return DeadRange(
            addresses=store_whole(self.work.store, table, path),
            units=tuple(zip(ordinals.tolist(), counts.tolist(), strict=True)),
        )


class DuplicateRange(Stored):
    """The rows of a range whose id an earlier row has."""

    rows: FileRef
    """a quarantine table, sorted by file and row"""


@dataclass(frozen=True)
class SortDuplicates:
    """Sort the duplicate ids of one range; the item is its number. Returns a `DuplicateRange`."""

    work: WorkFolder
    """folder of the temporary files"""
    duplicates: tuple[FileRef, ...]
    """`BucketRecord.duplicates` of each bucket that has such rows"""
    id_type: pa.DataType
    """type of the ids"""
    listed: tuple[str, ...]
    """names of the files in tonight's listing"""

    def start(self) -> Callable[[int], DuplicateRange]:
        """Return the function that sorts a range."""
        return lambda number: self.work.load_or_make(
            f"duplicates-{number:05d}", DuplicateRange, lambda scratch: self._sort(number)
        )

    def _sort(self, number: int) -> DuplicateRange:
        schema = duplicate_schema(self.id_type)
        duplicates = read_from_all(self.work.store, self.duplicates, schema, number, number + 1)
        rows = quarantine_duplicates(duplicates, pa.array(self.listed, pa.string()))
        path = f"{self.work.path}/duplicates-{number:05d}.arrow"
        return DuplicateRange(rows=store_whole(self.work.store, rows, path))
