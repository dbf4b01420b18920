"""A store below a prefix of an S3 bucket.

Files are created by conditional writes. If the response is lost, an id in the object's metadata shows which
call wrote it. Large files are transferred in parts, and each part is retried by itself:
MANTA_STORE_DEADLINE_S is the limit for a call with its retries (default 120 seconds).

Environment variables: MANTA_STORE_TIMEOUT_S, the limit for one response (default 30 seconds);
AWS_ENDPOINT_URL, the server.
"""

import asyncio
import contextlib
import io
import math
import os
import re
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from pipeline.errors import ConfigError, PipelineError, TransientError
from pipeline.keep_alive import keep_alive
from pipeline.store.files.base import Entry, in_threads
from pipeline.store.files.range_reader import RangeReader
from pipeline.store.files.remote import ObjectStore, entries_of, time_limit_s
from pipeline.store.files.retry import StoreRefusal, retrying

Answer = TypeVar("Answer")

_MAX_CONCURRENT_CALLS = 32  # concurrent calls of one process; further threads wait
_CONNECT_S = 5.0
_CHUNK = 1 << 20  # bytes of a response read at once
_KEEP_ALIVE_S = 1.0  # between two keep-alive signals while a call runs

_ENDPOINT = re.compile(r"https?://[^/?#\s]+")
_clients: dict[tuple[object, ...], Any] = {}
_clients_lock = threading.Lock()
_call_slots = threading.BoundedSemaphore(_MAX_CONCURRENT_CALLS)


def client() -> Any:
    """Return the s3fs file system of this process."""
    variable = "AWS_ENDPOINT_URL_S3" if os.environ.get("AWS_ENDPOINT_URL_S3") else "AWS_ENDPOINT_URL"
    endpoint = os.environ.get(variable) or None
    if endpoint and not _ENDPOINT.match(endpoint):
        raise ConfigError(
            variable,
            "an address such as http://host:9000",
            repr(endpoint),
            "correct the environment variable",
        )
    timeout = time_limit_s()
    key = (os.getpid(), endpoint, timeout)
    with _clients_lock:
        if key not in _clients:
            _clients[key] = _connect(endpoint, timeout)
        return _clients[key]


def _connect(endpoint: str | None, timeout: float) -> Any:
    try:
        import s3fs
    except ImportError as error:
        raise ConfigError("s3://", "the package s3fs", str(error), "pip install s3fs") from None
    config = {
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "max_pool_connections": _MAX_CONCURRENT_CALLS,
        "connect_timeout": _CONNECT_S,
        "read_timeout": timeout,
    }
    return s3fs.S3FileSystem(
        endpoint_url=endpoint, config_kwargs=config, use_listings_cache=False, skip_instance_cache=True
    )


def run_call(
    call: Callable[[Any, dict[str, Any]], Coroutine[Any, Any, Answer]], arguments: dict[str, Any]
) -> Answer:
    """Run `call` in the event loop of s3fs as soon as a slot for a call is free, and return its result."""
    from fsspec.asyn import sync

    file_system = client()
    with _call_slots:
        answer: Answer = sync(file_system.loop, call, file_system, arguments)
    return answer


