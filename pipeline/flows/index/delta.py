"""What changed since last night, as the index sees it: rows that are gone, rows that came, and whether last
night's small files are as they were.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import DataError
from pipeline.flows.rows import LiveRows, Placed, placed_in, placed_rows
from pipeline.store.address import ordinal_of, row_of
from pipeline.store.dead import Dead, write_addresses
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.units import FileRef, Stored


class Surveyed(Stored):
    """What a survey found. Rows are those with a vector."""

    live: tuple[int, ...]
    """live rows of each unit"""
    gone: FileRef
    """addresses that were live last night and are not now"""
    revived: int
    """rows that were dead last night and are live now"""
    delta: int
    """live rows of units that are not in the first part"""
    tombstones: FileRef | None
    """rows of the first part that are dead, were it kept as it is"""
    dead_queries: float
    """share of the rows asked as queries that are not live"""
    unusable: str = ""

    @property
    def rows(self) -> int:
        return sum(self.live)


@dataclass(frozen=True)
class Survey:
    """Compare last night's release with tonight's live rows. work: directory for what it finds."""

    source: LiveRows
    before: ReleaseManifest
    work: str

    def start(self) -> Callable[[tuple[Placed, ...]], Surveyed]:
        return self._work

    def _work(self, units: tuple[Placed, ...]) -> Surveyed:
        store, index = self.source.store, self.before.index
        live = self.source.counts(units)
        dead, before = Dead.load(store, self.source.dead), Dead.load(store, self.before.dead)
        gone, revived = self._turned(units, dead, before)
        held = Dead.load(store, self.before.tombstones).addresses
        tombstones = Dead(np.union1d(held, gone[ordinal_of(gone) < index.base_ordinals]))
        unusable, stale = self._small_files(units, dead)
        return Surveyed(
            live=live,
            gone=write_addresses(store, gone, f"{self.work}/gone"),
            revived=revived,
            delta=sum(
                count
                for placed, count in zip(units, live, strict=True)
                if placed.ordinal >= index.base_ordinals
            ),
            tombstones=tombstones.store_in(store, "indexes/tombstones"),
            dead_queries=stale,
            unusable=unusable,
        )

    def _turned(self, units: Sequence[Placed], dead: Dead, before: Dead) -> tuple[np.ndarray, int]:
        """(addresses that died, ascending; how many came to life).

        Units without a change cost one comparison.
        """
        there, gone, revived = {placed.ordinal for placed in units}, [np.zeros(0, dtype=np.int64)], 0
        for placed in placed_in(self.before):
            were, are = before.rows_of(placed.ordinal), dead.rows_of(placed.ordinal)
            if placed.ordinal in there and np.array_equal(were, are):
                continue
            rows = placed_rows(placed)
            was_dead = np.isin(row_of(rows), were)
            is_dead = np.isin(row_of(rows), are) | (placed.ordinal not in there)
            gone.append(rows[is_dead & ~was_dead])
            revived += int((was_dead & ~is_dead).sum())
        return np.concatenate(gone), revived

    def _small_files(self, units: Sequence[Placed], dead: Dead) -> tuple[str, float]:
        """(why last night's training, queries, truth or ids cannot be used, empty where they can; share of
        its queries that are not live).
        """
        from pipeline.flows.index.tasks import load_queries, load_truth
        from pipeline.index.ids import ids_schema

        store, index = self.source.store, self.before.index
        assert index.trained is not None
        assert index.queries is not None
        assert index.truth is not None
        try:
            index.trained.local(store)
            load_truth(store, index.truth)
            asked = load_queries(store, index.queries).addresses
            was = ids_schema(self.before.ids[0].local(store))
        except (FileNotFoundError, DataError) as error:
            return str(error), 0.0
        new = [placed for placed in units if placed.ordinal >= self.before.next_ordinal]
        is_ = next(self.source.ids(new[:1])).schema if new else was
        if not is_.equals(was):
            return (
                (
                    f"ids have the columns {', '.join(was.names)}, new rows {', '.join(is_.names)}, or of "
                    "other types"
                ),
                0.0,
            )
        there = np.array(sorted(placed.ordinal for placed in units), dtype=np.int64)
        return "", float((dead.holds(asked) | ~np.isin(ordinal_of(asked), there)).mean())
