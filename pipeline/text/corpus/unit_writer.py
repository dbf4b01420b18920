"""Rows that need an address are rolled into units; which row went where is kept in files, not in memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.base import Store, sha256_of
from pipeline.store.schema import writer_options
from pipeline.store.units import CorpusUnit
from pipeline.text.corpus.keys import by_text
from pipeline.text.corpus.read_pass import UNIT_BYTES, Reading
from pipeline.text.corpus.resolve_ids import NOWHERE
from pipeline.text.corpus.sift import rechunk
from pipeline.text.corpus.spill import Spill

_WHOLE_ENOUGH = (
    2  # a chunk that keeps half of its rows is a unit of its own; what others keep is rolled together
)


@dataclass
class Rolling:
    """New units in `store`, from `first_ordinal` on. A row's place is its number among all rows of the new units.

    positions: how many rows were read or fetched tonight; texts: (text_key, place) of every row of the new units.
    """

    store: Store
    scratch: Path
    schema: pa.Schema
    unit_rows: int
    first_ordinal: int
    positions: int
    units: list[CorpusUnit] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    texts: Spill = field(init=False)
    _places: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.texts = Spill(self.scratch, "texts")
        self._places = np.lib.format.open_memmap(
            self.scratch / "places.npy", mode="w+", dtype=np.int64, shape=(max(self.positions, 1),)
        )
        self._places[:] = NOWHERE

    def roll(self, reading: Reading, wanted: np.ndarray, revived: Iterable[pa.Table]) -> None:
        """Units of the rows read tonight whose position is `wanted` (mask), in order, then of the `revived` rows, which have a column position."""
        kept = [np.flatnonzero(wanted[start:stop]) + start for start, stop in pairwise(reading.starts)]
        rows = np.diff(reading.starts)
        for whole, run in groupby(
            range(len(kept)), lambda number: len(kept[number]) * _WHOLE_ENOUGH >= rows[number]
        ):
            if whole:
                for number in run:
                    self._chunk(
                        reading.chunks[number], kept[number], reading.starts[number], int(rows[number])
                    )
            else:
                self._together(
                    self._some(reading.chunks[number], kept[number], reading.starts[number]) for number in run
                )
        self._together(revived)

    def addresses(self, positions: np.ndarray) -> np.ndarray:
        """(n,) int64: addresses of rows by position."""
        return self.addresses_of(self._places[positions])

    def addresses_of(self, places: np.ndarray) -> np.ndarray:
        """(n,) int64: addresses of rows by place."""
        unit = np.searchsorted(self.starts, places, side="right") - 1
        return ((unit + self.first_ordinal).astype(np.int64) << 32) | (places - np.asarray(self.starts)[unit])

    def of_units(self) -> Iterator[tuple[int, int, int]]:
        """(number, first place, end) of each new unit."""
        yield from ((number, start, stop) for number, (start, stop) in enumerate(pairwise(self.starts)))

    def _chunk(self, place: Path, positions: np.ndarray, start: int, rows: int) -> None:
        """A chunk that kept most of its rows is a unit; one that kept all is written already."""
        if len(positions) == rows:
            self._stored(place, pq.read_table(place, columns=["text_key"]), positions)
        else:
            self._written(self._some(place, positions, start).drop_columns(["position"]), positions)

    def _some(self, place: Path, positions: np.ndarray, start: int) -> pa.Table:
        table = pq.read_table(place, schema=self.schema) if len(positions) else self.schema.empty_table()
        place.unlink()
        return table.take(pa.array(positions - start)).append_column("position", pa.array(positions))

    def _together(self, tables: Iterable[pa.Table]) -> None:
        for table in rechunk(tables, self.unit_rows, UNIT_BYTES):
            self._written(table.drop_columns(["position"]), table["position"].to_numpy())

    def _written(self, table: pa.Table, positions: np.ndarray) -> None:
        place = self.scratch / "unit.parquet"
        pq.write_table(table.combine_chunks(), place, **writer_options(self.schema))
        self._stored(place, table, positions)

    def _stored(self, file: Path, rows: pa.Table, positions: np.ndarray) -> None:
        first, count = self.starts[-1], len(positions)
        places = np.arange(first, first + count, dtype=np.int64)
        self._places[positions] = places
        keyed = pa.table({"text_key": rows["text_key"], "place": pa.array(places)})
        self.texts.add(keyed, by_text(keyed))
        ordinal, sha256, size = self.first_ordinal + len(self.units), sha256_of(file), file.stat().st_size
        path = f"units/corpus/{sha256[:24]}.parquet"
        if self.store.size(path) != size:
            self.store.put(file, path)
        self.units.append(
            CorpusUnit(
                name=f"{ordinal:08d}", ordinal=ordinal, path=path, rows=count, bytes=size, sha256=sha256
            )
        )
        self.starts.append(first + count)
