"""Select the rows of an index that a filter lets pass, and prepare them for searching."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import DataError
from pipeline.index.files.parts import Parts
from pipeline.index.files.unit_vectors import MAX_READ_BYTES, UnitVectors
from pipeline.index.filter.address_set import AddressSet
from pipeline.index.filter.selected_rows import RowBlock, locate, stored_vectors
from pipeline.index.structure import is_exact, nlist_of, transforms_of
from pipeline.log import announce

# Largest number of passing rows that are searched exactly. Their vectors, 15 MB at 384 dimensions, are
# compared with a query in 0.3 ms on one thread.
EXACT_ROWS = 10_000


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
    """their addresses"""
    part_rows: np.ndarray
    """(p,) number of them in each part"""
    list_rows: np.ndarray
    """(nlist,) number of them in each inverted list, all parts together; (0,) without lists"""
    list_sizes: np.ndarray
    """(nlist,) number of all rows in each list"""
    exact: ExactRows | None
    """their vectors, if they are few; None: search the index"""

    @property
    def rows(self) -> int:
        """Number of selected rows."""
        return int(self.part_rows.sum())


def select(parts: Parts, members: AddressSet, units: UnitVectors) -> SelectedRows:
    """Find the rows of `members` in an index, and read their vectors if they are few.

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


def to_space_of(index: Any, vectors: np.ndarray) -> np.ndarray:
    """Return raw vectors (n, d) as the index compares them: after all of its transforms."""
    for transform in transforms_of(index):
        vectors = transform.apply(np.ascontiguousarray(vectors, dtype=np.float32))
    return np.ascontiguousarray(vectors, dtype=np.float32)
