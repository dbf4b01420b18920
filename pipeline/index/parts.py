"""An index in one part or several, searched as one: a base, what came after it, and the dead rows that the
base still holds.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from pipeline.index.build import read_index
from pipeline.index.structure import addresses_of, graph_search, ivf_of, list_search
from pipeline.index.truth import NOBODY
from pipeline.store.base import Store, checked
from pipeline.store.dead import Dead
from pipeline.store.units import FileRef

_LISTS = ".ivfdata"  # lists on disk, beside the index file that refers to them
# asked for beyond k at once: at the 5 % of dead rows that a base may hold, ten answers lack more than 8 in
# one query of 10^8
_SPARE = 8
_WIDER = 4  # efSearch for each answer asked for: with less a walk ends among the dead rows of a deleted topic


class Parts:
    """Answers of all parts, the best first, none of them a tombstone.

    `search` is that of a faiss index; threads may share it.
    """

    def __init__(self, indexes: Sequence[Any], tombstones: np.ndarray | None = None) -> None:
        """indexes: faiss indexes of one training. tombstones (n,) int64: addresses that they hold and that
        are dead.
        """
        self.indexes = tuple(indexes)
        self._tombstones = np.sort(tombstones) if tombstones is not None else np.zeros(0, dtype=np.int64)

    @property
    def base(self) -> Any:
        """The first part; all others have its training, metric and dimension."""
        return self.indexes[0]

    @property
    def d(self) -> int:
        return int(self.base.d)

    @property
    def ntotal(self) -> int:
        """Live rows."""
        return sum(part.ntotal for part in self.indexes) - len(self._tombstones)

    def search(self, vectors: np.ndarray, k: int, nprobe: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Scores and addresses (q, k) of the nearest live rows, of equal scores the lower address first; -inf
        and NOBODY behind the last.

        nprobe: of IVF indexes, lists to visit; None: as many as are set. Fewer columns where all parts
            together hold fewer rows than k.
        """
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        found = [self._live(part, vectors, k, nprobe) for part in self.indexes]
        scores, addresses = (np.concatenate([each[place] for each in found], axis=1) for place in (0, 1))
        order = np.lexsort((addresses, -scores), axis=1)[:, :k]
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(addresses, order, axis=1)

    def search_further(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `search`; but a query whose lists hold fewer than k live rows visits twice as many, until it has
        k answers or has seen every list.
        """
        scores, addresses = self.search(vectors, k)
        enough, ivf = min(k, self.ntotal), ivf_of(self.base)
        nprobe, nlist = (ivf.nprobe, ivf.nlist) if ivf is not None else (0, 0)
        while nprobe < nlist and len(short := np.flatnonzero((addresses != NOBODY).sum(axis=1) < enough)):
            nprobe = min(2 * nprobe, nlist)
            scores[short], addresses[short] = self.search(vectors[short], k, nprobe)
        return scores, addresses

    def addresses(self) -> Iterator[np.ndarray]:
        """All addresses block by block, tombstones included."""
        for part in self.indexes:
            yield from addresses_of(part)

    def imbalance(self) -> float:
        """How unevenly the lists of all parts together are filled: 1 for equal ones (Jegou et al. 2011, eq.
        5); 1 without lists.
        """
        ivfs = [ivf_of(part) for part in self.indexes]
        if ivfs[0] is None:
            return 1.0
        sizes = np.array(
            [
                [ivf.invlists.list_size(number) for number in range(ivf.nlist)]
                for ivf in ivfs
                if ivf is not None
            ],
            dtype=np.float64,
        ).sum(axis=0)
        return float(len(sizes) * (sizes**2).sum() / sizes.sum() ** 2) if sizes.any() else 1.0

    def _live(
        self, part: Any, vectors: np.ndarray, k: int, nprobe: int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores and addresses (q, at least k) of one part: its k nearest that are live are among them, the
        dead are NOBODY with score -inf.
        """
        asked = k + min(len(self._tombstones), max(_SPARE, k // 8))
        while True:
            effort = self._effort(part, asked, nprobe)
            scores, addresses = part.search(vectors, max(1, min(asked, part.ntotal)), params=effort)
            none = self._dead(addresses) | (addresses == NOBODY)
            settled = ((~none).sum(axis=1) >= k) | (addresses == NOBODY).any(
                axis=1
            )  # NOBODY: the lists that are visited hold no more
            if not len(self._tombstones) or asked >= part.ntotal or settled.all():
                return np.where(none, np.float32(-np.inf), scores), np.where(none, NOBODY, addresses)
            asked *= 2  # so many of the nearest are dead that too few are left

    def _effort(self, part: Any, asked: int, nprobe: int | None) -> Any:
        """faiss search parameters for so many answers; None for the effort that is set in the part."""
        if nprobe is not None:
            return list_search(part, nprobe)
        return graph_search(part, _WIDER * asked) if len(self._tombstones) else None

    def _dead(self, addresses: np.ndarray) -> np.ndarray:
        """Mask; by bisection, for tombstones are millions where answers are ten."""
        if not len(self._tombstones):
            return np.zeros(addresses.shape, dtype=bool)
        places = np.minimum(np.searchsorted(self._tombstones, addresses), len(self._tombstones) - 1)
        return np.asarray(self._tombstones[places] == addresses)


def open_parts(
    files: Sequence[FileRef], local: Callable[[FileRef], Path], tombstones: np.ndarray | None = None
) -> Parts:
    """The index in those files.

    Files of lists are put beside the others under the names by which they are referred to.
    """
    places = [(PurePosixPath(reference.path).name, local(reference)) for reference in files]
    if not any(name.endswith(_LISTS) for name, _ in places):
        return Parts([read_index(place) for _, place in places], tombstones)
    with folder_of(places) as folder:
        return Parts(
            [read_index(folder / name, on_disk=True) for name, _ in places if not name.endswith(_LISTS)],
            tombstones,
        )


def load_parts(store: Store, files: Sequence[FileRef], tombstones: FileRef | None = None) -> Parts:
    """Open the index in stored files. tombstones: the addresses that they hold and that are dead."""
    return open_parts(files, lambda file: file.local(store), Dead.load(store, tombstones).addresses)


@contextlib.contextmanager
def folder_of(places: Sequence[tuple[str, Path]]) -> Iterator[Path]:
    """A folder in which the files have the given names, wherever they lie.

    What was mapped from it stays mapped when it is gone.
    """
    with tempfile.TemporaryDirectory(prefix="manta-") as directory:
        for name, place in places:
            link = Path(directory, checked(name))
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(place.resolve())
        yield Path(directory)
