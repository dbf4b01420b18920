"""A store below a prefix of a container of Azure Blob Storage, or of a bucket of Google Cloud Storage.

The driver of each is an fsspec file system that an extra installs, and that is imported only for such a root:
so these stores have a module of their own. Objects are created by the driver's conditional writes. A mark in
each object shows which call wrote it, in case the response was lost. A driver also repeats failed requests by
itself; a call and its repetitions end after MANTA_STORE_TIMEOUT_S plus the time that a slow transfer takes.
"""

import contextlib
import functools
import io
import logging
import os
import re
import uuid
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from pipeline.config import credentials_of
from pipeline.errors import ConfigError, MissingFile, TransientError
from pipeline.store.files.range_reader import RangeReader
from pipeline.store.files.remote import ObjectStore, keep_alive_callback, time_limit_s
from pipeline.store.files.retry import retrying

_CONNECT_S = 5
_WRITER_KEY = "manta-writer"  # the value identifies the call that wrote the object
_READ_AHEAD = 8 << 20  # bytes
# account of a connection string of Azure
_ACCOUNT = re.compile(
    r"(?:^|;)(?:AccountName=|BlobEndpoint=https?://(?=[^/;]+\.blob\.))([^;.]+)", re.IGNORECASE
)


class CloudStore(ObjectStore):
    """A store whose driver writes with mode="create", and stores the id of the writer with an object."""

    driver: ClassVar[str]
    """package of the file system"""
    extra: ClassVar[str]
    """extra of this project that installs the driver"""

    @property
    def _fs(self) -> Any:
        try:
            return self._connect()
        except ImportError as error:
            raise ConfigError(
                self.uri,
                f"the package {self.driver}",
                str(error),
                f'install it: pip install "manta-embeddings[{self.extra}]"',
            ) from None
        except ValueError as error:
            raise ConfigError(
                self.uri,
                "credentials in the environment",
                str(error),
                f"set {credentials_of(self.uri)}",
            ) from None

    @abstractmethod
    def _connect(self) -> Any:
        """Return this process's file system for the current environment."""

    @abstractmethod
    def _mark(self, writer_id: str) -> dict[str, Any]:
        """Return the options for a write that store the writer's id with the object."""

    @abstractmethod
    def _marked(self, status: dict[str, Any]) -> str:
        """Return the writer's id from the status of an object; another text if the object has no mark."""

    def write(self, path: str, data: bytes) -> None:
        with self._existing_bucket():
            key, limit = self._key(path), time_limit_s(len(data))
            retrying(lambda: self._fs.pipe_file(key, data, timeout=limit), self.uri_of(path))

    def create(self, path: str, data: bytes) -> bool:
        key, limit, writer_id = self._key(path), time_limit_s(len(data)), uuid.uuid4().hex

        def attempt() -> bool:
            try:
                self._fs.pipe_file(key, data, mode="create", timeout=limit, **self._mark(writer_id))
            except FileExistsError:
                # An earlier attempt of this call may have created the object and lost the response.
                return self._writer_of(path) == writer_id
            return True

        with self._existing_bucket():
            return retrying(attempt, self.uri_of(path))

    def _writer_of(self, path: str) -> str:
        """Return the id of the call that created an object. Raises TransientError if the object is gone."""
        try:
            return self._marked(self._status(path))
        except FileNotFoundError:
            where = self.uri_of(path)
            raise TransientError(where, "an object that exists", "none", "run again") from None

    def put(self, local: Path, path: str) -> None:
        key, limit, signal = self._key(path), time_limit_s(local.stat().st_size), keep_alive_callback()
        with self._existing_bucket():
            retrying(
                lambda: self._fs.put_file(str(local), key, callback=signal, timeout=limit),
                self.uri_of(path),
            )
        local.unlink()

    def _range(self, path: str, start: int, stop: int) -> pa.Buffer:
        key, limit = self._key(path), time_limit_s(stop - start)
        return pa.py_buffer(
            retrying(lambda: self._fs.cat_file(key, start, stop, timeout=limit), self.uri_of(path))
        )

    def _reader(self, path: str, status: dict[str, Any]) -> pa.NativeFile:
        source = RangeReader(
            lambda start, end: self.read_range(path, start, end).to_pybytes(), int(status["size"])
        )
        return pa.PythonFile(io.BufferedReader(source, buffer_size=_READ_AHEAD), mode="r")

    def _status(self, path: str) -> dict[str, Any]:
        key, limit = self._key(path), time_limit_s()
        status = dict(retrying(lambda: self._fs.info(key, timeout=limit), self.uri_of(path)))
        if status["type"] == "directory":
            raise MissingFile.at(self.uri_of(path))
        return status

    @contextlib.contextmanager
    def _existing_bucket(self) -> Iterator[None]:
        """Explain the error of a write to a bucket that does not exist."""
        try:
            yield
        except FileNotFoundError as error:
            raise ConfigError(
                self.uri, "a bucket that exists", str(error), "check its name, or create it"
            ) from None


