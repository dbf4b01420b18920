"""The interface of a store: one root of files, in a local directory or in an object store.

A file is read and written as a whole. `create` writes a file only if it does not exist. `local` gives a file
a path on this machine, for libraries that need one.
"""

import abc
import contextlib
import hashlib
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from pipeline.errors import DataError
from pipeline.store.files.disk import temporary_folder

Item = TypeVar("Item")
Result = TypeVar("Result")

_BLOCKS = 64  # blocks of calls per thread; the calls of a block run one after another
# Prefix of the names of temporary files; listings leave them out.
PARTIAL = ".tmp-"
_NORMAL = re.compile(
    r"([^./\\\0][^/\\\0]*)(/[^./\\\0][^/\\\0]*)*"
)  # most normal paths: no name begins with a dot


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored file, as a listing shows it."""

    path: str
    """relative to the root"""
    size: int
    """bytes"""
    stamp: str
    """changes with the content: the ETag, or the modification time in nanoseconds"""
    modified: float
    """seconds since 1970"""


class Store(abc.ABC):
    """Files below one root.

    Paths are relative to the root and '/'-separated; a path that would leave the root raises DataError.
    Pickling a store keeps its URI only, so each process opens its own connection.
    """

    shared: ClassVar[bool] = True
    """whether every machine of a cluster sees the same files"""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.uri,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @abc.abstractmethod
    def read(self, path: str) -> bytes:
        """Return the content of the file. Raises FileNotFoundError if it does not exist."""

    def read_checked(self, path: str, sha256: str) -> bytes:
        """Return the content of the file. Raises DataError if its sha256 differs."""
        content = self.read(path)
        if (found := hashlib.sha256(content).hexdigest()) != sha256:
            raise sha256_mismatch(self.uri_of(path), sha256, found)
        return content

    @abc.abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write the file atomically, replacing an existing one."""

    @abc.abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Create the file atomically. Returns False if it exists; of two racing calls one gets True."""

    @abc.abstractmethod
    def put(self, local: Path, path: str) -> None:
        """Move a finished local file into the store atomically, replacing an existing one."""

    @abc.abstractmethod
    def open(self, path: str, sha256: str | None = None) -> pa.NativeFile:
        """Open the file as a seekable pyarrow stream. Raises DataError if `sha256` is given and differs."""

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Return the file's bytes `start` to `stop` - 1, without reading the rest."""
        with self.open(path) as stream:
            stream.seek(start)
            return stream.read_buffer(stop - start)

    @abc.abstractmethod
    def local(self, path: str, sha256: str | None = None) -> Path:
        """Return a path on this machine with the file's content. It must not be written to.

        Raises:
            DataError: `sha256` is given, and the content has a different one.
        """

    def fetch(self, path: str, target: Path) -> None:
        """Copy the file to the local path `target`."""
        shutil.copyfile(self.local(path), target)

    @abc.abstractmethod
    def entry(self, path: str) -> Entry | None:
        """Return the file's entry as `list` would, without listing. None if the file does not exist."""

    def size(self, path: str) -> int | None:
        """Return the size of the file in bytes, or None if it does not exist."""
        entry = self.entry(path)
        return entry.size if entry else None

    def exists(self, path: str) -> bool:
        """Return whether the file exists."""
        return self.entry(path) is not None

    @abc.abstractmethod
    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        """List the files below the directory `prefix` whose names end with `suffix`, in path order.

        Files that are still being written are left out.
        """

    def pages(self, prefix: str) -> Iterator[Sequence[Entry]]:
        """Yield the files below the directory `prefix` in groups, so that not all are in memory at once."""
        yield self.list(prefix)

    @abc.abstractmethod
    def delete(self, path: str) -> None:
        """Delete the file if it exists."""

    def discard_copies_but(self, digests: Collection[str]) -> None:  # noqa: B027 (a local store has none)
        """Remove data files from the cache of this machine, but those with one of these digests (sha256).

        Also files of other stores are removed, which are copied again when they are needed: it is not known
        of which store a copy is that no release names, such as one of a night's temporary files.
        """

    def free_bytes(self) -> int | None:
        """Return the free space for new files in bytes, or None if the store does not report it."""
        return None

    def sweep(self, before: float) -> int:
        """Remove temporary files that killed writers left and last changed earlier than `before`.

        Args:
            before: seconds since 1970.

        Returns:
            The bytes freed.
        """
        return 0

    def typical_read_s(self, size: int) -> float:
        """Return the typical time to read a file of `size` bytes; 0 for a local disk.

        Callers use this time to decide whether to read a result or to compute it again.
        """
        return 0.0

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a temporary local directory, removed at the end of the block.

        A store on a local disk makes the directory on that disk, so that `put` moves files instead of copying
        them.
        """
        with temporary_folder("manta-") as folder:
            yield folder

    def uri_of(self, path: str) -> str:
        """Return the full URI of a stored file."""
        return f"{self.uri}/{normal_path(path)}"


def normal_path(path: str) -> str:
    """Return `path` in normal form. Raises DataError if it is empty or would leave the root."""
    if _NORMAL.fullmatch(path):  # this check takes a tenth of the time of parsing
        return path
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise DataError(
            f"path {path!r}",
            "a relative path below the root",
            "a path that leaves it, or an empty one",
            "the file that names this path was tampered with: do not use it",
        )
    return "/".join(parts)


def sha256_of(file: Path) -> str:
    """Return the sha256 of a local file in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_sha256(file: Path, sha256: str | None, name: str) -> Path:
    """Return `file`. Raises DataError, naming `name`, if `sha256` is given and the content differs."""
    if sha256 is not None and (found := sha256_of(file)) != sha256:
        raise sha256_mismatch(name, sha256, found)
    return file


def sha256_mismatch(name: str, expected: str, found: str) -> DataError:
    """Return the error for a file whose sha256 is not the expected one."""
    return DataError(
        name,
        f"sha256 {expected[:16]}...",
        f"{found[:16]}...",
        "the file was changed or damaged after it was written: restore it, or roll back to an older release",
    )


def in_threads(call: Callable[[Item], Result], items: Iterable[Item], threads: int = 16) -> list[Result]:
    """Apply `call` to each item in threads, and return the results in order.

    The first error is raised; calls that have not begun by then are cancelled.

    Args:
        threads: number of concurrent calls. 16 suits small requests to an object store.
    """
    work = list(items)
    size = 1 + len(work) // (_BLOCKS * threads)  # so that many short calls do not wait for the pool
    blocks = [work[start : start + size] for start in range(0, len(work), size)]
    with ThreadPoolExecutor(threads) as pool:
        results = pool.map(lambda block: [call(item) for item in block], blocks)
        return [result for block in results for result in block]
