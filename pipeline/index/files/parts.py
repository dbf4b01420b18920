"""An index in one part or several, searched as one.

An index has parts of its base, parts of a delta with the rows that came later, and tombstones for dead rows
that the base still holds. The parts are searched in parallel.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from pipeline.index.build.build import read_index
from pipeline.index.build.merge import count_duplicates
from pipeline.index.library import map_in_threads
from pipeline.index.measure.searched_parts import SearchedParts, best_of, query_ms
from pipeline.index.measure.truth import NO_NEIGHBOUR
from pipeline.index.search_parameters import hnsw_parameters, search_lists
from pipeline.index.structure import (
    addresses_of,
    fingerprint,
    nlist_of,
    set_index_effort,
    unwrap,
)
from pipeline.store.files.base import Store, normal_path
from pipeline.store.files.disk import temporary_folder
from pipeline.store.records.dead import Dead
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import IndexFiles

_LISTS_SUFFIX = ".ivfdata"  # suffix of the file of lists on disk, to which the index file refers
# Number of answers beyond k that are searched for, because dead rows are among them. At most 5 % of the rows
# of a base are dead. If these are spread evenly, fewer than one of 10^7 searches for ten answers finds more
# than 8 dead rows among the nearest 18.
_MIN_SPARE = 8
# efSearch divided by the number of answers. With a lower efSearch, a search of HNSW may end among the rows of
# a deleted topic and find no live row.
_EF_PER_ANSWER = 4


class Parts(SearchedParts):
    """Several faiss indexes on this machine that are searched together, without their dead rows.

    Threads may share an object.
    """

    def __init__(
        self, indexes: Sequence[Any], tombstones: np.ndarray | None = None, effort: int | None = None
    ) -> None:
        """Combine faiss indexes of the same training.

        Args:
            tombstones: (n,) int64, addresses of dead rows that the indexes hold.
            effort: search effort to set in the indexes; None: keep those that are set.
        """
        self.indexes = tuple(indexes)
        if effort is not None:
            for index in self.indexes:
                set_index_effort(index, effort)
        self._tombstones = np.zeros(0, dtype=np.int64) if tombstones is None else np.sort(tombstones)

    @property
    def tombstones(self) -> np.ndarray:
        """Addresses (n,) int64 of dead rows that the indexes hold, ascending."""
        return self._tombstones

    @property
    def ntotal(self) -> int:
        """Number of live rows."""
        return sum(part.ntotal for part in self.indexes) - len(self._tombstones)

    def search(self, vectors: np.ndarray, k: int, nprobe: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Search for the k nearest live rows. Rows with equal scores are in the order of their addresses.

        Args:
            vectors: (q, d), raw vectors of the encoder.
            nprobe: number of lists of an IVF index to visit; None: the number that is set in the index.

        Returns:
            Scores and addresses (q, k), with -inf and NO_NEIGHBOUR after the last answer. There are
            fewer columns if all parts together hold fewer than k rows.
        """
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        by_part = map_in_threads(lambda part: self._search_part(part, vectors, k, nprobe), self.indexes)
        return best_of(by_part, k)

    def search_lists(self, vectors: np.ndarray, k: int, nprobe: int) -> tuple[np.ndarray, np.ndarray]:
        """Search like `search`, but in the `nprobe` nearest lists of each query."""
        return self.search(vectors, k, nprobe)

    def addresses(self) -> Iterator[np.ndarray]:
        """Yield the addresses of all rows in blocks, dead rows included."""
        for part in self.indexes:
            yield from addresses_of(part)

    def holds(self, addresses: np.ndarray) -> np.ndarray:
        """Return a mask (n,) of `addresses` (n,): True for those in the index, dead rows included."""
        is_held = np.zeros(len(addresses), dtype=bool)
        for block in self.addresses():
            is_held |= np.isin(addresses, block)
        return is_held

    def duplicates(self) -> int:
        """Return the number of addresses that repeat another one."""
        return count_duplicates(self.addresses())[0]

    def list_sizes(self) -> np.ndarray:
        """Return the number of rows (nlist,) of each list, all parts together."""
        sizes = np.zeros(nlist_of(self.base))
        if len(sizes):
            for part in self.indexes:
                sizes += [unwrap(part).invlists.list_size(number) for number in range(len(sizes))]
        return sizes

    def fingerprints(self) -> set[str]:
        """Return the distinct fingerprints of the parts: one if they have the same training."""
        return {fingerprint(part) for part in self.indexes}

    def query_ms(self, vectors: np.ndarray) -> np.ndarray:
        """Time each of the queries (n, d) alone, on one thread, in milliseconds (n,)."""
        return query_ms(self, vectors)

    def _search_part(
        self, part: Any, vectors: np.ndarray, k: int, nprobe: int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Search one part for its k nearest live rows.

        Returns:
            Scores and addresses, k or more columns. Dead rows are replaced by NO_NEIGHBOUR with score -inf.
        """
        count = k + min(len(self._tombstones), max(_MIN_SPARE, k // 8))
        while True:
            asked = max(1, min(count, part.ntotal))
            if nprobe is not None:
                scores, addresses = search_lists(part, vectors, asked, nprobe)
            else:
                has_dead = bool(len(self._tombstones))
                parameters = hnsw_parameters(part, _EF_PER_ANSWER * count) if has_dead else None
                scores, addresses = part.search(vectors, asked, params=parameters)
            is_missing = addresses == NO_NEIGHBOUR
            is_live = ~is_missing & ~self._is_dead(addresses)
            # If a query has a missing answer, all rows of its lists have been scored.
            is_complete = (is_live.sum(axis=1) >= k) | is_missing.any(axis=1)
            if not len(self._tombstones) or count >= part.ntotal or is_complete.all():
                live_scores = np.where(is_live, scores, np.float32(-np.inf))
                return live_scores, np.where(is_live, addresses, NO_NEIGHBOUR)
            count *= 2  # too many of the nearest rows are dead

    def _is_dead(self, addresses: np.ndarray) -> np.ndarray:
        """Return a mask of the dead rows, by bisection: there may be millions of tombstones."""
        if not len(self._tombstones):
            return np.zeros(addresses.shape, dtype=bool)
        positions = np.minimum(np.searchsorted(self._tombstones, addresses), len(self._tombstones) - 1)
        return np.asarray(self._tombstones[positions] == addresses)


def open_parts(
    files: Sequence[FileRef],
    local: Callable[[FileRef], Path],
    tombstones: np.ndarray | None = None,
    effort: int | None = None,
) -> Parts:
    """Open the parts of an index.

    Files of lists are linked beside the index files, under the names by which the index files refer to them.

    Args:
        local: fetches a file and returns its path on this machine.
        tombstones: (n,) int64, addresses of dead rows that the files hold.
        effort: search effort to set; None for an index of one part, whose file stores the effort.
    """
    named_files = [(PurePosixPath(reference.path).name, local(reference)) for reference in files]
    if not any(name.endswith(_LISTS_SUFFIX) for name, _ in named_files):
        return Parts([read_index(path) for _, path in named_files], tombstones, effort)
    with linked_folder(named_files) as folder:
        indexes = [
            read_index(folder / name, on_disk=True)
            for name, _ in named_files
            if not name.endswith(_LISTS_SUFFIX)
        ]
        return Parts(indexes, tombstones, effort)


def load_parts(
    store: Store, files: Sequence[FileRef], tombstones: FileRef | None = None, effort: int | None = None
) -> Parts:
    """Open the parts of an index from a store; the file `tombstones` has the addresses of their dead rows."""
    dead = Dead.load(store, tombstones).addresses
    return open_parts(files, lambda file: file.local(store), dead, effort)


def load_index(store: Store, index: IndexFiles, tombstones: FileRef | None = None) -> Parts:
    """Open the index of a manifest from the store, with the search effort that the manifest names."""
    return load_parts(store, index.files, tombstones, index.settings.get("effort"))


@contextlib.contextmanager
def linked_folder(files: Sequence[tuple[str, Path]]) -> Iterator[Path]:
    """Make a temporary folder with links to files, given as (name of the link, path).

    A file that was mapped into memory from the folder stays mapped after the folder is deleted.
    """
    with temporary_folder("manta-") as folder:
        for name, path in files:
            link = folder / normal_path(name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        yield folder