class AzureStore(CloudStore):
    """A prefix of a container: az://container/prefix, or abfs://container@account.dfs.core.windows.net/prefix.

    The mark is a parameter of the content type, since the driver writes metadata of its own.
    """

    driver, extra = "adlfs", "azure"

    def __init__(self, uri: str, any_keys: bool = False) -> None:
        super().__init__(uri, any_keys)
        container, at, rest = self._prefix.partition("@")
        host, _, prefix = rest.partition("/")
        self._account: str | None = None
        if at and "/" not in container:
            self._account = host.partition(".")[0] or None
            self._prefix = f"{container}/{prefix}".rstrip("/")

    def _connect(self) -> Any:
        names = ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME")
        connection, account = map(os.environ.get, names)
        named = _ACCOUNT.search(connection or "")
        if self._account and named and named[1].lower() != self._account.lower():
            raise ConfigError(
                self.uri,
                f"{names[0]} of the account {self._account}",
                f"one of the account {named[1]}",
                "correct the URI, or the environment variable",
            )
        return _azure(os.getpid(), connection, self._account or account, time_limit_s())

    def _mark(self, writer_id: str) -> dict[str, Any]:
        return {"content_settings": {"content_type": f"application/octet-stream; {_WRITER_KEY}={writer_id}"}}

    def _marked(self, status: dict[str, Any]) -> str:
        return str(status["content_settings"]["content_type"]).rpartition("=")[2]


class GoogleStore(CloudStore):
    """A prefix of a bucket: gs://bucket/prefix. The mark is metadata of the object."""

    driver, extra = "gcsfs", "gcs"

    def _connect(self) -> Any:
        return _google(os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST"), time_limit_s())

    def _mark(self, writer_id: str) -> dict[str, Any]:
        return {"metadata": {_WRITER_KEY: writer_id}}

    def _marked(self, status: dict[str, Any]) -> str:
        return str(status.get("metadata", {}).get(_WRITER_KEY))


# One file system for each process and environment, shared by all threads.
@functools.lru_cache
def _azure(process: int, connection: str | None, account: str | None, answer_s: float) -> Any:
    from adlfs import AzureBlobFileSystem

    return AzureBlobFileSystem(
        connection_string=connection,
        account_name=account,
        connection_timeout=_CONNECT_S,
        read_timeout=answer_s,
        use_listings_cache=False,
        skip_instance_cache=True,
    )


@functools.lru_cache
def _google(process: int, endpoint: str | None, answer_s: float) -> Any:
    import aiohttp

    # the class that gcsfs itself exports asks another API for the bucket's kind
    from gcsfs.core import GCSFileSystem

    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs tracebacks of errors that it raises
    limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=answer_s)
    return GCSFileSystem(
        endpoint_url=endpoint,
        session_kwargs={"timeout": limits},
        use_listings_cache=False,
        skip_instance_cache=True,
    )
