"""Rows collected in any order and given back bucket by bucket of a hash, in memory that does not grow with them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

_RUN_ROWS = 1 << 19  # rows sorted in memory before they go to disk


@dataclass
class Spill:
    """Sorted runs lie in `scratch` under `name` until a bucket is asked for. The bucket of a hash among B = 2^b is its upper b bits."""

    scratch: Path
    name: str
    rows: int = 0
    _waiting: list[tuple[pa.Table, np.ndarray]] = field(default_factory=list)
    _held: int = 0
    _runs: list[Path] = field(default_factory=list)

    def add(self, table: pa.Table, hashes: np.ndarray) -> None:
        """More rows, (n,) uint64 hashes beside them."""
        if table.num_rows:
            self._waiting.append((table, hashes))
            self.rows, self._held = self.rows + table.num_rows, self._held + table.num_rows
        if self._held >= _RUN_ROWS:
            self._flush()

    def buckets(self, count: int) -> Iterator[pa.Table | None]:
        """The rows of each of `count` (a power of two) buckets, in no order; None for all of them where no row was added."""
        self._flush()
        edges = np.arange(1, count, dtype=np.uint64) << np.uint64(65 - count.bit_length())
        cuts = [_cuts(np.load(place.with_suffix(".npy"), mmap_mode="r"), edges) for place in self._runs]
        for bucket in range(count):
            slices = [
                mapped(place).slice(cut[bucket], cut[bucket + 1] - cut[bucket])
                for place, cut in zip(self._runs, cuts, strict=True)
            ]
            yield pa.concat_tables(slices) if slices else None

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.concat_tables([table for table, _ in self._waiting]).combine_chunks()
        hashes = np.concatenate([hashes for _, hashes in self._waiting])
        self._waiting, self._held = [], 0
        order = np.argsort(hashes, kind="stable")
        place = self.scratch / f"{self.name}-{len(self._runs)}.arrow"
        np.save(place.with_suffix(".npy"), hashes[order])
        self._runs.append(spilled(table.take(pa.array(order)), place))


def _cuts(hashes: np.ndarray, edges: np.ndarray) -> list[int]:
    """Where each bucket begins among sorted hashes, and the end."""
    return [0, *np.searchsorted(hashes, edges).tolist(), len(hashes)]


def spilled(table: pa.Table, place: Path) -> Path:
    """`place` itself, holding the table."""
    with pa.OSFile(str(place), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return place


def mapped(place: Path) -> pa.Table:
    """A spilled table as a map of its file: its pages belong to the system again when the table is let go."""
    return pa.ipc.open_file(pa.memory_map(str(place))).read_all()
