"""A store below a prefix of an object store, through fsspec."""

import contextlib
import hashlib
import os
import secrets
import time
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from pipeline.errors import ConfigError
from pipeline.store.retry import retrying
from pipeline.store.store import PARTIAL, Entry, Store, cache_directory, checked, verified

_WHOLE_READ = 256 << 20         # bytes: up to here one request reads an object; beyond, a reader seeks


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

    def open(self, path: str, sha256: str | None = None) -> pa.NativeFile:
        if sha256 is not None and self._status(path)["size"] <= _WHOLE_READ:
            return pa.BufferReader(self.read_checked(path, sha256))
        if sha256 is not None:
            return pa.memory_map(str(self.local(path, sha256)))
        if self._status(path)["size"] <= _WHOLE_READ:
            return pa.BufferReader(self.read(path))
        return pa.PythonFile(retrying(lambda: self._fs.open(self._key(path), "rb"), self.uri_of(path)), mode="r")

    def local(self, path: str, sha256: str | None = None) -> Path:
        status = self._status(path)
        name = sha256 or hashlib.sha256(f"{self.uri_of(path)} {_stamp(status)}".encode()).hexdigest()
        place = cache_directory() / name[:2] / (name + PurePosixPath(path).suffix)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary = place.parent / f"{PARTIAL}{os.getpid()}-{secrets.token_hex(6)}"
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
