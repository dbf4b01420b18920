"""Changes since last night, as the index needs them: removed and new rows, and the state of small files."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import DataError
from pipeline.flows.index.records import load_queries, load_truth
from pipeline.flows.rows import LiveRows, PlacedUnit, placed_units, row_addresses
from pipeline.flows.workers.tasks import PlainTask
from pipeline.store.address import ordinal_of, row_of
from pipeline.store.dead import Dead, write_addresses
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.stored import FileRef, Stored


class Surveyed(Stored):
    """Results of a survey. Rows are those with a vector."""

    live: tuple[int, ...]
    """number of live rows of each unit"""
    gone: FileRef
    """addresses that were live last night and are dead now"""
    revived: int
    """number of rows that were dead last night and are live now"""
    delta: int
    """number of live rows of units that are not in the first part"""
    tombstones: FileRef | None
    """dead rows of the first part, if it is kept as it is"""
    dead_queries: float
    """proportion of the queries whose own row is not live"""
    unusable: str = ""

    @property
    def rows(self) -> int:
        """Number of live rows."""
        return sum(self.live)

    @property
    def tombstone_rows(self) -> int:
        """Number of tombstones."""
        return self.tombstones.rows if self.tombstones else 0


@dataclass(frozen=True)
class Survey(PlainTask[tuple[PlacedUnit, ...], Surveyed]):
    """Compare last night's release with tonight's live rows.

    Attributes:
        folder: directory for the results.
    """

    source: LiveRows
    before: ReleaseManifest
    folder: str

    def work(self, units: tuple[PlacedUnit, ...]) -> Surveyed:
        store, base_ordinals = self.source.store, self.before.index.base_ordinals
        live = self.source.counts(units)
        gone, revived = self._died_and_revived(units)
        held = Dead.load(store, self.before.tombstones).addresses
        tombstones = Dead(np.union1d(held, gone[ordinal_of(gone) < base_ordinals]))
        unusable, dead_queries = self._small_files(units)
        return Surveyed(
            live=live,
            gone=write_addresses(store, gone, f"{self.folder}/gone"),
            revived=revived,
            delta=sum(
                count for placed, count in zip(units, live, strict=True) if placed.ordinal >= base_ordinals
            ),
            tombstones=tombstones.store_in(store, "indexes/tombstones"),
            dead_queries=dead_queries,
            unusable=unusable,
        )

    def _died_and_revived(self, units: Sequence[PlacedUnit]) -> tuple[np.ndarray, int]:
        """Return the addresses that died, ascending, and the number of rows that were revived.

        A unit without a change costs one comparison.
        """
        dead, before = (Dead.load(self.source.store, each) for each in (self.source.dead, self.before.dead))
        ordinals, gone, revived = {placed.ordinal for placed in units}, [np.zeros(0, dtype=np.int64)], 0
        for placed in placed_units(self.before):
            then, now = before.rows_of(placed.ordinal), dead.rows_of(placed.ordinal)
            if placed.ordinal in ordinals and np.array_equal(then, now):
                continue
            addresses = row_addresses(placed)
            was_dead = np.isin(row_of(addresses), then)
            is_dead = np.isin(row_of(addresses), now) | (placed.ordinal not in ordinals)
            gone.append(addresses[is_dead & ~was_dead])
            revived += int((was_dead & ~is_dead).sum())
        return np.concatenate(gone), revived

    def _small_files(self, units: Sequence[PlacedUnit]) -> tuple[str, float]:
        """Check last night's training, queries, exact neighbours and ids.

        Returns:
            The reason why they cannot be used, or an empty string; and the proportion of dead queries.
        """
        from pipeline.index.ids import ids_schema

        store, index = self.source.store, self.before.index
        assert index.trained is not None
        assert index.queries is not None
        assert index.truth is not None
        try:
            index.trained.local(store)
            load_truth(store, index.truth)
            queries = load_queries(store, index.queries).addresses
            then = ids_schema(self.before.ids[0].local(store))
        except (FileNotFoundError, DataError) as error:
            return str(error), 0.0
        new = [placed for placed in units if placed.ordinal >= self.before.next_ordinal]
        if new and not (now := next(self.source.ids(new[:1])).schema).equals(then):
            names = ", ".join(then.names), ", ".join(now.names)
            return f"ids have the columns {names[0]}, new rows {names[1]}, or of other types", 0.0
        return "", float((~self.source.holds(units, queries)).mean())
