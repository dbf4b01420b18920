"""A store below a prefix of an object store, through fsspec."""

import contextlib
import hashlib
import time
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from pipeline.errors import ConfigError, DataError
from pipeline.headway import headway
from pipeline.store.base import Entry, Store, checked, verified
from pipeline.store.cache import cache_directory, digest_of_file, kept
from pipeline.store.retry import retrying

_WHOLE_READ = 256 << 20  # bytes: up to here an object is read whole; beyond, a reader seeks


class ObjectStore(Store):
    """A prefix of an object store, through fsspec. Credentials and endpoint come from the environment and travel nowhere."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._prefix = uri.split("://", 1)[1]

    @property
    def _fs(self) -> Any:
        """The file system; fsspec keeps one instance per process and settings."""
        import fsspec

        try:
            return fsspec.filesystem(urlsplit(self.uri).scheme)
        except (ImportError, ValueError) as error:
            remedy = "use file://, s3://, or install the file system's package"
            raise ConfigError(self.uri, "a URI that fsspec can open", str(error), remedy) from None

    def read(self, path: str) -> bytes:
        return bytes(retrying(lambda: self._fs.cat_file(self._key(path)), self.uri_of(path)))

    def read_checked(self, path: str, sha256: str) -> bytes:
        try:
            return super().read_checked(path, sha256)
        except DataError:  # what was damaged on the way comes whole the second time
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

        created = retrying(attempt, self.uri_of(path))
        # a first try may have stored the object and lost its answer: then the object that is in the way is ours
        return created or (attempts > 1 and self.read(path) == data)

    def put(self, local: Path, path: str) -> None:
        retrying(
            lambda: self._fs.put_file(str(local), self._key(path), callback=_headway()), self.uri_of(path)
        )
        local.unlink()

    def open(self, path: str, sha256: str | None = None) -> pa.NativeFile:
        status = self._status(path)
        if status["size"] > _WHOLE_READ:
            return (
                pa.memory_map(str(self.local(path, sha256)))
                if sha256 is not None
                else self._reader(path, status)
            )
        return pa.BufferReader(self.read(path) if sha256 is None else self.read_checked(path, sha256))

    def local(self, path: str, sha256: str | None = None) -> Path:
        status = self._status(path)
        size = int(status["size"])
        name = sha256 or hashlib.sha256(f"{self.uri_of(path)} {_stamp(status)}".encode()).hexdigest()
        place = cache_directory() / name[:2] / (name + PurePosixPath(path).suffix)

        def whole(copy: Path) -> bool:
            return copy.stat().st_size == size and (sha256 is None or digest_of_file(copy) == sha256)

        def build(copy: Path) -> None:
            self._download(path, status, copy)
            if not whole(copy):  # damaged on the way: once more
                self._download(path, status, copy)
            verified(copy, sha256, self.uri_of(path))

        return kept(place, build, whole)

    def fetch(self, path: str, place: Path) -> None:
        self._download(path, self._status(path), place)

    def size(self, path: str) -> int | None:
        try:
            return int(self._status(path)["size"])
        except FileNotFoundError:
            return None

    def entry(self, path: str) -> Entry | None:
        """The file alone, as a listing shows it; None when there is none."""
        try:
            return entries_of([(path, self._status(path))])[0]
        except FileNotFoundError:
            return None

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        top = f"{self._prefix}/{checked(prefix)}" if prefix else self._prefix
        found = retrying(lambda: self._fs.find(top, detail=True), f"{self.uri}/{prefix}")
        below = f"{self._prefix}/"
        named = (
            (name.removeprefix(below), status) for name, status in found.items() if name.startswith(below)
        )
        return entries_of([(name, status) for name, status in named if name.endswith(suffix)])

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            retrying(lambda: self._fs.rm_file(self._key(path)), self.uri_of(path))

    def _download(self, path: str, status: dict[str, Any], place: Path) -> None:
        retrying(
            lambda: self._fs.get_file(self._key(path), str(place), callback=_headway()), self.uri_of(path)
        )

    def _reader(self, path: str, status: dict[str, Any]) -> pa.NativeFile:
        return pa.PythonFile(
            retrying(lambda: self._fs.open(self._key(path), "rb"), self.uri_of(path)), mode="r"
        )

    def _status(self, path: str) -> dict[str, Any]:
        """size and whatever tells the content apart; FileNotFoundError where there is no such file."""
        return dict(retrying(lambda: self._fs.info(self._key(path)), self.uri_of(path)))

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{checked(path)}"


def _headway() -> Any:
    """For fsspec to call at every piece of a file that has come or gone."""
    from fsspec.callbacks import Callback

    return Callback(hooks={"headway": lambda size, value, **_: headway()})


def entries_of(found: list[tuple[str, dict[str, Any]]]) -> list[Entry]:
    """In path order; a key that is no path of a file (a//b, a/../b, a/) belongs to somebody else."""
    mine = [(name, status) for name, status in found if _is_path(name)]
    return sorted(
        (Entry(name, int(status["size"]), _stamp(status), _modified(status)) for name, status in mine),
        key=lambda entry: entry.path,
    )


def _is_path(name: str) -> bool:
    try:
        return checked(name) == name
    except DataError:
        return False


def _stamp(status: dict[str, Any]) -> str:
    return str(
        status.get("ETag") or status.get("etag") or status.get("LastModified") or status.get("mtime") or ""
    ).strip('"')


def _modified(status: dict[str, Any]) -> float:
    """Now where the store does not tell: what may be new is not taken for old."""
    when = status.get("LastModified") or status.get("mtime") or status.get("updated")
    return when.timestamp() if isinstance(when, datetime) else float(when or time.time())
