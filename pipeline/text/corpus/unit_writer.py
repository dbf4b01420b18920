"""Write the units of a night, and keep the address of every new row in a file rather than in memory."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.address import to_addresses
from pipeline.store.base import Store, sha256_of
from pipeline.store.schema import writer_options
from pipeline.store.units import CorpusUnit
from pipeline.text.corpus.keys import text_hashes
from pipeline.text.corpus.read_pass import UNIT_BYTES, ReadPass
from pipeline.text.corpus.resolve_ids import ABSENT
from pipeline.text.corpus.sift import rechunk
from pipeline.text.corpus.spill import Spill

_MIN_FULLNESS = 0.5  # a chunk that keeps this proportion of its rows becomes a unit; others are joined


@dataclass
class UnitWriter:
    """Write new units to `store`, numbered from `first_ordinal`.

    A new row has three numbers: its position among the rows read tonight (or read again for this night), its
    index among all rows of the new units, and its address.
    """

    store: Store
    scratch: Path
    schema: pa.Schema
    unit_rows: int
    first_ordinal: int
    positions: int
    """number of positions"""
    units: list[CorpusUnit] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    """index of the first row of each unit, and the end"""
    texts: Spill = field(init=False)
    """(text_key, new_row) of every new row, where new_row is the index"""
    _index: np.ndarray = field(init=False)
    """(positions,) int64: index of the row at each position, ABSENT if it is in no unit"""

    def __post_init__(self) -> None:
        self.texts = Spill(self.scratch, "texts")
        file, rows = self.scratch / "index.npy", max(self.positions, 1)
        self._index = np.lib.format.open_memmap(file, mode="w+", dtype=np.int64, shape=(rows,))
        self._index[:] = ABSENT

    def write(self, read: ReadPass, wanted: np.ndarray, revived: Iterable[pa.Table]) -> None:
        """Write units.

        Args:
            read: tonight's rows, in chunks.
            wanted: mask by position of the rows that need a unit; they keep their order.
            revived: more rows, with a column position.
        """
        bounds = list(pairwise(read.starts))
        kept = [np.flatnonzero(wanted[start:stop]) + start for start, stop in bounds]
        chunks = zip(read.chunks, kept, bounds, strict=True)
        for full, group in groupby(
            chunks, lambda one: len(one[1]) >= _MIN_FULLNESS * (one[2][1] - one[2][0])
        ):
            if full:
                for chunk, positions, (start, stop) in group:
                    self._write_chunk(chunk, positions, start, stop)
            else:
                self._write_joined(
                    self._take(chunk, positions, start) for chunk, positions, (start, _) in group
                )
        self._write_joined(revived)

    def addresses(self, positions: np.ndarray) -> np.ndarray:
        """(n,) int64: addresses of the rows at these positions."""
        return self.addresses_of(self._index[positions])

    def addresses_of(self, new_rows: np.ndarray) -> np.ndarray:
        """(n,) int64: addresses of rows by their index among the new rows."""
        unit = np.searchsorted(self.starts, new_rows, side="right") - 1
        return to_addresses(unit + self.first_ordinal, new_rows - np.asarray(self.starts)[unit])

    def _write_chunk(self, chunk: Path, positions: np.ndarray, start: int, stop: int) -> None:
        if len(positions) == stop - start:
            self._store(chunk, pq.read_table(chunk, columns=["text_key"]), positions)
        else:
            self._write_table(self._take(chunk, positions, start).drop_columns(["position"]), positions)

    def _take(self, chunk: Path, positions: np.ndarray, start: int) -> pa.Table:
        """Rows of a chunk, whose first row has the position `start`; the chunk's file is deleted."""
        table = pq.read_table(chunk, schema=self.schema) if len(positions) else self.schema.empty_table()
        chunk.unlink()
        return table.take(pa.array(positions - start)).append_column("position", pa.array(positions))

    def _write_joined(self, tables: Iterable[pa.Table]) -> None:
        for table in rechunk(tables, self.unit_rows, UNIT_BYTES):
            self._write_table(table.drop_columns(["position"]), table["position"].to_numpy())

    def _write_table(self, table: pa.Table, positions: np.ndarray) -> None:
        file = self.scratch / "unit.parquet"
        pq.write_table(table.combine_chunks(), file, **writer_options(self.schema))
        self._store(file, table, positions)

    def _store(self, file: Path, rows: pa.Table, positions: np.ndarray) -> None:
        first, count = self.starts[-1], len(positions)
        new_rows = np.arange(first, first + count, dtype=np.int64)
        self._index[positions] = new_rows
        keyed = pa.table({"text_key": rows["text_key"], "new_row": pa.array(new_rows)})
        self.texts.add(keyed, text_hashes(keyed))
        ordinal, sha256, size = self.first_ordinal + len(self.units), sha256_of(file), file.stat().st_size
        path, name = f"units/corpus/{sha256[:24]}.parquet", f"{ordinal:08d}"
        if self.store.size(path) != size:
            self.store.put(file, path)
        self.units.append(
            CorpusUnit(name=name, ordinal=ordinal, path=path, rows=count, bytes=size, sha256=sha256)
        )
        self.starts.append(first + count)
