"""An index in one part or several, searched as one.

A base, a delta with the rows that came later, and tombstones for dead rows that the base still holds.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from pipeline.index.build import read_index
from pipeline.index.structure import addresses_of, graph_search, list_search, nlist_of, unwrap
from pipeline.index.truth import NO_NEIGHBOUR
from pipeline.store.base import Store, checked
from pipeline.store.dead import Dead
from pipeline.store.stored import FileRef

_LISTS = ".ivfdata"  # lists on disk, beside the index file that refers to them
# Answers that are searched for beyond k: at the 5 % of dead rows that a base may hold, ten answers lack more
# than 8 in one query of 10^8.
_SPARE = 8
# efSearch for each answer: with less, a walk through the graph ends among the dead rows of a deleted topic.
_EF_PER_ANSWER = 4


class Parts:
    """The best answers of all parts without tombstones.

    `search` has the interface of a faiss index. Threads may share an object.
    """

    def __init__(self, indexes: Sequence[Any], tombstones: np.ndarray | None = None) -> None:
        """Combine faiss indexes of one training.

        Args:
            tombstones: (n,) int64, addresses of dead rows that the indexes hold.
        """
        self.indexes = tuple(indexes)
        self._tombstones = np.zeros(0, dtype=np.int64) if tombstones is None else np.sort(tombstones)

    @property
    def base(self) -> Any:
        """The first part. All others have its training, metric and dimension."""
        return self.indexes[0]

    @property
    def d(self) -> int:
        """Dimension of raw vectors."""
        return int(self.base.d)

    @property
    def ntotal(self) -> int:
        """Number of live rows."""
        return sum(part.ntotal for part in self.indexes) - len(self._tombstones)

    def search(self, vectors: np.ndarray, k: int, nprobe: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Search for the nearest live rows. Of rows with equal scores, the lower address comes first.

        Args:
            vectors: (q, d), raw.
            nprobe: number of lists of an IVF index to visit; None: as many as are set in the index.

        Returns:
            Scores and addresses (q, k), with -inf and NO_NEIGHBOUR after the last answer. There are
            fewer columns if all parts together hold fewer than k rows.
        """
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        found = [self._search_part(part, vectors, k, nprobe) for part in self.indexes]
        scores, addresses = (np.concatenate(each, axis=1) for each in zip(*found, strict=True))
        order = np.lexsort((addresses, -scores), axis=1)[:, :k]
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(addresses, order, axis=1)

    def search_further(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Search as `search`, but visit more lists for queries that have fewer than k answers.

        The number of lists is doubled until a query has k answers or has seen every list.
        """
        scores, addresses = self.search(vectors, k)
        enough, nlist = min(k, self.ntotal), nlist_of(self.base)
        nprobe = unwrap(self.base).nprobe if nlist else 0
        while nprobe < nlist and len(
            short := np.flatnonzero((addresses != NO_NEIGHBOUR).sum(axis=1) < enough)
        ):
            nprobe = min(2 * nprobe, nlist)
            scores[short], addresses[short] = self.search(vectors[short], k, nprobe)
        return scores, addresses

    def addresses(self) -> Iterator[np.ndarray]:
        """Yield all addresses in blocks, tombstones included."""
        for part in self.indexes:
            yield from addresses_of(part)

    def imbalance(self) -> float:
        """Return the imbalance of the lists of all parts together (Jegou et al. 2011, eq. 5).

        1 if all lists are equally long, or if there are no lists.
        """
        nlist = nlist_of(self.base)
        lists = [unwrap(part).invlists for part in self.indexes if nlist]
        sizes = np.array([sum(each.list_size(number) for each in lists) for number in range(nlist)], float)
        return float(nlist * (sizes**2).sum() / sizes.sum() ** 2) if sizes.any() else 1.0

    def _search_part(
        self, part: Any, vectors: np.ndarray, k: int, nprobe: int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and addresses (q, at least k) of one part, with its k nearest live rows among them.

        Dead rows are replaced by NO_NEIGHBOUR with score -inf.
        """
        count = k + min(len(self._tombstones), max(_SPARE, k // 8))
        while True:
            parameters = None
            if nprobe is not None:
                parameters = list_search(part, nprobe)
            elif len(self._tombstones):
                parameters = graph_search(part, _EF_PER_ANSWER * count)
            scores, addresses = part.search(vectors, max(1, min(count, part.ntotal)), params=parameters)
            missing = addresses == NO_NEIGHBOUR
            none = missing | self._is_dead(addresses)
            # NO_NEIGHBOUR: the visited lists hold no more rows.
            enough = ((~none).sum(axis=1) >= k) | missing.any(axis=1)
            if not len(self._tombstones) or count >= part.ntotal or enough.all():
                return np.where(none, np.float32(-np.inf), scores), np.where(none, NO_NEIGHBOUR, addresses)
            count *= 2  # so many of the nearest rows are dead that too few remain

    def _is_dead(self, addresses: np.ndarray) -> np.ndarray:
        """Return a mask of the tombstones, by bisection: there may be millions of them for ten answers."""
        if not len(self._tombstones):
            return np.zeros(addresses.shape, dtype=bool)
        positions = np.minimum(np.searchsorted(self._tombstones, addresses), len(self._tombstones) - 1)
        return np.asarray(self._tombstones[positions] == addresses)


def indexes_of(index: Any) -> tuple[Any, ...]:
    """Return the faiss indexes of `Parts`, or a faiss index as the only one."""
    return index.indexes if isinstance(index, Parts) else (index,)


def open_parts(
    files: Sequence[FileRef], local: Callable[[FileRef], Path], tombstones: np.ndarray | None = None
) -> Parts:
    """Open the index in these files.

    Files of lists are linked beside the others under the names by which the others refer to them.

    Args:
        local: returns the path of a file on this machine.
        tombstones: (n,) int64, addresses of dead rows that the files hold.
    """
    named = [(PurePosixPath(reference.path).name, local(reference)) for reference in files]
    if not any(name.endswith(_LISTS) for name, _ in named):
        return Parts([read_index(path) for _, path in named], tombstones)
    with linked_folder(named) as folder:
        indexes = [read_index(folder / name, on_disk=True) for name, _ in named if not name.endswith(_LISTS)]
        return Parts(indexes, tombstones)


def load_parts(store: Store, files: Sequence[FileRef], tombstones: FileRef | None = None) -> Parts:
    """Open the index in stored files, whose dead rows are in the file `tombstones`."""
    return open_parts(files, lambda file: file.local(store), Dead.load(store, tombstones).addresses)


@contextlib.contextmanager
def linked_folder(files: Sequence[tuple[str, Path]]) -> Iterator[Path]:
    """Make a temporary folder with links of the given names to the files.

    A file that was mapped from it stays mapped after the folder is deleted.
    """
    with tempfile.TemporaryDirectory(prefix="manta-") as directory:
        for name, path in files:
            link = Path(directory, checked(name))
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        yield Path(directory)
