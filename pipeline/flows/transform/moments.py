"""Moments of the live rows, and of a sample of them.

The moments of the units, less their dead rows, are merged as a tree of fixed shape in the order of the units.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import DataError
from pipeline.flows.rows import LiveRows, PlacedUnit, row_addresses, vectors_at
from pipeline.flows.run import Run
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.stats.moments import MAX_REMOVED, MERGE_GROUP, Moments, merge_tree
from pipeline.store.address import row_of
from pipeline.store.dead import Dead
from pipeline.store.once import stored_by_content
from pipeline.store.stored import FileRef

_LEAST_ROWS = 10  # to hold some out
# at most that many, and a fifth: their mean log-likelihood is known to a hundredth of its standard deviation
_HELD_ROWS = 10_000


def live_moments(run: Run, source: LiveRows, units: Sequence[PlacedUnit]) -> Moments:
    """Return the moments of the live rows of `units`, with the same bits on any cluster.

    Raises:
        DataError: there are no rows.
    """
    groups = [tuple(units[start : start + MERGE_GROUP]) for start in range(0, len(units), MERGE_GROUP)]
    task = MergeMoments(source)
    if len(groups) == 1:  # about two million rows: their dead rows are read faster than a worker starts
        return _load(source, task.start()(groups[0]))
    pool = Pool(run.workers.index_workers(run.job.cluster, len(groups)))
    made = dict(run.workers.map_units(task, groups, pool))
    return merge_tree(_load(source, made[number]) for number in range(len(groups)))


def held_moments(run: Run, source: LiveRows, units: tuple[PlacedUnit, ...], rows: int) -> Moments:
    """Return the moments of at most a fifth of the `rows` live rows, to hold out.

    Raises:
        DataError: too few rows.
    """
    if rows < _LEAST_ROWS:
        raise DataError(
            "whiten.k=likelihood",
            f"at least {_LEAST_ROWS} rows, some of them to hold out",
            f"{rows}",
            "name a number, or give more text",
        )
    task = HeldMoments(source, min(_HELD_ROWS, rows // 5))
    return _load(source, run.workers.run(task, units, Pool(1)))


def _load(source: LiveRows, file: FileRef) -> Moments:
    return Moments.from_bytes(file.read(source.store))


def _store(source: LiveRows, moments: Moments, name: str) -> FileRef:
    stem = f"moments/{source.space_id[:16]}/{name}"
    return stored_by_content(source.store, moments.to_bytes(), stem, ".safetensors", rows=moments.count)


@dataclass(frozen=True)
class HeldMoments(PlainTask[tuple[PlacedUnit, ...], FileRef]):
    """Compute the moments of `count` live rows, chosen by hash of id, as a file."""

    source: LiveRows
    count: int

    def work(self, units: tuple[PlacedUnit, ...]) -> FileRef:
        return _store(self.source, Moments.of(self.source.sample(units, self.count, "held out")[1]), "held")


@dataclass(frozen=True)
class MergeMoments(PlainTask[tuple[PlacedUnit, ...], FileRef]):
    """Merge the moments of a group of units into one partial result, in a file named by its content."""

    source: LiveRows

    def work(self, units: tuple[PlacedUnit, ...]) -> FileRef:
        dead = Dead.load(self.source.store, self.source.dead)
        return _store(self.source, merge_tree(self._parts(units, dead)), "merged")

    def _parts(self, units: Sequence[PlacedUnit], dead: Dead) -> Iterator[Moments]:
        for placed in units:
            if placed.unit.rows:
                yield self._of_unit(
                    placed, np.isin(row_of(row_addresses(placed)), dead.rows_of(placed.ordinal))
                )

    def _of_unit(self, placed: PlacedUnit, gone: np.ndarray) -> Moments:
        """Return the moments of the rows that are not `gone`, a mask over the unit's vectors."""
        reference = placed.unit.moments
        if reference is None:
            raise DataError(
                placed.unit.path,
                "a record that names the unit's moments",
                "none",
                "delete the unit's record, and it is encoded again",
            )
        own = _load(self.source, reference)
        if not gone.any():
            return own
        if gone.sum() <= MAX_REMOVED * len(gone):
            return own.without(Moments.of(vectors_at(self.source.open(placed), np.flatnonzero(gone))))
        return merge_tree(Moments.of(vectors) for _, vectors in self.source.batches([placed]))
