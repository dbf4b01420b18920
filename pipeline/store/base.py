"""One root of files, local or in an object store: whole files only, create-once, and a local copy where a library wants a path."""

import abc
import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from pipeline.errors import ConfigError, DataError, TransientError

PARTIAL = ".tmp-"  # prefix of names that no listing shows
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (PermissionError, NotADirectoryError, FileExistsError)  # rights, or a file where a folder has to be
_AWAY = (
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
)  # of a file system on the network whose server does not answer, or another one does


@dataclass(frozen=True)
class Entry:
    """A stored file. path: relative to the root; size: bytes; stamp: etag, or modification time in ns: changes with the content; modified: s since 1970."""

    path: str
    size: int
    stamp: str
    modified: float


class Store(abc.ABC):
    """Paths are relative to the root and '/'-separated; one that would leave the root is a DataError. Pickles by its uri."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.uri,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @abc.abstractmethod
    def read(self, path: str) -> bytes:
        """The whole file. FileNotFoundError when there is none."""

    def read_checked(self, path: str, sha256: str) -> bytes:
        """The whole file, once it is known to have that sha256; DataError when it differs."""
        content = self.read(path)
        if (found := hashlib.sha256(content).hexdigest()) != sha256:
            raise changed(self.uri_of(path), sha256, found)
        return content

    @abc.abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """All or nothing; replaces what was there."""

    @abc.abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """All or nothing, once: False when the file exists. Of two racers exactly one gets True."""

    @abc.abstractmethod
    def put(self, local: Path, path: str) -> None:
        """Publish a finished local file, all or nothing; the local file is gone afterwards."""

    @abc.abstractmethod
    def open(self, path: str, sha256: str | None = None) -> pa.NativeFile:
        """A seekable reader for pyarrow; with `sha256` given, the content is checked first (DataError when it differs)."""

    @abc.abstractmethod
    def local(self, path: str, sha256: str | None = None) -> Path:
        """A path on this machine with the file's content; with `sha256` given, content is checked first (DataError when it differs)."""

    def fetch(self, path: str, place: Path) -> None:
        """Copy the file to `place` on this machine."""
        shutil.copyfile(self.local(path), place)

    @abc.abstractmethod
    def size(self, path: str) -> int | None:
        """Bytes of the file; None when there is none."""

    def exists(self, path: str) -> bool:
        """Whether the file is there."""
        return self.size(path) is not None

    @abc.abstractmethod
    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        """Files below the directory `prefix` whose name ends with `suffix`, in path order. A file that is being written is not there yet."""

    @abc.abstractmethod
    def delete(self, path: str) -> None:
        """Afterwards the file is not there; that it was not there before is fine."""

    def free_bytes(self) -> int | None:
        """Free space for new files; None where the store has no such figure."""
        return None

    def sweep(self, before: float) -> int:
        """Remove what killed writers left under temporary names, last changed `before` (seconds since 1970); bytes freed."""
        return 0

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A temporary local directory, removed at the end; on the store's own disk where it has one, so that `put` moves instead of copying."""
        with tempfile.TemporaryDirectory(prefix="manta-") as directory, room(tempfile.gettempdir()):
            yield Path(directory)

    def uri_of(self, path: str) -> str:
        """The full address of a stored file."""
        return f"{self.uri}/{checked(path)}"


def checked(path: str) -> str:
    """`path` itself, when it stays below the root."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise DataError(
            f"path {path!r}",
            "a relative path below the root",
            "one that leaves it or is empty",
            "what names it was tampered with: do not use it",
        )
    return "/".join(parts)


def sha256_of(file: Path) -> str:
    """sha256 (hex) of a local file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def verified(file: Path, sha256: str | None, name: str) -> Path:
    """`file` itself when its content has that sha256."""
    if sha256 is not None and (found := sha256_of(file)) != sha256:
        raise changed(name, sha256, found)
    return file


def changed(name: str, expected: str, found: str) -> DataError:
    """The error for a file whose content is not the one meant."""
    remedy = (
        "the file was changed or damaged after it was written; restore it, or roll back to an older release"
    )
    return DataError(name, f"sha256 {expected[:16]}...", f"{found[:16]}...", remedy)


@contextlib.contextmanager
def room(where: str) -> Iterator[None]:
    """TransientError where the block fails because a disk is full, in whatever library's words, or does not answer; ConfigError where nothing may be written at
    all. Nothing half-written was published.
    """
    try:
        yield
    except (OSError, RuntimeError, pa.ArrowException) as error:
        if isinstance(error, _CLOSED) or getattr(error, "errno", None) == errno.EROFS:
            raise ConfigError(
                where,
                "a folder that may be written to",
                " ".join(str(error).split()),
                "check the path and its rights",
            ) from error
        if getattr(error, "errno", None) in _AWAY:
            remedy = "check the disk, or the server of the file system, and run again: finished work is kept"
            raise TransientError(
                where, "a disk that answers", " ".join(str(error).split()), remedy
            ) from error
        if (
            getattr(error, "errno", None) not in _FULL
            and os.strerror(errno.ENOSPC).lower() not in str(error).lower()
        ):
            raise
        found, remedy = (
            " ".join(str(error).split()),
            "make room (manta releases prune, or a larger disk) and run again: finished work is kept",
        )
        raise TransientError(where, "room for a new file", found, remedy) from error