async def call_api(file_system: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the response of one call of the S3 API.

    The time limit allows for an upload of the body. It is enforced here, because the HTTP client's own
    timeout does not apply to a PUT that waits for its response after `100 Continue`.

    Args:
        file_system: the file system of s3fs.
        arguments: arguments of the call, and its name as "verb".

    Raises:
        TimeoutError: the call took longer than the limit.
    """
    limit = time_limit_s(len(arguments.get("Body", b"")))
    parameters = {name: value for name, value in arguments.items() if name != "verb"}
    response = _respond(file_system, arguments["verb"], parameters)
    call = asyncio.ensure_future(asyncio.wait_for(response, limit))
    while not (await asyncio.wait([call], timeout=_KEEP_ALIVE_S))[0]:
        keep_alive()  # this process waits and does not hang: an upload that is too slow ends at the limit
    return dict(call.result())


async def _respond(file_system: Any, verb: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the response of botocore's client.

    Raises:
        OSError: the errors of s3fs (FileNotFoundError and so on).
        ConfigError: the endpoint redirects every call.
    """
    from s3fs.errors import translate_boto_error

    await file_system.set_session()
    s3 = await file_system.get_s3(parameters["Bucket"])
    try:
        return dict(await getattr(s3, verb)(**parameters))
    except s3.exceptions.ClientError as error:
        raise translate_boto_error(error) from error
    except RecursionError:  # after a redirect, botocore asks for the bucket's region, and is redirected again
        raise ConfigError(
            f"s3://{parameters['Bucket']}",
            "an endpoint of S3",
            "a redirect for every call",
            "set AWS_ENDPOINT_URL to the address that it redirects to, or AWS_DEFAULT_REGION to the region",
        ) from None


async def read_object(file_system: Any, arguments: dict[str, Any]) -> bytes:
    """Read an object. The transfer may take any time as long as bytes keep arriving.

    Raises:
        ConnectionResetError: fewer bytes arrived than the response announced.
    """
    answer = await call_api(file_system, {"verb": "get_object", **arguments})
    chunks = []
    async with answer["Body"] as stream:
        while chunk := await stream.read(_CHUNK):
            chunks.append(chunk)
            keep_alive()
    content = b"".join(chunks)
    if len(content) != answer["ContentLength"]:
        raise ConnectionResetError(f"received {len(content)} of {answer['ContentLength']} bytes")
    return content


_MAX_PARTS_AT_ONCE = 8  # parts of one file in transfer: 128 MiB in memory
_PART_BYTES = 16 << 20  # bytes of a part; S3 requires at least 5 MiB
_MAX_PARTS = 10_000  # limit of S3
_MAX_SINGLE_CALL = 2 * _PART_BYTES  # bytes; larger objects are transferred in parts
_WRITER_KEY = "manta-writer"  # key of an object's metadata; the value identifies the call that wrote it
_BUCKET = re.compile(r"(arn:[^/]*/[^/]+|[^/]+)/?(.*)")
_BUCKET_NAME = re.compile(r"[a-zA-Z0-9.\-_]{1,255}|arn:.*")


@dataclass(frozen=True)
class _Content:
    """Bytes to be stored."""

    size: int
    read_range: Callable[[int, int], bytes]
    """read_range(start, end) returns the bytes from start to end; called from several threads"""


class S3Store(ObjectStore):
    """A prefix of a bucket.

    On a server without conditional writes, `create` replaces an existing file: `check_store` detects this,
    and commits must then be in another store.
    """

    def __init__(self, uri: str, any_keys: bool = False) -> None:
        super().__init__(uri, any_keys)
        match = _BUCKET.fullmatch(f"{self._prefix}/")
        if match is None:
            raise ConfigError(uri, "s3://bucket or s3://bucket/prefix", "no bucket", "correct the URI")
        self._bucket, self._key_prefix = match.groups()
        if not _BUCKET_NAME.fullmatch(self._bucket):
            expected = "a bucket's name of ASCII letters, digits, dots, hyphens and underscores"
            raise ConfigError(uri, expected, repr(self._bucket), "correct the URI")

    @property
    def _fs(self) -> Any:
        return client()

    def read(self, path: str) -> bytes:
        return self._get(path)

    def _range(self, path: str, start: int, stop: int) -> pa.Buffer:
        return pa.py_buffer(self._get(path, Range=f"bytes={start}-{stop - 1}"))

    def write(self, path: str, data: bytes) -> None:
        self._store(path, _Content(len(data), lambda start, end: data[start:end]), once=False)

    def create(self, path: str, data: bytes) -> bool:
        return self._store(path, _Content(len(data), lambda start, end: data[start:end]), once=True)

    def put(self, local: Path, path: str) -> None:
        with local.open("rb") as stream:
            size, handle = local.stat().st_size, stream.fileno()
            content = _Content(size, lambda start, end: os.pread(handle, end - start, start))
            self._store(path, content, once=False)
        local.unlink()

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        objects = chain.from_iterable(self._list_objects(prefix))
        return entries_of(
            [(path, status) for path, status in objects if path.endswith(suffix)], self._any_keys
        )

    def pages(self, prefix: str) -> Iterator[Sequence[Entry]]:
        yield from map(entries_of, self._list_objects(prefix))

    def names(self, prefix: str) -> tuple[str, ...]:
        """List the names of the files directly in the directory `prefix`, in order."""
        entries = entries_of([*chain.from_iterable(self._list_objects(prefix, Delimiter="/"))])
        return tuple(entry.path.rpartition("/")[2] for entry in entries)

    def _list_objects(self, prefix: str, **options: str) -> Iterator[Sequence[tuple[str, dict[str, Any]]]]:
        """Yield pages of (path, status) of the objects below the directory `prefix`; see `_status`."""
        top = f"{self._key(prefix)}/" if prefix else self._key_prefix
        where, markers = f"{self.uri}/{prefix}", ["ContinuationToken"]
        for page in self._answers("list_objects_v2", where, markers, Prefix=top, **options):
            yield [
                (s3_object["Key"].removeprefix(self._key_prefix), {**s3_object, "size": s3_object["Size"]})
                for s3_object in page.get("Contents", ())
            ]

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._call_on(path, "delete_object")

    def sweep(self, before: float) -> int:
        """Abort uploads that began earlier than `before`. Returns 0: S3 does not report the bytes freed."""
        markers = ["KeyMarker", "UploadIdMarker"]
        pages = self._answers("list_multipart_uploads", self.uri, markers, Prefix=self._key_prefix)
        for upload in chain.from_iterable(page.get("Uploads", ()) for page in pages):
            if upload["Initiated"].timestamp() < before:
                key, upload_id = upload["Key"], upload["UploadId"]
                with contextlib.suppress(FileNotFoundError):
                    self._call("abort_multipart_upload", self.uri, Key=key, UploadId=upload_id)
        return 0

    def _answers(
        self, verb: str, where: str, markers: Sequence[str], **arguments: str
    ) -> Iterator[dict[str, Any]]:
        """Yield the answers to a listing, one per page. Each page but the last names the start of the next
        page.

        Args:
            markers: names of the arguments that say where a page starts; each answer has their values for the
                next page as Next<name>.
        """
        next_page: dict[str, str] = {}
        while True:
            page = self._call(verb, where, **arguments, **next_page)
            yield page
            if not page.get("IsTruncated"):
                return
            next_page = {marker: page[f"Next{marker}"] for marker in markers}

    def _store(self, path: str, content: _Content, *, once: bool) -> bool:
        """Write the object. Returns False if `once` is set and the object existed before."""
        writer_id = uuid.uuid4().hex
        condition = {"IfNoneMatch": "*"} if once else {}
        try:
            if content.size <= _MAX_SINGLE_CALL:
                data = content.read_range(0, content.size)
                self._call_on(path, "put_object", Body=data, Metadata={_WRITER_KEY: writer_id}, **condition)
            else:
                self._upload_in_parts(path, content, writer_id, condition)
        except (FileExistsError, StoreRefusal) as error:
            status = error.status if isinstance(error, StoreRefusal) else HTTPStatus.PRECONDITION_FAILED
            if once and status == HTTPStatus.NOT_IMPLEMENTED:
                return self._store(path, content, once=False)
            if not once or status != HTTPStatus.PRECONDITION_FAILED:
                raise
            # An earlier attempt of this call may have created the object and lost the response.
            return self._was_written_by(path, writer_id)
        return True

    def _upload_in_parts(
        self, path: str, content: _Content, writer_id: str, condition: dict[str, str]
    ) -> None:
        upload = self._call_on(path, "create_multipart_upload", Metadata={_WRITER_KEY: writer_id})
        upload_id = upload["UploadId"]

        def send(numbered_range: tuple[int, tuple[int, int]]) -> dict[str, Any]:
            number, (start, end) = numbered_range
            part = content.read_range(start, end)
            answer = self._call_on(path, "upload_part", UploadId=upload_id, PartNumber=number, Body=part)
            return {"PartNumber": number, "ETag": answer["ETag"]}

        ranges = _ranges(content.size, max(_PART_BYTES, math.ceil(content.size / _MAX_PARTS)))
        try:
            parts = {"Parts": in_threads(send, enumerate(ranges, 1), _MAX_PARTS_AT_ONCE)}
            self._call_on(
                path, "complete_multipart_upload", UploadId=upload_id, MultipartUpload=parts, **condition
            )
        except FileNotFoundError as error:
            # The upload is gone: it was completed and the response was lost, or another process aborted it.
            if not self._was_written_by(path, writer_id):
                where = self.uri_of(path)
                if condition and self.exists(path):
                    raise FileExistsError(where) from error
                raise TransientError(where, "an upload in progress", str(error), "run again") from error
        except (OSError, PipelineError):
            with contextlib.suppress(OSError, PipelineError):
                self._call_on(path, "abort_multipart_upload", UploadId=upload_id)
            raise

    def _was_written_by(self, path: str, writer_id: str) -> bool:
        """Return whether the object at `path` was written by the call with this id."""
        try:
            return bool(self._call_on(path, "head_object").get("Metadata", {}).get(_WRITER_KEY) == writer_id)
        except FileNotFoundError:
            return False

    def _download(self, path: str, status: dict[str, Any], target: Path) -> None:
        size, etag = int(status["size"]), status["ETag"]
        if size <= _MAX_SINGLE_CALL:
            target.write_bytes(self._get(path, IfMatch=etag))
            return
        with target.open("wb") as stream:
            stream.truncate(size)

            def copy(byte_range: tuple[int, int]) -> None:
                start, end = byte_range
                os.pwrite(stream.fileno(), self._read_range(path, etag, start, end), start)

            in_threads(copy, _ranges(size, _PART_BYTES), _MAX_PARTS_AT_ONCE)

    def _reader(self, path: str, status: dict[str, Any]) -> pa.NativeFile:
        etag, size = status["ETag"], int(status["size"])
        source = RangeReader(lambda start, end: self._read_range(path, etag, start, end), size)
        return pa.PythonFile(io.BufferedReader(source, buffer_size=_PART_BYTES // 2), mode="r")

    def _read_range(self, path: str, etag: str, start: int, end: int) -> bytes:
        return self._get(path, IfMatch=etag, Range=f"bytes={start}-{end - 1}")

    def _get(self, path: str, **conditions: str) -> bytes:
        """Read the object, or a range of it. Raises TransientError if it was replaced meanwhile."""
        arguments = {"Bucket": self._bucket, "Key": self._key(path), **conditions}
        try:
            return retrying(lambda: run_call(read_object, arguments), self.uri_of(path))
        except StoreRefusal as error:
            if error.status != HTTPStatus.PRECONDITION_FAILED:
                raise
            raise TransientError(
                self.uri_of(path),
                "the same content while it is read",
                "the object was replaced",
                "run again when no other process writes it",
            ) from error

    def _status(self, path: str) -> dict[str, Any]:
        head = self._call_on(path, "head_object")
        return {"size": head["ContentLength"], "ETag": head["ETag"], "LastModified": head["LastModified"]}

    def _call_on(self, path: str, verb: str, **arguments: Any) -> dict[str, Any]:
        return self._call(verb, self.uri_of(path), Key=self._key(path), **arguments)

    def _call(self, verb: str, where: str, **arguments: Any) -> dict[str, Any]:
        call = {"verb": verb, "Bucket": self._bucket, **arguments}
        return dict(retrying(lambda: run_call(call_api, call), where))

    def _key(self, path: str) -> str:
        return self._key_prefix + self._checked(path)


def _ranges(size: int, step: int) -> list[tuple[int, int]]:
    """Divide `size` bytes into ranges (start, end) of `step` bytes; the last may be shorter."""
    return [(start, min(size, start + step)) for start in range(0, size, step)]
