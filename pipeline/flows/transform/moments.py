"""Moments of the live rows: those of each unit, less its dead rows, merged as a fixed tree in unit order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import DataError
from pipeline.flows.rows import LiveRows, Placed, placed_rows, vectors_at
from pipeline.flows.run import Run
from pipeline.flows.workers.tasks import Pool
from pipeline.stats.moments import GROUP, MOST_DEAD, Moments, merge_tree
from pipeline.store.dead import Dead
from pipeline.store.once import stored_by_content
from pipeline.store.units import FileRef


def live_moments(run: Run, source: LiveRows, units: Sequence[Placed]) -> Moments:
    """Return the moments of the live rows of `units`, with the same bits on any cluster.

    DataError without rows.
    """
    groups = [tuple(units[start : start + GROUP]) for start in range(0, len(units), GROUP)]
    task = MergeMoments(source)
    if len(groups) == 1:  # about two million rows: their dead rows are read faster than a worker starts
        return _loaded(source, task.start()(groups[0]))
    pool = Pool(run.workers.index_workers(run.job.cluster, len(groups)))
    made = dict(run.workers.map_units(task, groups, pool))
    return merge_tree(_loaded(source, made[number]) for number in range(len(groups)))


def _loaded(source: LiveRows, reference: FileRef) -> Moments:
    return Moments.from_bytes(reference.read(source.store))


@dataclass(frozen=True)
class MergeMoments:
    """Merge the moments of a group of units into one partial result, in a file named by its content."""

    source: LiveRows

    def start(self) -> Callable[[tuple[Placed, ...]], FileRef]:
        return self._work

    def _work(self, units: tuple[Placed, ...]) -> FileRef:
        dead = Dead.load(self.source.store, self.source.dead)
        merged = merge_tree(self._parts(units, dead))
        stem = f"moments/{self.source.space_id[:16]}/merged"
        return stored_by_content(
            self.source.store, merged.to_bytes(), stem, ".safetensors", rows=merged.count
        )

    def _parts(self, units: Sequence[Placed], dead: Dead) -> Iterator[Moments]:
        for placed in units:
            if placed.unit.rows:
                yield self._of_unit(
                    placed, np.isin(placed_rows(placed) & 0xFFFFFFFF, dead.rows_of(placed.ordinal))
                )

    def _of_unit(self, placed: Placed, gone: np.ndarray) -> Moments:
        """Return the moments of the rows that are not `gone`, a mask over the unit's vectors."""
        reference = placed.unit.moments
        if reference is None:
            raise DataError(
                placed.unit.path,
                "a record that names the unit's moments",
                "none",
                "delete the unit's record, and it is encoded again",
            )
        own = _loaded(self.source, reference)
        if not gone.any():
            return own
        if gone.sum() <= MOST_DEAD * len(gone):
            return own.without(Moments.of(vectors_at(self.source.open(placed), np.flatnonzero(gone))))
        return merge_tree(Moments.of(vectors) for _, vectors in self.source.batches([placed]))
