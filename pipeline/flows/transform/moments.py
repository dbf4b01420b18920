"""Compute the moments of the live rows, and of a sample of them, by separate tasks.

The moments of each unit's live rows are merged in a tree. Its shape depends only on the number of
units, so the result has the same bits on any cluster. The moments of a unit's live rows are stored, so that
later nights with the same dead rows do not read its vectors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from pipeline.errors import DataError
from pipeline.flows.context import FlowContext, map_in_order
from pipeline.flows.rows import LiveRows, row_addresses
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.stats.moments import MAX_REMOVED, MERGE_GROUP, Moments, merge_tree
from pipeline.store.files.base import in_threads
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.write_once import store_by_content
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.rows.address import row_of
from pipeline.store.rows.schema import vectors_at

_MIN_ROWS = 10  # least number of rows, including those that are held out
# Rows to hold out, but at most a fifth of all. The standard error of their mean log-likelihood is a hundredth
# of its standard deviation.
_MAX_HELD_OUT = 10_000
# The moments without dead rows are stored if the unit is at least this many times larger: a few rows are
# read as fast as their moments. 32,768 rows of 384 dimensions take 85 times the space of their moments.
_MIN_RATIO = 8
_READERS = 4  # units read concurrently: 200 MB at d = 384


class UnitToMerge(NamedTuple):
    """A unit whose moments are merged."""

    unit: VectorUnit
    known: FileRef | None
    """file of the moments of its live rows in the previous release; None if that release has no such file"""


class MergedMoments(NamedTuple):
    """The moments of the live rows of several units."""

    merged: FileRef
    """file of the moments of all these rows"""
    live: tuple[FileRef | None, ...]
    """for each unit with dead rows the file of the moments of its live rows. None for units without dead
    rows, without live rows, or so small that no file is stored"""


def live_moments(
    context: FlowContext,
    source: LiveRows,
    units: Sequence[VectorUnit],
    previous: ReleaseManifest | None = None,
) -> tuple[Moments, tuple[FileRef | None, ...]]:
    """Compute the moments of the live rows of `units`, with the same bits on any cluster.

    Args:
        previous: the previous release. Vectors are read only from units whose dead rows differ from those in
            that release.

    Returns:
        The moments, and `MergedMoments.live` of all units.

    Raises:
        DataError: there are no rows.
    """
    known = {unit.ordinal: unit.live_moments for unit in previous.units} if previous else {}
    items = [UnitToMerge(unit, known.get(unit.ordinal)) for unit in units]
    groups = [tuple(items[start : start + MERGE_GROUP]) for start in range(0, len(items), MERGE_GROUP)]
    task = MergeMoments(source)
    if len(groups) == 1:  # about two million rows: their dead rows are read faster than a worker starts
        results: tuple[MergedMoments, ...] = (task.work(groups[0]),)
    else:
        results = map_in_order(context, task, groups)
    moments = merge_tree(_load_in_threads(source, [result.merged for result in results]))
    return moments, tuple(file for result in results for file in result.live)


def held_out_moments(
    context: FlowContext, source: LiveRows, units: tuple[VectorUnit, ...], rows: int
) -> Moments:
    """Return the moments of a sample of at most a fifth of the live rows, to hold out.

    Args:
        rows: number of live rows.

    Raises:
        DataError: too few rows.
    """
    if rows < _MIN_ROWS:
        raise DataError(
            "whiten.k=likelihood",
            f"at least {_MIN_ROWS} rows, some of them to hold out",
            f"{rows}",
            "name a number, or give more text",
        )
    task = HeldOutMoments(source, min(_MAX_HELD_OUT, rows // 5))
    return _load(source, context.workers.run(task, units, Pool(1)))


def _load(source: LiveRows, file: FileRef) -> Moments:
    return Moments.from_bytes(file.read(source.store))


def _load_in_threads(source: LiveRows, files: Sequence[FileRef]) -> Iterator[Moments]:
    """Yield the moments in the order of the files, a few of which are read concurrently."""
    for start in range(0, len(files), _READERS):
        yield from in_threads(lambda file: _load(source, file), files[start : start + _READERS], _READERS)


def _store(source: LiveRows, moments: Moments, name: str) -> FileRef:
    content = moments.to_bytes()
    return store_by_content(source.store, content, _stem(source, name), ".safetensors", rows=moments.count)


def _stem(source: LiveRows, name: str) -> str:
    return f"moments/{source.space_id[:16]}/{name}"


@dataclass(frozen=True)
class HeldOutMoments(PlainTask[tuple[VectorUnit, ...], FileRef]):
    """Compute and store the moments of `count` live rows, sampled by hash of id."""

    source: LiveRows
    count: int

    def work(self, units: tuple[VectorUnit, ...]) -> FileRef:
        return _store(self.source, Moments.of(self.source.sample(units, self.count, "held out")[1]), "held")


@dataclass(frozen=True)
class MergeMoments(PlainTask[tuple[UnitToMerge, ...], MergedMoments]):
    """Merge and store the moments of the live rows of a group of units."""

    source: LiveRows

    def work(self, units: tuple[UnitToMerge, ...]) -> MergedMoments:
        files = list[FileRef | None]()

        def parts() -> Iterator[Moments]:
            for moments, file in self._unit_moments(units):
                files.append(file)
                if moments is not None:
                    yield moments

        merged = merge_tree(parts())
        return MergedMoments(_store(self.source, merged, "merged"), tuple(files))

    def _unit_moments(self, units: Sequence[UnitToMerge]) -> Iterator["_UnitMoments"]:
        """Yield the moments of the live rows of each unit, in order."""
        dead = DeadRows(self.source.store, self.source.dead)
        for start in range(0, len(units), _READERS):
            group = units[start : start + _READERS]
            masks = [np.isin(row_of(row_addresses(unit)), dead.rows_of(unit.ordinal)) for unit, _ in group]
            items = zip(group, masks, strict=True)
            yield from in_threads(lambda item: self._of_unit(*item), items, _READERS)

    def _of_unit(self, item: UnitToMerge, is_dead: np.ndarray) -> "_UnitMoments":
        """Return the moments of a unit's live rows.

        Args:
            is_dead: (n,) bool for the unit's n vectors.
        """
        if is_dead.all():
            return _UnitMoments(None, None)
        if not is_dead.any():
            return _UnitMoments(_load(self.source, _own_moments(item.unit)), None)
        return self._without_dead(item, is_dead)

    def _without_dead(self, item: UnitToMerge, is_dead: np.ndarray) -> "_UnitMoments":
        """Load the moments from the previous release if the dead rows were the same, else compute them."""
        unit, known = item
        dead_digest = sha256(np.flatnonzero(is_dead).astype("<i8").tobytes()).hexdigest()
        name = f"{unit.sha256[:24]}-without-{dead_digest[:24]}"
        if known is not None and known.path.startswith(f"{_stem(self.source, name)}-"):
            try:
                return _UnitMoments(_load(self.source, known), known)
            except FileNotFoundError:  # computed again, and stored under the same name
                pass
        own = _own_moments(unit)
        moments = self._compute(unit, _load(self.source, own), is_dead)
        worthwhile = unit.bytes >= _MIN_RATIO * own.bytes
        return _UnitMoments(moments, _store(self.source, moments, name) if worthwhile else None)

    def _compute(self, unit: VectorUnit, own: Moments, is_dead: np.ndarray) -> Moments:
        """Compute the moments of the live rows, by reading either the dead or the live rows.

        Args:
            own: moments of all the unit's vectors.
        """
        if is_dead.sum() <= MAX_REMOVED * len(is_dead):
            return own.without(Moments.of(vectors_at(self.source.open(unit), np.flatnonzero(is_dead))))
        return merge_tree(Moments.of(vectors) for _, vectors in self.source.batches([unit]))


class _UnitMoments(NamedTuple):
    """The moments of the live rows of one unit."""

    moments: Moments | None
    """None if all rows are dead"""
    file: FileRef | None
    """the entry of `MergedMoments.live`"""


def _own_moments(unit: VectorUnit) -> FileRef:
    """Return the file of the moments of all the unit's vectors."""
    if unit.moments is None:
        raise DataError(
            unit.path,
            "a record that names the unit's moments",
            "none",
            "delete the unit's record, and it is encoded again",
        )
    return unit.moments
