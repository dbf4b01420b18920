"""The interface of a store: one root of files, in a local directory or in an object store.

Files are read and written whole. They can be created only once, and copied to this machine for libraries that
need a path.
"""

import abc
import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from pipeline.errors import ConfigError, DataError, TransientError

A = TypeVar("A")
B = TypeVar("B")

# Prefix of the names of temporary files; listings leave them out.
PARTIAL = ".tmp-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Missing permissions, or a file where a folder is needed.
_NOT_WRITABLE = (PermissionError, NotADirectoryError, FileExistsError)
# A network file system whose server does not answer, or was replaced by another one.
_UNREACHABLE = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)


@dataclass(frozen=True)
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
    A store is pickled by its URI.
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
            raise changed(self.uri_of(path), sha256, found)
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

    @abc.abstractmethod
    def local(self, path: str, sha256: str | None = None) -> Path:
        """Return a path on this machine with the file's content. It must not be written to.

        Raises:
            DataError: `sha256` is given and differs from that of the content.
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

    @abc.abstractmethod
    def delete(self, path: str) -> None:
        """Delete the file if it exists."""

    def free_bytes(self) -> int | None:
        """Return the free space for new files in bytes, or None if the store does not report it."""
        return None

    def sweep(self, before: float) -> int:
        """Remove temporary files of killed writers, last changed `before` (seconds since 1970).

        Returns:
            The bytes freed.
        """
        return 0

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a temporary local directory, removed at the end of the block.

        A store on a local disk makes it there, so that `put` moves files instead of copying them.
        """
        with tempfile.TemporaryDirectory(prefix="manta-") as directory, room(tempfile.gettempdir()):
            yield Path(directory)

    def uri_of(self, path: str) -> str:
        """Return the full URI of a stored file."""
        return f"{self.uri}/{checked(path)}"


def checked(path: str) -> str:
    """Return `path` in normal form. Raises DataError if it is empty or would leave the root."""
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


def verified(file: Path, sha256: str | None, name: str) -> Path:
    """Return `file`. Raises DataError, naming `name`, if `sha256` is given and the content differs."""
    if sha256 is not None and (found := sha256_of(file)) != sha256:
        raise changed(name, sha256, found)
    return file


def changed(name: str, expected: str, found: str) -> DataError:
    """Return the error for a file whose sha256 is not the expected one."""
    return DataError(
        name,
        f"sha256 {expected[:16]}...",
        f"{found[:16]}...",
        "the file was changed or damaged after it was written: restore it, or roll back to an older release",
    )


@contextlib.contextmanager
def room(where: str) -> Iterator[None]:
    """Translate errors of the block that come from the disk below `where`. No partial file was published.

    Raises:
        TransientError: the disk is full, whichever library reports it, or does not answer.
        ConfigError: the directory is not writable.
    """
    try:
        yield
    except (OSError, RuntimeError, pa.ArrowException) as error:
        found, number = " ".join(str(error).split()), getattr(error, "errno", None)
        if isinstance(error, _NOT_WRITABLE) or number == errno.EROFS:
            raise ConfigError(
                where, "a writable folder", found, "check the path and its permissions"
            ) from error
        if number in _UNREACHABLE:
            raise TransientError(
                where,
                "a disk that answers",
                found,
                "check the disk, or the server of the file system, and run again: finished work is kept",
            ) from error
        if number not in _FULL and os.strerror(errno.ENOSPC).lower() not in str(error).lower():
            raise
        raise TransientError(
            where,
            "space for a new file",
            found,
            "free disk space (manta releases prune, or a larger disk) and run again: finished work is kept",
        ) from error


def in_threads(call: Callable[[A], B], items: Iterable[A], threads: int = 16) -> list[B]:
    """Apply `call` to each item in threads, and return the results in order.

    The first error is raised; calls that have not begun by then are cancelled.

    Args:
        threads: 16 suit small requests: an object store answers each in tens of milliseconds.
    """
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(call, items))


def tree_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder. Symbolic links are not followed.

    Files that another process removes meanwhile do not count.
    """
    files = [path]
    if not path.is_symlink() and path.is_dir():  # in this order: following a link counts as its use
        files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    total = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            total += file.lstat().st_size
    return total


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all its files, if it exists."""
    if not path.is_symlink() and path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
