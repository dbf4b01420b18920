"""Sizes of the stored files, from one listing for each folder."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

import numpy as np

from pipeline.store.files.base import Store, in_threads


class ListedFiles:
    """Files of some folders. Each takes 16 bytes of memory: hashes of its path with and without its size.

    If a million files are listed, `has` is wrong about an unlisted file with a probability of 10^-13.
    """

    def __init__(self, store: Store, folders: Iterable[str]) -> None:
        """List all files below the folders."""
        hashes = in_threads(lambda folder: np.fromiter(_hashes_below(store, folder), np.int64), folders)
        self._hashes = np.unique(np.concatenate([np.zeros(0, np.int64), *hashes]))
        self._numbers = memoryview(self._hashes.data)

    def has(self, path: str, size: int | None = None) -> bool:
        """Return whether the file is listed, with this size in bytes if one is given."""
        wanted = file_hash(path, size)
        position = bisect_left(self._numbers, wanted)
        return position < len(self._numbers) and self._numbers[position] == wanted

    def has_all(self, hashes: np.ndarray) -> bool:
        """Return whether all files are listed, given the `file_hash` of each, (n,) int64."""
        return bool(np.isin(hashes, self._hashes).all())


def file_hash(path: str, size: int | None) -> int:
    """Return a hash of a path and a size, or of a path alone; it differs between processes."""
    return hash((path, size))


def _hashes_below(store: Store, folder: str) -> Iterator[int]:
    """Yield both hashes of each file below a folder."""
    for page in store.pages(folder):
        for entry in page:
            yield from (file_hash(entry.path, None), file_hash(entry.path, entry.size))
