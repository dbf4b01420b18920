"""A store below a prefix of an object store, through fsspec."""

import contextlib
import hashlib
import time
from collections.abc import Collection, Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from pipeline.errors import ConfigError, DataError
from pipeline.keep_alive import keep_alive
from pipeline.store.files.base import Entry, Store, check_sha256, normal_path
from pipeline.store.files.cache import cache_directory, digest_of_file, discard_files_but, get_or_build
from pipeline.store.files.retry import positive_number, retrying

# Bytes. Larger objects are opened as a seekable stream instead of being read into memory.
_MAX_MEMORY_READ = 256 << 20
# Typical latency of a request, and bytes per second of one stream.
_REQUEST_S, _BYTES_PER_S = 0.025, 100e6
_DATA = (".faiss", ".ivfdata", ".arrow", ".parquet", ".safetensors", ".json")  # endings of files of releases
_ANSWER_S = 30.0
_SLOWEST_TRANSFER = 256 << 10  # bytes/s; slower transfers time out


def time_limit_s(size: int = 0) -> float:
    """Return the time limit of a call that transfers `size` bytes, in seconds."""
    return positive_number("MANTA_STORE_TIMEOUT_S", _ANSWER_S) + size / _SLOWEST_TRANSFER


class ObjectStore(Store):
    """A prefix of an object store, through fsspec.

    Credentials and endpoint come from the environment of each process; they are never pickled or stored.
    """

    def __init__(self, uri: str, any_keys: bool = False) -> None:
        """Open the store.

        With `any_keys`, keys that only other programs write can be read: a//b, a/./b and the like.
        """
        super().__init__(uri)
        self._any_keys = any_keys
        self._prefix = uri.split("://", 1)[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.uri, self._any_keys)

    @property
    def _fs(self) -> Any:
        """The fsspec file system; fsspec keeps one instance per process and settings."""
        import fsspec

        try:
            return fsspec.filesystem(urlsplit(self.uri).scheme)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                self.uri,
                "a URI that fsspec can open",
                str(error),
                "use file://, s3://, or install the file system's package",
            ) from None

    def typical_read_s(self, size: int) -> float:
        return _REQUEST_S + size / _BYTES_PER_S

    def read(self, path: str) -> bytes:
        return bytes(retrying(lambda: self._fs.cat_file(self._key(path)), self.uri_of(path)))

    def read_checked(self, path: str, sha256: str) -> bytes:
        try:
            return super().read_checked(path, sha256)
        except DataError:  # the transfer may have damaged the content: read it once more
            return super().read_checked(path, sha256)

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

        # An earlier attempt may have stored the object although the response was lost: then this call wrote
        # it.
        return retrying(attempt, self.uri_of(path)) or (attempts > 1 and self.read(path) == data)

    def put(self, local: Path, path: str) -> None:
        retrying(
            lambda: self._fs.put_file(str(local), self._key(path), callback=keep_alive_callback()),
            self.uri_of(path),
        )
        local.unlink()

    def open(self, path: str, sha256: str | None = None) -> pa.NativeFile:
        status = self._status(path)
        is_large = status["size"] > _MAX_MEMORY_READ
        if sha256 is None:
            return self._reader(path, status) if is_large else pa.BufferReader(self.read(path))
        if is_large:
            return pa.memory_map(str(self.local(path, sha256)))
        return pa.BufferReader(self.read_checked(path, sha256))

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        # HTTP has no empty ranges: stores answer them with the whole object, or with an error
        return self._range(path, start, stop) if start < stop else pa.py_buffer(b"")

    def _range(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Return the bytes of a range that is not empty."""
        key = self._key(path)
        return pa.py_buffer(retrying(lambda: self._fs.cat_file(key, start, stop), self.uri_of(path)))

    def discard_copies_but(self, digests: Collection[str]) -> None:
        discard_files_but(digests, _DATA)

    def _name_without_sha256(self, path: str, status: dict[str, Any]) -> str:
        """Return the name of the cached copy of a file whose sha256 is not known."""
        return hashlib.sha256(f"{self.uri_of(path)} {_content_stamp(status)}".encode()).hexdigest()

    def local(self, path: str, sha256: str | None = None) -> Path:
        status = self._status(path)
        name = sha256 or self._name_without_sha256(path, status)

        def is_complete(copy: Path) -> bool:
            return copy.stat().st_size == status["size"] and (
                sha256 is None or digest_of_file(copy) == sha256
            )

        def build(copy: Path) -> None:
            self._download(path, status, copy)
            if not is_complete(copy):  # the transfer may have damaged the content: download it once more
                self._download(path, status, copy)
            check_sha256(copy, sha256, self.uri_of(path))

        return get_or_build(_cached(path, name), build, is_complete)

    def fetch(self, path: str, target: Path) -> None:
        self._download(path, self._status(path), target)

    def entry(self, path: str) -> Entry | None:
        try:
            return _entry(self._checked(path), self._status(path))
        except FileNotFoundError:
            return None

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        top = f"{self._prefix}/{normal_path(prefix)}" if prefix else self._prefix
        statuses = retrying(lambda: self._fs.find(top, detail=True), f"{self.uri}/{prefix}")
        root = f"{self._prefix}/"
        return entries_of(
            [
                (key.removeprefix(root), status)
                for key, status in statuses.items()
                if key.startswith(root) and key.endswith(suffix)
            ]
        )

    def uri_of(self, path: str) -> str:
        return f"{self.uri}/{self._checked(path)}"

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            retrying(lambda: self._fs.rm_file(self._key(path)), self.uri_of(path))

    def _download(self, path: str, status: dict[str, Any], target: Path) -> None:
        """Copy the object to a file. Subclasses use the status to read only the content that it describes."""
        retrying(
            lambda: self._fs.get_file(self._key(path), str(target), callback=keep_alive_callback()),
            self.uri_of(path),
        )

    def _reader(self, path: str, status: dict[str, Any]) -> pa.NativeFile:
        """Open the object as a stream; see `_download` for the status."""
        return pa.PythonFile(
            retrying(lambda: self._fs.open(self._key(path), "rb"), self.uri_of(path)), mode="r"
        )

    def _status(self, path: str) -> dict[str, Any]:
        """Return the size and the fields that identify the content. Raises FileNotFoundError."""
        return dict(retrying(lambda: self._fs.info(self._key(path)), self.uri_of(path)))

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{self._checked(path)}"

    def _checked(self, path: str) -> str:
        return path if self._any_keys else normal_path(path)


def keep_alive_callback() -> Any:
    """Return an fsspec callback that sends a keep-alive signal for every transferred chunk of a file."""
    from fsspec.callbacks import Callback

    return Callback(hooks={"keep_alive": lambda size, value, **_: keep_alive()})


def entries_of(objects: Sequence[tuple[str, dict[str, Any]]], any_keys: bool = False) -> list[Entry]:
    """Convert (path, status) pairs to entries in path order.

    Keys that no store writes (a//b, a/../b, a/) are left out, unless `any_keys` is set.
    """
    return [
        _entry(path, status)
        for path, status in sorted(objects, key=itemgetter(0))
        if any_keys or _is_path(path)
    ]


def _entry(path: str, status: dict[str, Any]) -> Entry:
    # Without a modification time, take the current time: the file may be new.
    names = ("LastModified", "last_modified", "mtime", "updated")
    when = next((status[name] for name in names if status.get(name)), None) or time.time()
    modified = when.timestamp() if isinstance(when, datetime) else float(when)
    return Entry(path, int(status["size"]), _content_stamp(status), modified)


def _is_path(name: str) -> bool:
    try:
        return normal_path(name) == name
    except DataError:
        return False


def _cached(path: str, name: str) -> Path:
    """Return the path in the cache of the copy `name` of a stored file."""
    return cache_directory() / name[:2] / (name + PurePosixPath(path).suffix)


def _content_stamp(status: dict[str, Any]) -> str:
    stamp = status.get("ETag") or status.get("etag") or status.get("LastModified") or status.get("mtime")
    return str(stamp or "").strip('"')
