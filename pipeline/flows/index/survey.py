"""A survey before an index is extended: rows that died or revived, and whether the old files are usable."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.errors import DataError
from pipeline.flows.index.records import load_queries, load_truth
from pipeline.flows.rows import LiveRows, row_addresses, units_by_ordinal
from pipeline.flows.workers.tasks import PlainTask
from pipeline.store.records.dead import DeadRows, write_address_pieces
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.rows.address import row_of, to_addresses


class SurveyResult(Stored):
    """Result of a survey. Only rows with a vector are counted."""

    live: tuple[int, ...]
    """number of live rows of each unit"""
    gone: FileRef | None
    """addresses of the rows that were live last night and are dead now; None without such rows"""
    revived: int
    """number of rows that were dead last night and are live now"""
    delta: int
    """number of live rows of units that are not in the base, the first part of the index"""
    tombstones: FileRef | None
    """addresses of the dead rows of the base, for an index whose base is not changed"""
    dead_queries: float
    """proportion of the queries whose row in the corpus is not live"""
    unusable: str | None = None
    """reason why last night's files cannot be extended; None if they can"""

    @property
    def rows(self) -> int:
        """Number of live rows."""
        return sum(self.live)

    @property
    def gone_rows(self) -> int:
        """Number of rows that died since last night."""
        return self.gone.rows if self.gone else 0

    @property
    def tombstone_rows(self) -> int:
        """Number of dead rows in the base."""
        return self.tombstones.rows if self.tombstones else 0


@dataclass(frozen=True)
class Survey(PlainTask[tuple[VectorUnit, ...], SurveyResult]):
    """Compare the previous release with tonight's live rows."""

    source: LiveRows
    """tonight's live rows"""
    previous: ReleaseManifest
    """the previous release"""
    folder: str
    """directory of the result's files"""

    def work(self, units: tuple[VectorUnit, ...]) -> SurveyResult:
        store, base_ordinals = self.source.store, self.previous.index.base_ordinals
        live = self.source.counts(units)
        delta = sum(count for unit, count in zip(units, live, strict=True) if unit.ordinal >= base_ordinals)
        revived = 0

        def died() -> Iterator[np.ndarray]:
            nonlocal revived
            for addresses, returned in self._died_and_revived(units):
                revived += returned
                yield addresses

        with store.scratch() as scratch:
            gone = write_address_pieces(store, scratch, died(), f"{self.folder}/gone")
            pieces = self._tombstones_of_units(gone)
            tombstones = write_address_pieces(store, scratch, pieces, "indexes/tombstones")
        unusable, dead_queries = self._check_small_files(units)
        return SurveyResult(
            live=live,
            gone=gone,
            revived=revived,
            delta=delta,
            tombstones=tombstones,
            dead_queries=dead_queries,
            unusable=unusable,
        )

    def _died_and_revived(self, units: Sequence[VectorUnit]) -> Iterator[tuple[np.ndarray, int]]:
        """Yield, unit by unit, the addresses of rows that died and the number of rows that are live again."""
        dead, old_dead = (
            DeadRows(self.source.store, each) for each in (self.source.dead, self.previous.dead)
        )
        ordinals = {unit.ordinal for unit in units}
        for unit in units_by_ordinal(self.previous):
            then, now = old_dead.rows_of(unit.ordinal), dead.rows_of(unit.ordinal)
            if unit.ordinal in ordinals:
                died, returned = (
                    np.setdiff1d(np.setdiff1d(*rows), unit.dropped) for rows in ((now, then), (then, now))
                )
                yield to_addresses(unit.ordinal, died), len(returned)
            else:
                addresses = row_addresses(unit)
                yield addresses[~np.isin(row_of(addresses), then)], 0

    def _tombstones_of_units(self, gone: FileRef | None) -> Iterator[np.ndarray]:
        """Yield the addresses of the dead rows of the base, unit by unit: old ones and those in `gone`."""
        files = (self.previous.tombstones, gone)
        old, new = (DeadRows(self.source.store, file) for file in files)
        for ordinal in range(self.previous.index.base_ordinals if any(files) else 0):
            yield np.union1d(old.between(ordinal, ordinal + 1), new.between(ordinal, ordinal + 1))

    def _check_small_files(self, units: Sequence[VectorUnit]) -> tuple[str | None, float]:
        """Check last night's training, queries, exact neighbours and ids.

        Returns:
            The reason why they cannot be used, None if they can; and the proportion of dead queries.
        """
        from pipeline.index.files.ids import ids_schema

        store, index = self.source.store, self.previous.index
        assert index.trained is not None
        assert index.queries is not None
        assert index.truth is not None
        try:
            index.trained.local(store)
            load_truth(store, index.truth)
            queries = load_queries(store, index.queries)
            old_schema = ids_schema(self.previous.ids[0].local(store))
        except (FileNotFoundError, DataError) as error:
            return str(error), 0.0
        new = [unit for unit in units if unit.ordinal >= self.previous.next_ordinal]
        if new and not (new_schema := next(self.source.ids(new[:1])).schema).equals(old_schema):
            old_columns, new_columns = _described(old_schema), _described(new_schema)
            return f"the columns of the ids changed: old rows have {old_columns}, new rows {new_columns}", 0.0
        return None, float((~self.source.holds(units, queries[~queries.of_users].addresses)).mean())


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)
