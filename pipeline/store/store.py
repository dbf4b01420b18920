"""One root of files, local or in an object store: whole files only, create-once, and a local copy where a library wants a path."""

import abc
import contextlib
import hashlib
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from pipeline.errors import ConfigError, DataError
from pipeline.store.retry import retrying

_WHOLE_READ = 256 << 20         # bytes: up to here one request reads an object; beyond, a reader seeks
_PARTIAL = ".tmp-"              # prefix of names that no listing shows
_HOST = re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())[:32]     # a process number means nothing on another machine that shares the directory


@dataclass(frozen=True)
class Entry:
    """A stored file. path: relative to the root; size: bytes; stamp: etag, or modification time in ns: changes with the content; modified: s since 1970."""

    path: str
    size: int
    stamp: str
    modified: float


def open_store(uri: str | Path) -> "Store":
    """The store at a directory, a file:// URI, or any URI that fsspec knows (s3://bucket/prefix)."""
    text = str(uri)
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme in ("", "file"):
        path = unquote(urlsplit(text).path) if scheme else os.path.expanduser(text)
        return LocalStore(os.path.abspath(path))
    return ObjectStore(text.rstrip("/"))


class Store(abc.ABC):
    """Paths are relative to the root and '/'-separated; one that would leave the root is a DataError. Pickles by its uri."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __reduce__(self) -> tuple[Any, ...]:
        return open_store, (self.uri,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @abc.abstractmethod
    def read(self, path: str) -> bytes:
        """The whole file. FileNotFoundError when there is none."""

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
    def open(self, path: str) -> pa.NativeFile:
        """A seekable reader for pyarrow."""

    @abc.abstractmethod
    def local(self, path: str, sha256: str | None = None) -> Path:
        """A path on this machine with the file's content; with `sha256` given, content is checked first (DataError when it differs)."""

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
        with tempfile.TemporaryDirectory(prefix="manta-") as directory:
            yield Path(directory)

    def uri_of(self, path: str) -> str:
        """The full address of a stored file."""
        return f"{self.uri}/{checked(path)}"


def checked(path: str) -> str:
    """`path` itself, when it stays below the root."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise DataError(f"path {path!r}", "a relative path below the root", "one that leaves it or is empty", "what names it was tampered with: do not use it")
    return "/".join(parts)


def sha256_of(file: Path) -> str:
    """sha256 (hex) of a local file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def verified(file: Path, sha256: str | None, name: str) -> Path:
    """`file` itself when its content has that sha256."""
    if sha256 is not None and (found := sha256_of(file)) != sha256:
        remedy = "the file was changed or damaged after it was written; restore it, or roll back to an older release"
        raise DataError(name, f"sha256 {sha256[:16]}...", f"{found[:16]}...", remedy)
    return file


class LocalStore(Store):
    """A directory. Writes go to a temporary name, are flushed to disk, and take their name in one step."""

    def read(self, path: str) -> bytes:
        return self._place(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        place = self._place(path)
        with self._temporary(place) as temporary:
            _write_durably(temporary, data)
            os.replace(temporary, place)
        _sync_directory(place.parent)

    def create(self, path: str, data: bytes) -> bool:
        place = self._place(path)
        if place.exists():
            return False
        with self._temporary(place) as temporary:
            _write_durably(temporary, data)
            created = _link_once(temporary, place, data)
        _sync_directory(place.parent)
        return created

    def put(self, local: Path, path: str) -> None:
        place = self._place(path)
        with self._temporary(place) as temporary:
            shutil.move(local, temporary)               # a rename on one disk, a copy across disks
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())
            os.replace(temporary, place)
        _sync_directory(place.parent)

    def open(self, path: str) -> pa.NativeFile:
        place = self._place(path)
        return pa.memory_map(str(place)) if place.stat().st_size else pa.OSFile(str(place))

    def local(self, path: str, sha256: str | None = None) -> Path:
        place = self._place(path)
        if not place.is_file():
            raise FileNotFoundError(str(place))
        return verified(place, sha256, str(place))

    def size(self, path: str) -> int | None:
        place = self._place(path)
        return place.stat().st_size if place.is_file() else None

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        top = self._place(prefix) if prefix else Path(self.uri)
        entries = []
        for directory, folders, names in os.walk(top):
            folders[:] = [folder for folder in folders if not folder.startswith(_PARTIAL)]
            entries += [self._entry(Path(directory, name)) for name in names if name.endswith(suffix) and not name.startswith(_PARTIAL)]
        return sorted((entry for entry in entries if entry), key=lambda entry: entry.path)

    def delete(self, path: str) -> None:
        self._place(path).unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        place = Path(self.uri)
        while not place.exists():
            place = place.parent
        return shutil.disk_usage(place).free

    def sweep(self, before: float) -> int:
        left = [Path(directory, name) for directory, folders, names in os.walk(self.uri) for name in (*folders, *names) if name.startswith(_PARTIAL)]
        return sum(_removed(place) for place in left if place.exists() and place.stat().st_mtime < before)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        os.makedirs(self.uri, exist_ok=True)
        for place in Path(self.uri).glob(f"{_PARTIAL}{_HOST}-*-*"):
            if _is_dead(place.name.split("-")[-2]):     # a killed run's, and it may be as large as the corpus
                _removed(place)
        with tempfile.TemporaryDirectory(prefix=f"{_PARTIAL}{_HOST}-{os.getpid()}-", dir=self.uri) as directory:
            yield Path(directory)

    def _place(self, path: str) -> Path:
        return Path(self.uri, checked(path))

    def _entry(self, place: Path) -> Entry | None:
        try:
            status = place.stat()
        except FileNotFoundError:                       # removed while we were listing
            return None
        return Entry(place.relative_to(self.uri).as_posix(), status.st_size, str(status.st_mtime_ns), status.st_mtime)

    @contextlib.contextmanager
    def _temporary(self, place: Path) -> Iterator[Path]:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.parent / f"{_PARTIAL}{os.getpid()}-{secrets.token_hex(6)}"
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def _removed(place: Path) -> int:
    """Bytes of the file or directory that is gone afterwards; whoever else removes it at the same time is welcome."""
    files = [place] if place.is_file() else [file for file in place.rglob("*") if file.is_file()]
    size = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            size += file.stat().st_size
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)
    return size


