"""The key table: one line per good input row, bucketed by a hash of its id, built in memory that does not grow with the rows."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store.schema import KEY
from pipeline.text.normalize import digests

BUCKET_ROWS = 1 << 18           # of one bucket at most, on average: some 25 MB with short string ids
_RUN_ROWS = 1 << 19             # rows sorted in memory before they go to disk


def keys_schema(id_type: pa.DataType) -> pa.Schema:
    """Lines of a bucket, sorted by (id, file, row). unit, unit_row: where the row is among the corpus units; null for a loser of a duplicate id."""
    return pa.schema([
        pa.field("id", id_type, nullable=False), pa.field("text_key", KEY, nullable=False), pa.field("file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False), pa.field("unit", pa.int32()), pa.field("unit_row", pa.int32()),
    ])


def id_hashes(ids: pa.Array) -> np.ndarray:
    """(n,) uint64: blake2b-64 of the id as text. The bucket of B = 2^b is its upper b bits."""
    text = ids if pa.types.is_string(ids.type) else ids.cast(pa.string())
    return np.frombuffer(digests(text, 8).buffers()[1], dtype=">u8", count=len(ids)).astype(np.uint64)


def bucket_count(rows: int) -> int:
    """A power of two, so that buckets of two nights nest: at most BUCKET_ROWS rows in a bucket on average."""
    return 1 << max(0, (max(rows, 1) - 1) // BUCKET_ROWS).bit_length()


@dataclass(frozen=True)
class Losers:
    """Rows whose id an earlier row has, by position. winner_file, winner_row: where that row is. Twenty bytes a loser."""

    position: np.ndarray
    winner_file: np.ndarray
    winner_row: np.ndarray

    def between(self, start: int, stop: int) -> "Losers":
        """Those with start <= position < stop."""
        low, high = np.searchsorted(self.position, [start, stop])
        return Losers(self.position[low:high], self.winner_file[low:high], self.winner_row[low:high])


@dataclass
class KeySpill:
    """Collects (id, text_key, file number, row) in input order; `position` counts the rows added. Sorted runs lie in `scratch` until a bucket is asked for."""

    scratch: Path
    rows: int = 0
    _waiting: list[pa.Table] = field(default_factory=list)
    _flushed: int = 0
    _runs: list[Path] = field(default_factory=list)

    def add(self, ids: pa.ChunkedArray, text_keys: pa.ChunkedArray, file: int, rows: pa.ChunkedArray) -> None:
        """The next rows, all of one file."""
        count = len(rows)
        position = np.arange(self.rows, self.rows + count, dtype=np.int64)
        files = pa.array(np.full(count, file, dtype=np.int32))
        self._waiting.append(pa.table({"id": ids, "text_key": text_keys, "file": files, "row": rows, "position": position}))
        self.rows += count
        if self.rows - self._flushed >= _RUN_ROWS:
            self._flush()

    def buckets(self) -> Iterator[pa.Table]:
        """Each bucket's rows sorted by (id, position); equal ids are in one bucket."""
        self._flush()
        count = bucket_count(self.rows)
        edges = np.arange(1, count, dtype=np.uint64) << np.uint64(65 - count.bit_length())
        cuts = [_cuts(np.load(place.with_suffix(".npy"), mmap_mode="r"), edges) for place in self._runs]
        for bucket in range(count if self._runs else 0):
            slices = [mapped(place).slice(cut[bucket], cut[bucket + 1] - cut[bucket]) for place, cut in zip(self._runs, cuts, strict=True)]
            table = pa.concat_tables(slices)
            yield table.take(pc.sort_indices(table, sort_keys=[("id", "ascending"), ("position", "ascending")])).combine_chunks()

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting, self._flushed = [], self.rows
        if not table.num_rows:
            return
        hashes = id_hashes(table["id"].combine_chunks())
        order = np.argsort(hashes, kind="stable")
        place = self.scratch / f"run-{len(self._runs)}.arrow"
        np.save(place.with_suffix(".npy"), hashes[order])
        self._runs.append(spill(table.take(pa.array(order)), place))


def _cuts(hashes: np.ndarray, edges: np.ndarray) -> list[int]:
    """Where each bucket begins among sorted hashes, and the end."""
    return [0, *np.searchsorted(hashes, edges).tolist(), len(hashes)]


def spill(table: pa.Table, place: Path) -> Path:
    """`place` itself, holding the table."""
    with pa.OSFile(str(place), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return place


def mapped(place: Path) -> pa.Table:
    """A spilled table as a map of its file: its pages belong to the system again when the table is let go."""
    return pa.ipc.open_file(pa.memory_map(str(place))).read_all()


def losers_of(bucket: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the rows that repeat the id before them, and of the first row with that id, in a bucket sorted by (id, position)."""
    ids = bucket["id"].combine_chunks()
    repeats = np.zeros(len(ids), dtype=bool)
    if len(ids) > 1:
        repeats[1:] = pc.equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    first = np.maximum.accumulate(np.where(repeats, 0, np.arange(len(ids))))
    return np.flatnonzero(repeats), first[repeats]


@dataclass(frozen=True)
class Addresses:
    """Positions to (unit, row). starts: position of each unit's first row, and the end; lost: positions of losers, ascending; kept: which units are left."""

    starts: np.ndarray
    lost: np.ndarray
    kept: np.ndarray

    def of(self, position: np.ndarray, lost: np.ndarray) -> tuple[pa.Array, pa.Array]:
        """Ordinal among the units that are left, and the row in it without losers; null for a loser."""
        place = np.searchsorted(self.starts, position, side="right") - 1
        before = np.searchsorted(self.lost, position) - np.searchsorted(self.lost, self.starts[place])
        unit = np.cumsum(self.kept)[place] - 1
        row = position - self.starts[place] - before
        return pa.array(unit.astype(np.int32), mask=lost), pa.array(row.astype(np.int32), mask=lost)
