"""Write new units, and record the address of every row in them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.files.base import Store, sha256_of
from pipeline.store.records.units import CorpusUnit
from pipeline.store.rows.address import to_addresses
from pipeline.store.rows.schema import writer_options
from pipeline.text.formats.reject_rows import rechunk
from pipeline.text.ingest.resolve_ids import ABSENT
from pipeline.text.key_tables.keys import TEXTS

POSITION = "kept.position"  # no column of a unit has this name, see `stored_name`
UNIT_BYTES = 64 << 20  # most text in one unit; a process has about five copies of it in memory at once
# consecutive rows become a unit if this proportion of them has to be written; other rows are joined
_MIN_FULLNESS = 0.5


def most_units(rows: int, size: int, unit_rows: int) -> int:
    """Return an upper bound of the number of units that `rows` rows with `size` bytes of text need.

    Two adjacent units together have more than UNIT_BYTES of text, unless the first one has `unit_rows` rows.
    """
    return min(rows, rows // unit_rows + 2 * size // UNIT_BYTES + 2)


class _UnitRows(NamedTuple):
    """Consecutive rows, as many as fit into a unit."""

    rows: pa.Table
    """rows of units, with a column `POSITION`"""
    to_write: np.ndarray
    """(n,) bool: rows that have to be written"""

    @property
    def becomes_unit(self) -> bool:
        """True if the rows to write become a unit of their own."""
        return bool(self.to_write.mean() >= _MIN_FULLNESS)

    @property
    def rows_to_write(self) -> pa.Table:
        """The rows to write."""
        return self.rows if self.to_write.all() else self.rows.filter(pa.array(self.to_write))


@dataclass
class UnitWriter:
    """Write new units to `store`, numbered from `first_ordinal`.

    More rows are read than are written. A row is identified by its position among the rows read.
    """

    store: Store
    scratch: Path
    unit_rows: int
    first_ordinal: int
    positions: int
    """number of positions"""
    addresses: np.ndarray = field(init=False)
    """(positions,) int64: address of the row at each position, ABSENT if it is in no unit"""
    units: list[CorpusUnit] = field(default_factory=list)
    _texts: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.addresses = np.full(self.positions, ABSENT, dtype=np.int64)

    @property
    def texts(self) -> pa.Table:
        """Text keys and addresses of all rows that were written."""
        return pa.concat_tables([TEXTS.empty_table(), *self._texts])

    def write(self, rows: Iterable[pa.Table], to_write: np.ndarray) -> None:
        """Write the rows that `to_write`, a mask by position, selects.

        The rows keep their order, and their positions among all rows decide how they are divided into units.
        So rows that become live together are divided in the same way, whatever else is read.

        Args:
            rows: rows of units, with a column `POSITION`.
        """
        chunks = (
            _UnitRows(table, to_write[table[POSITION].to_numpy()])
            for table in rechunk(rows, self.unit_rows, UNIT_BYTES)
        )
        for becomes_unit, group in groupby(chunks, lambda chunk: chunk.becomes_unit):
            if becomes_unit:
                for chunk in group:
                    self._write_unit(chunk.rows_to_write)
            else:
                self.write_joined(chunk.rows_to_write for chunk in group)

    def write_joined(self, tables: Iterator[pa.Table]) -> None:
        """Write all rows of several tables as units that are as large as allowed."""
        for table in rechunk(tables, self.unit_rows, UNIT_BYTES):
            self._write_unit(table)

    def _write_unit(self, table: pa.Table) -> None:
        """Store rows as the next unit, and record their addresses and text keys."""
        rows, positions = table.drop_columns([POSITION]).combine_chunks(), table[POSITION].to_numpy()
        ordinal, file = self.first_ordinal + len(self.units), self.scratch / "unit.parquet"
        pq.write_table(rows, file, **writer_options(rows.schema))
        addresses = to_addresses(ordinal, np.arange(len(positions)))
        self.addresses[positions] = addresses
        self._texts.append(pa.table([rows["text_key"], pa.array(addresses)], schema=TEXTS))
        sha256, size = sha256_of(file), file.stat().st_size
        path, name = f"units/corpus/{sha256[:24]}.parquet", f"{ordinal:08d}"
        if self.store.size(path) != size:
            self.store.put(file, path)
        self.units.append(
            CorpusUnit(name=name, ordinal=ordinal, path=path, rows=len(positions), bytes=size, sha256=sha256)
        )