def _is_dead(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (ValueError, PermissionError):
        return False
    return False


def _write_durably(place: Path, data: bytes) -> None:
    with place.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:                                     # some network file systems refuse to sync a directory; the name is theirs to keep
        pass
    finally:
        os.close(handle)


def _link_once(temporary: Path, place: Path, data: bytes) -> bool:
    try:
        os.link(temporary, place)
    except FileExistsError:
        return False
    except OSError:                                     # a file system without hard links: claim the name itself
        try:
            handle = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    return True


class ObjectStore(Store):
    """A prefix of an object store, through fsspec. Credentials and endpoint come from the environment and travel nowhere."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._scheme = urlsplit(uri).scheme
        self._prefix = uri.split("://", 1)[1]

    @property
    def _fs(self) -> Any:
        """The file system; fsspec keeps one instance per process and settings."""
        import fsspec

        options = {"use_listings_cache": False} if self._scheme in ("s3", "s3a") else {}
        try:
            return fsspec.filesystem(self._scheme, **options)
        except (ImportError, ValueError) as error:
            remedy = "use file://, s3://, or install the file system's package"
            raise ConfigError(self.uri, "a URI that fsspec can open", str(error), remedy) from None

    def read(self, path: str) -> bytes:
        return retrying(lambda: self._fs.cat_file(self._key(path)), self.uri_of(path))

    def write(self, path: str, data: bytes) -> None:
        retrying(lambda: self._fs.pipe_file(self._key(path), data), self.uri_of(path))

    def create(self, path: str, data: bytes) -> bool:
        attempts = 0

        def attempt() -> bool:
            nonlocal attempts
            attempts += 1
            try:
                self._fs.pipe_file(self._key(path), data, mode="create")
            except FileExistsError:
                return False
            return True

        created = retrying(attempt, self.uri_of(path))
        # a first try may have stored the object and lost its answer: then the object that is in the way is ours
        return created or (attempts > 1 and self.read(path) == data)

    def put(self, local: Path, path: str) -> None:
        retrying(lambda: self._fs.put_file(str(local), self._key(path)), self.uri_of(path))
        local.unlink()

    def open(self, path: str) -> pa.NativeFile:
        if self._status(path)["size"] <= _WHOLE_READ:
            return pa.BufferReader(self.read(path))
        return pa.PythonFile(retrying(lambda: self._fs.open(self._key(path), "rb"), self.uri_of(path)), mode="r")

    def local(self, path: str, sha256: str | None = None) -> Path:
        status = self._status(path)
        name = sha256 or hashlib.sha256(f"{self.uri_of(path)} {_stamp(status)}".encode()).hexdigest()
        place = cache_directory() / name[:2] / (name + PurePosixPath(path).suffix)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary = place.parent / f"{_PARTIAL}{os.getpid()}-{secrets.token_hex(6)}"
            try:
                retrying(lambda: self._fs.get_file(self._key(path), str(temporary)), self.uri_of(path))
                os.replace(verified(temporary, sha256, self.uri_of(path)), place)      # two starters may both download; either file is whole
            finally:
                temporary.unlink(missing_ok=True)
        return place

    def size(self, path: str) -> int | None:
        try:
            return int(self._status(path)["size"])
        except FileNotFoundError:
            return None

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        top = f"{self._prefix}/{checked(prefix)}" if prefix else self._prefix
        found = retrying(lambda: self._fs.find(top, detail=True), f"{self.uri}/{prefix}")
        below = f"{self._prefix}/"
        named = {name: status for name, status in found.items() if name.startswith(below) and name.endswith(suffix)}
        entries = (Entry(name.removeprefix(below), int(status["size"]), _stamp(status), _modified(status)) for name, status in named.items())
        return sorted(entries, key=lambda entry: entry.path)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            retrying(lambda: self._fs.rm_file(self._key(path)), self.uri_of(path))

    def _status(self, path: str) -> dict[str, Any]:
        return dict(retrying(lambda: self._fs.info(self._key(path)), self.uri_of(path)))

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{checked(path)}"


def _stamp(status: dict[str, Any]) -> str:
    return str(status.get("ETag") or status.get("etag") or status.get("LastModified") or status.get("mtime") or "").strip('"')


def _modified(status: dict[str, Any]) -> float:
    """Now where the store does not tell: what may be new is not taken for old."""
    when = status.get("LastModified") or status.get("mtime") or status.get("updated")
    return when.timestamp() if isinstance(when, datetime) else float(when or time.time())


def cache_directory() -> Path:
    """Where copies of remote files lie on this machine: MANTA_CACHE, or manta below the user's cache directory. Safe to delete when nothing runs."""
    base = os.environ.get("MANTA_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "manta")
    directory = Path(base)
    directory.mkdir(parents=True, exist_ok=True)
    return directory
