"""Select the rows of an index that a filter lets pass, and prepare them for searching."""

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from pipeline.errors import DataError
from pipeline.index.files.ids import Ids
from pipeline.index.files.parts import Parts
from pipeline.index.files.unit_vectors import MAX_READ_BYTES, UnitVectors
from pipeline.index.filter.address_set import AddressSet
from pipeline.index.library import faiss
from pipeline.index.refine import id_map_of
from pipeline.index.structure import is_exact, ivf_of, nlist_of, to_space_of, unwrap
from pipeline.log import announce
from pipeline.where.evaluate import And
from pipeline.where.parse import parse_where

# Largest number of passing rows that are searched exactly. Their vectors, 15 MB at 384 dimensions, are
# compared with a query in 0.3 ms on one thread.
EXACT_ROWS = 10_000

_BLOCK_ROWS = 1 << 16  # rows whose addresses are looked up at once, in an index without lists

# Number of filters whose rows are kept: up to 15 MB of vectors each, at 384 dimensions, and a bit per row.
_MAX_KEPT = 16
_ADDRESS_SPACE = 1 << 17  # units, for all kept filters: half of the 2^47 bytes that a process may map


class RowBlock(NamedTuple):
    """Some rows of an index."""

    list_number: int
    """their inverted list; -1 without lists"""
    positions: np.ndarray
    """(n,) int64, offsets in the list; if there is an id map, numbers in the order of adding"""
    addresses: np.ndarray
    """(n,) int64"""


def locate(index: Any, members: AddressSet) -> Iterator[RowBlock]:
    """Yield the rows of an index whose addresses are in a set, list by list."""
    id_map, ivf = id_map_of(index), ivf_of(index)
    mapped = None if id_map is None else faiss.rev_swig_ptr(id_map.id_map.data(), index.ntotal)
    if ivf is None:
        assert mapped is not None
        for start in range(0, index.ntotal, _BLOCK_ROWS):
            addresses = mapped[start : start + _BLOCK_ROWS]
            offsets = np.flatnonzero(members.contains(addresses))
            yield RowBlock(-1, start + offsets, addresses[offsets])
        return
    for number in range(ivf.nlist):
        if not (size := ivf.invlists.list_size(number)):
            continue
        ids = ivf.invlists.get_ids(number)
        stored = faiss.rev_swig_ptr(ids, size)
        addresses = stored if mapped is None else mapped[stored]
        offsets = np.flatnonzero(members.contains(addresses))
        yield RowBlock(number, offsets if mapped is None else stored[offsets], addresses[offsets])
        ivf.invlists.release_ids(number, ids)


def stored_vectors(index: Any, block: RowBlock) -> np.ndarray:
    """Return the transformed vectors (n, d) float32 of rows, from an index that does not compress vectors.

    Such an index has no refinement, so positions in a list are offsets.
    """
    ann = unwrap(index)
    if block.list_number < 0:
        return np.asarray(ann.reconstruct_batch(block.positions))
    vectors = np.empty((len(block.positions), ann.d), dtype=np.float32)
    for row, offset in enumerate(block.positions.tolist()):
        ann.reconstruct_from_offset(block.list_number, offset, faiss.swig_ptr(vectors[row]))
    return vectors


@dataclass(frozen=True, eq=False)
class ExactRows:
    """Vectors of selected rows in the space of the index."""

    addresses: np.ndarray
    """(n,) int64, ascending"""
    vectors: np.ndarray
    """(n, d) float32"""


@dataclass(frozen=True, eq=False)
class SelectedRows:
    """The live rows of an index that a filter lets pass. Threads may share an object."""

    members: AddressSet
    """addresses of the selected rows"""
    part_rows: np.ndarray
    """(p,) number of selected rows in each part"""
    list_rows: np.ndarray
    """(nlist,) number of selected rows in each inverted list, all parts together; (0,) without lists"""
    list_sizes: np.ndarray
    """(nlist,) number of all rows in each list"""
    exact: ExactRows | None
    """vectors of the selected rows, if these are few; None: search the index"""

    @property
    def rows(self) -> int:
        """Number of selected rows."""
        return int(self.part_rows.sum())


