"""Compare candidate pairs of near-duplicates by transformed vectors, and group them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.config import digest_of
from pipeline.index.files.parts import Parts
from pipeline.index.files.unit_vectors import UnitVectors
from pipeline.index.search.near_duplicates import DuplicateGroups, Pairs, cosines_of, group_pairs
from pipeline.index.structure import to_space_of
from pipeline.store.files.base import Store
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.rows.address import ordinal_of

ROUNDING = 1e-6  # the cosine of a float32 vector with itself may be this much below 1


@dataclass(frozen=True)
class DuplicateSearch:
    """A search for near-duplicates."""

    store: Store
    """store of the release"""
    manifest: ReleaseManifest
    """the searched release"""
    threshold: float
    """least cosine of a pair, as a search of the release scores it"""

    @property
    def folder(self) -> str:
        """Folder of the results, which depends on release and threshold."""
        digest = digest_of({"release": self.manifest.id, "threshold": self.threshold})
        return f"duplicates/{self.manifest.release:08d}-{digest[:12]}"


class ComparedRows(NamedTuple):
    """Rows with near-duplicates."""

    addresses: np.ndarray
    """(n,) int64 of all compared rows, ascending"""
    pairs: Pairs
    """addresses of the pairs whose cosine, apart from rounding, is at least the threshold"""
    cosines: np.ndarray
    """(p,) float32, cosines of the pairs"""
    groups: DuplicateGroups
    """rows of each group, as indices into `addresses`"""
    to_first: np.ndarray
    """(m,) float32, cosine of each row of `groups` with the first row of its group"""


def compare(search: DuplicateSearch, parts: Parts, candidates: Pairs) -> ComparedRows:
    """Compare candidate pairs by transformed vectors.

    Raw vectors are read once, and copied into a temporary file.
    """
    addresses = np.union1d(candidates.left, candidates.right)
    units = UnitVectors(search.store, search.manifest.units, verify=False)  # verified while searching
    dim = to_space_of(parts.base, np.zeros((1, parts.d), dtype=np.float32)).shape[1]
    with search.store.scratch() as scratch:
        shape = (max(1, len(addresses)), dim)
        vectors = np.memmap(scratch / "vectors", dtype=np.float32, mode="w+", shape=shape)
        for rows in _rows_by_unit(addresses):
            vectors[rows] = to_space_of(parts.base, units.take(addresses[rows]))
        left, right = (np.searchsorted(addresses, each) for each in candidates)
        cosines = cosines_of(vectors, left, right)
        is_near = cosines >= search.threshold - ROUNDING
        groups = group_pairs(left[is_near], right[is_near], len(addresses))
        to_first = cosines_of(vectors, groups.rows, groups.firsts)
    pairs = Pairs(candidates.left[is_near], candidates.right[is_near])
    return ComparedRows(addresses, pairs, cosines[is_near], groups, to_first)


def _rows_by_unit(addresses: np.ndarray) -> Iterator[slice]:
    """Yield the indices of each unit's addresses, which are sorted."""
    ordinals, starts = np.unique(ordinal_of(addresses), return_index=True)
    for start, end in zip(starts, [*starts[1:], len(addresses)], strict=True) if len(ordinals) else ():
        yield slice(int(start), int(end))
