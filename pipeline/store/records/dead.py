"""Dead rows: rows that units still contain although they were deleted or replaced.

Their addresses are stored ascending in one Parquet file. `Dead` holds all of them, eight bytes each;
`DeadRows` reads only the addresses of the units that are asked for.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.write_once import put_by_content, store_table_by_content
from pipeline.store.rows.address import address_of, row_of

_GROUP_ROWS = 65_536  # addresses in one row group: 512 kB
_ALL = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)
_OPTIONS: dict[str, Any] = {"compression": "zstd", "use_dictionary": False}
_SCHEMA = pa.schema([pa.field("address", pa.int64(), nullable=False)])


@dataclass(frozen=True, eq=False)
class Dead:
    """The addresses of dead rows."""

    addresses: np.ndarray
    """(n,) int64, ascending, unique"""

    @classmethod
    def none(cls) -> "Dead":
        """Return an empty set of addresses."""
        return cls(np.zeros(0, dtype=np.int64))

    @classmethod
    def load(cls, store: Store, reference: FileRef | None) -> "Dead":
        """Load the addresses that `store_in` wrote; an empty set if `reference` is None.

        Raises:
            DataError: the file was changed.
        """
        if reference is None:
            return cls.none()
        return cls(pq.read_table(reference.open(store))["address"].to_numpy())

    def __len__(self) -> int:
        return len(self.addresses)

    def rows_of(self, ordinal: int) -> np.ndarray:
        """Return the dead rows of unit `ordinal`, (n,) int64, ascending."""
        bounds = [address_of(ordinal, 0), address_of(ordinal + 1, 0)]
        first, end = np.searchsorted(self.addresses, bounds)
        return row_of(self.addresses[first:end])

    def contains(self, addresses: np.ndarray) -> np.ndarray:
        """Return a mask (n,) bool of `addresses`, which may be in any order: True for dead rows."""
        return np.isin(addresses, self.addresses)

    def store_in(self, store: Store, stem: str) -> FileRef | None:
        """Store the addresses in a file named `stem`-<digest>. Returns None without addresses."""
        return write_addresses(store, self.addresses, stem) if len(self) else None


class DeadRows:
    """Reader of a file of dead rows, with one of its row groups in memory at a time.

    If units are asked for in ascending order, each row group is read once.
    """

    def __init__(self, store: Store, reference: FileRef | None) -> None:
        """Open the file that `Dead.store_in` wrote; no rows if `reference` is None.

        Raises:
            DataError: the file was changed.
        """
        self._file = pq.ParquetFile(reference.open(store)) if reference else None
        ranges = _ranges(self._file.metadata) if self._file else []
        self._lowest, self._highest = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
        self._group_in_memory = -1
        self._group_addresses = np.zeros(0, dtype=np.int64)

    def rows_of(self, ordinal: int) -> np.ndarray:
        """Return the dead rows of unit `ordinal`, (n,) int64, ascending."""
        return row_of(self.between(ordinal, ordinal + 1))

    def between(self, ordinal: int, end: int) -> np.ndarray:
        """Return the addresses of dead rows of the units `ordinal` to `end` - 1, (n,) int64, ascending."""
        low, high = address_of(ordinal, 0), address_of(end, 0)
        pieces = [np.zeros(0, dtype=np.int64)]
        for number in np.flatnonzero((self._highest >= low) & (self._lowest < high)).tolist():
            addresses = self._read(number)
            pieces.append(addresses[(addresses >= low) & (addresses < high)])
        return np.concatenate(pieces)

    def contains(self, addresses: np.ndarray) -> np.ndarray:
        """Return a mask of `addresses`, an array of any shape and order: True for dead rows."""
        is_dead = np.zeros(addresses.shape, dtype=bool)
        for number, (lowest, highest) in enumerate(zip(self._lowest, self._highest, strict=True)):
            inside = (addresses >= lowest) & (addresses <= highest)
            if inside.any():
                is_dead[inside] = np.isin(addresses[inside], self._read(number))
        return is_dead

    def _read(self, number: int) -> np.ndarray:
        """Return the addresses of a row group."""
        if self._group_in_memory != number:
            assert self._file is not None
            self._group_addresses = self._file.read_row_group(number)["address"].to_numpy()
            self._group_in_memory = number
        return self._group_addresses


def _ranges(metadata: pq.FileMetaData) -> list[tuple[int, int]]:
    """Return the lowest and highest address of each row group; all addresses if it has no statistics."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    statistics = (group.column(0).statistics for group in groups)
    return [(stats.min, stats.max) if stats and stats.has_min_max else _ALL for stats in statistics]


def write_addresses(store: Store, addresses: np.ndarray, stem: str) -> FileRef:
    """Store addresses, (n,) int64, as the only column of a Parquet file named `stem`-<digest>."""
    table = pa.table({"address": pa.array(addresses, pa.int64())}, schema=_SCHEMA)
    return store_table_by_content(store, table, stem, row_group_size=_GROUP_ROWS, **_OPTIONS)


def write_address_pieces(
    store: Store, scratch: Path, pieces: Iterable[np.ndarray], stem: str
) -> FileRef | None:
    """Store addresses as `write_addresses` does, with one of the pieces in memory at a time.

    Args:
        scratch: local folder.
        pieces: addresses, (n,) int64 each.

    Returns:
        The reference; None without addresses.
    """
    file, pending, rows = scratch / "addresses.parquet", np.zeros(0, dtype=np.int64), 0
    with pq.ParquetWriter(file, _SCHEMA, **_OPTIONS) as writer:

        def write(addresses: np.ndarray) -> None:
            writer.write_table(pa.table([addresses], schema=_SCHEMA), row_group_size=_GROUP_ROWS)

        for piece in pieces:
            pending = np.concatenate([pending, piece])
            rows, full_rows = rows + len(piece), len(pending) // _GROUP_ROWS * _GROUP_ROWS
            if full_rows:
                write(pending[:full_rows])
                pending = pending[full_rows:]
        if len(pending):
            write(pending)
    return put_by_content(store, file, stem, rows, digits=12) if rows else None