def select(parts: Parts, members: AddressSet, units: UnitVectors) -> SelectedRows:
    """Find which rows of `members` are in an index, and read their vectors if they are few.

    Args:
        members: addresses of passing rows; those that are not in the index are ignored, and tombstones are
            removed.
        units: raw vectors, for an index that compresses them.
    """
    members.remove(parts.tombstones)
    part_rows = np.zeros(len(parts.indexes), dtype=np.int64)
    list_rows = np.zeros(nlist_of(parts.base), dtype=np.int64)
    few: list[tuple[Any, RowBlock]] = []
    for number, part in enumerate(parts.indexes):
        for block in locate(part, members):
            part_rows[number] += len(block.addresses)
            if block.list_number >= 0:
                list_rows[block.list_number] += len(block.addresses)
            if part_rows.sum() <= EXACT_ROWS and len(block.addresses):
                few.append((part, block))
    exact = _exact_rows(few, units) if part_rows.sum() <= EXACT_ROWS else None
    return SelectedRows(members, part_rows, list_rows, parts.list_sizes().astype(np.int64), exact)


def _exact_rows(blocks: Iterable[tuple[Any, RowBlock]], units: UnitVectors) -> ExactRows | None:
    """Return the vectors of rows: from an index that does not compress them, else from the units.

    Returns None if reading the units costs too much, or one of them is missing.
    """
    blocks = list(blocks)
    if not blocks:
        return ExactRows(np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32))
    part, _ = blocks[0]
    addresses = np.concatenate([block.addresses for _, block in blocks])
    order = np.argsort(addresses)
    if is_exact(part):
        vectors = np.concatenate([stored_vectors(part, block) for part, block in blocks])
        return ExactRows(addresses[order], vectors[order])
    raw = _raw_vectors(addresses[order], units)
    return None if raw is None else ExactRows(addresses[order], to_space_of(part, raw))


def _raw_vectors(addresses: np.ndarray, units: UnitVectors) -> np.ndarray | None:
    """Return raw vectors from the units; None if there are too many units, or one cannot be read."""
    size = units.read_bytes(addresses)
    if size is None or size > MAX_READ_BYTES:
        return None
    try:
        return units.take(addresses)
    except DataError as error:
        announce(f"answers are scored by the compressed vectors of the index: {error}")
        return None


class Filters:
    """The rows that filters select from one release. Threads may share an object."""

    def __init__(self, ids: Ids, parts: Parts, units: UnitVectors) -> None:
        self._ids, self._parts, self._units = ids, parts, units
        self._limits: tuple[str, ...] = ()
        self._kept: OrderedDict[tuple[str | None, ...], SelectedRows] = OrderedDict()
        self._lock = threading.Lock()

    def within(self, where: str) -> Self:
        """Return filters that select only rows that also pass `where`. They share the rows that are kept.

        Raises:
            ConfigError: the filter is invalid.
        """
        parse_where(where, self._ids.schema)
        limited = copy.copy(self)
        limited._limits = (*self._limits, where)
        return limited

    @property
    def are_limited(self) -> bool:
        """True if only some rows can be selected; see `within`."""
        return bool(self._limits)

    def allowed(self, addresses: np.ndarray) -> np.ndarray:
        """Return a mask (n,) of addresses (n,): True for those that can be selected; see `within`."""
        if not self.are_limited:
            return np.ones(len(addresses), dtype=bool)
        return self.select(None).members.contains(addresses)

    def select(self, where: str | None, proceed: Callable[[], None] = lambda: None) -> SelectedRows:
        """Return the rows that a filter lets pass. A filter is evaluated once, unless many other filters are
        used in between.

        Args:
            where: the filter; None selects all rows to which `within` limits these filters.
            proceed: called often while the filter is evaluated; may raise an error to stop the evaluation.

        Raises:
            ConfigError: the filter is invalid.
        """
        with self._lock:
            key = (*self._limits, where)
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return kept
        selection = self.evaluate(where, proceed)
        with self._lock:
            self._kept[key] = selection
            while len(self._kept) > max(1, min(_MAX_KEPT, _ADDRESS_SPACE // self._ids.next_ordinal)):
                self._kept.popitem(last=False)
        return selection

    def evaluate(self, where: str | None, proceed: Callable[[], None] = lambda: None) -> SelectedRows:
        """Return the rows that a filter lets pass, without keeping them for the next search."""
        given = self._limits if where is None else (*self._limits, where)
        # each is parsed by itself and the conditions are joined, so that no text can end another condition
        conditions = tuple(parse_where(each, self._ids.schema) for each in given)
        condition = conditions[0] if len(conditions) == 1 else And(conditions)
        members = AddressSet(self._ids.next_ordinal)
        for addresses in self._ids.matching(condition, proceed):
            members.add(addresses)
        return select(self._parts, members, self._units)
