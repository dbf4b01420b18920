"""A store below a prefix of an S3 bucket.

Files are created by conditional writes; if the response to such a write was lost, the object itself shows who
wrote it. Large files go in parts, each retried alone. A process has one client for all its threads.

Environment variables: MANTA_STORE_TIMEOUT_S, the limit for one response (default 30 seconds);
MANTA_STORE_DEADLINE_S, the limit for a call with its retries (default 120 seconds); AWS_ENDPOINT_URL, the
server.
"""

import asyncio
import contextlib
import io
import os
import re
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from pipeline.errors import ConfigError, PipelineError, TransientError
from pipeline.headway import headway
from pipeline.store.base import Entry, checked
from pipeline.store.remote import ObjectStore, entries_of
from pipeline.store.retry import answer_of, retrying, seconds

A = TypeVar("A")
B = TypeVar("B")

_MAX_CALLS = 32  # concurrent calls of one process; further threads wait
_MAX_PARTS_AT_ONCE = 8  # parts of one file in transfer: 128 MiB in memory
_PART = 16 << 20  # bytes of a part; S3 requires at least 5 MiB
_MAX_PARTS = 10_000  # limit of S3
_ONE_CALL = 2 * _PART  # bytes; larger objects are transferred in parts
_CONNECT_S, _ANSWER_S = 5.0, 30.0
_SLOWEST = 256 << 10  # bytes/s; slower uploads time out
_CHUNK = 1 << 20  # bytes of a response read at once
_HEADWAY_S = 1.0  # between two reports of headway while a call runs
_MARK = "manta-writer"  # key of an object's metadata; the value identifies the call that wrote it
_BUCKET = re.compile(r"(arn:[^/]*/[^/]+|[^/]+)/?(.*)")

_clients: dict[tuple[object, ...], Any] = {}
_making = threading.Lock()
_turns = threading.BoundedSemaphore(_MAX_CALLS)


def client() -> Any:
    """Return the s3fs file system, shared by the threads of this process. Only `retrying` retries."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
    timeout = seconds("MANTA_STORE_TIMEOUT_S", _ANSWER_S)
    key = (os.getpid(), endpoint, timeout)
    with _making:
        if key not in _clients:
            _clients[key] = _connected(endpoint, timeout)
        return _clients[key]


def _connected(endpoint: str | None, timeout: float) -> Any:
    try:
        import s3fs
    except ImportError as error:
        raise ConfigError("s3://", "the package s3fs", str(error), "pip install s3fs") from None
    config = {
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "max_pool_connections": _MAX_CALLS,
        "connect_timeout": _CONNECT_S,
        "read_timeout": timeout,
    }
    made = s3fs.S3FileSystem(
        endpoint_url=endpoint, config_kwargs=config, use_listings_cache=False, skip_instance_cache=True
    )
    made.retries = 1
    return made


@dataclass(frozen=True)
class _Content:
    """Bytes to be stored."""

    size: int
    piece: Callable[[int, int], bytes]
    """piece(start, end) returns the bytes from start to end; must be thread-safe"""

    def ranges(self) -> list[tuple[int, int]]:
        return _ranges(self.size, max(_PART, -(-self.size // _MAX_PARTS)))


class S3Store(ObjectStore):
    """A prefix of a bucket.

    On a server without conditional writes, `create` replaces an existing file: `probe` detects this, and
    commits must then be stored elsewhere.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        found = _BUCKET.fullmatch(self._prefix)
        if found is None:
            raise ConfigError(uri, "s3://bucket or s3://bucket/prefix", "no bucket", "correct the URI")
        self._bucket, self._below = found[1], f"{found[2]}/" if found[2] else ""

    @property
    def _fs(self) -> Any:
        return client()

    def read(self, path: str) -> bytes:
        return self._get(path)

    def write(self, path: str, data: bytes) -> None:
        self._store(path, _Content(len(data), lambda start, end: data[start:end]), once=False)

    def create(self, path: str, data: bytes) -> bool:
        return self._store(path, _Content(len(data), lambda start, end: data[start:end]), once=True)

    def put(self, local: Path, path: str) -> None:
        with local.open("rb") as stream:
            content = _Content(
                local.stat().st_size, lambda start, end: os.pread(stream.fileno(), end - start, start)
            )
            self._store(path, content, once=False)
        local.unlink()

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        found = [(name, status) for name, status in self._listed(prefix) if name.endswith(suffix)]
        return entries_of(found)

    def names(self, prefix: str) -> tuple[str, ...]:
        """List the names of the files directly in the directory `prefix`, in order."""
        found = entries_of([*self._listed(prefix, Delimiter="/")])
        return tuple(entry.path.rpartition("/")[2] for entry in found)

    def _listed(self, prefix: str, **options: str) -> Iterator[tuple[str, dict[str, Any]]]:
        top = f"{self._key(prefix)}/" if prefix else self._below
        following: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", f"{self.uri}/{prefix}", Prefix=top, **options, **following)
            for each in page.get("Contents", ()):
                yield each["Key"].removeprefix(self._below), {**each, "size": each["Size"]}
            if not page.get("IsTruncated"):
                return
            following = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._call_on(path, "delete_object")

    def sweep(self, before: float) -> int:
        """Abort uploads that killed writers began `before`. Returns 0: S3 does not report the bytes freed."""
        page = self._call("list_multipart_uploads", self.uri, Prefix=self._below)
        for upload in page.get("Uploads", ()):
            if upload["Initiated"].timestamp() < before:
                key, upload_id = upload["Key"], upload["UploadId"]
                with contextlib.suppress(FileNotFoundError):
                    self._call("abort_multipart_upload", self.uri, Key=key, UploadId=upload_id)
        return 0

    def _store(self, path: str, content: _Content, *, once: bool) -> bool:
        """Write the object. Returns False if `once` is set and the object existed before."""
        mark = uuid.uuid4().hex
        condition = {"IfNoneMatch": "*"} if once else {}
        try:
            if content.size <= _ONE_CALL:
                body = content.piece(0, content.size)
                self._call_on(path, "put_object", Body=body, Metadata={_MARK: mark}, **condition)
            else:
                self._in_parts(path, content, mark, condition)
        except OSError as error:
            code, status = answer_of(error)
            if once and (code == "NotImplemented" or status == 501):
                return self._store(path, content, once=False)
            if not once or not (isinstance(error, FileExistsError) or status == 412):
                raise
            # The HTTP client may have lost the response to a call that created the object, and repeated
            # the call: then the existing object is ours.
            return self._is_by(path, mark)
        return True

    def _in_parts(self, path: str, content: _Content, mark: str, condition: dict[str, str]) -> None:
        upload = self._call_on(path, "create_multipart_upload", Metadata={_MARK: mark})["UploadId"]

        def send(part: tuple[int, tuple[int, int]]) -> dict[str, Any]:
            number, (start, end) = part
            body = content.piece(start, end)
            answer = self._call_on(path, "upload_part", UploadId=upload, PartNumber=number, Body=body)
            return {"PartNumber": number, "ETag": answer["ETag"]}

        try:
            parts = {"Parts": _at_once(send, enumerate(content.ranges(), 1))}
            complete = "complete_multipart_upload"
            self._call_on(path, complete, UploadId=upload, MultipartUpload=parts, **condition)
        except FileNotFoundError as error:
            # The upload is gone: it was completed and the response was lost, or another process aborted it.
            if not self._is_by(path, mark):
                where = self.uri_of(path)
                if condition and self.exists(path):
                    raise FileExistsError(where) from error
                raise TransientError(where, "an upload in progress", str(error), "run again") from error
        except (OSError, PipelineError):
            with contextlib.suppress(OSError, PipelineError):
                self._call_on(path, "abort_multipart_upload", UploadId=upload)
            raise

    def _is_by(self, path: str, mark: str) -> bool:
        """Return whether the object at `path` was written by the call with that mark."""
        try:
            return bool(self._call_on(path, "head_object").get("Metadata", {}).get(_MARK) == mark)
        except FileNotFoundError:
            return False

    def _download(self, path: str, status: dict[str, Any], target: Path) -> None:
        size, etag = int(status["size"]), status["ETag"]
        if size <= _ONE_CALL:
            target.write_bytes(self._get(path, IfMatch=etag))
            return
        with target.open("wb") as stream:
            stream.truncate(size)

            def take(span: tuple[int, int]) -> None:
                os.pwrite(stream.fileno(), self._span(path, etag, *span), span[0])

            _at_once(take, _ranges(size, _PART))

    def _reader(self, path: str, status: dict[str, Any]) -> pa.NativeFile:
        source = _Spans(lambda start, end: self._span(path, status["ETag"], start, end), int(status["size"]))
        return pa.PythonFile(io.BufferedReader(source, buffer_size=_PART // 2), mode="r")

    def _span(self, path: str, etag: str, start: int, end: int) -> bytes:
        return self._get(path, IfMatch=etag, Range=f"bytes={start}-{end - 1}")

    def _get(self, path: str, **conditions: str) -> bytes:
        """Read the object, or a range of it. Raises TransientError if it was replaced meanwhile."""
        arguments = {"Bucket": self._bucket, "Key": self._key(path), **conditions}
        try:
            return retrying(lambda: _answered(_body, arguments), self.uri_of(path))
        except OSError as error:
            if answer_of(error)[1] != 412:
                raise
            expected, found = "the same content while it is read", "the object was replaced"
            remedy = "run again when no other process writes it"
            raise TransientError(self.uri_of(path), expected, found, remedy) from error

    def _status(self, path: str) -> dict[str, Any]:
        found = self._call_on(path, "head_object")
        return {"size": found["ContentLength"], "ETag": found["ETag"], "LastModified": found["LastModified"]}

    def _call_on(self, path: str, verb: str, **arguments: Any) -> dict[str, Any]:
        return self._call(verb, self.uri_of(path), Key=self._key(path), **arguments)

    def _call(self, verb: str, where: str, **arguments: Any) -> dict[str, Any]:
        call = {"verb": verb, "Bucket": self._bucket, **arguments}
        return dict(retrying(lambda: _answered(_called, call), where))

    def _key(self, path: str) -> str:
        return self._below + checked(path)


class _Spans(io.RawIOBase):
    """An object as a seekable stream. Each read requests that range."""

    def __init__(self, span: Callable[[int, int], bytes], size: int) -> None:
        self._span, self._size, self._position = span, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._size, self._position + len(buffer))
        if end <= self._position:
            return 0
        content = self._span(self._position, end)
        buffer[: len(content)] = content
        self._position = end
        return len(content)


def _answered(call: Callable[[Any, dict[str, Any]], Coroutine[Any, Any, A]], arguments: dict[str, Any]) -> A:
    """Make one call, after waiting until fewer than _MAX_CALLS are running, and return its result."""
    from fsspec.asyn import sync

    files = client()
    with _turns:
        answer: A = sync(files.loop, call, files, arguments)
    return answer


async def _called(files: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the response of one call of the S3 API.

    The limit allows for the time that an upload of the body takes. The HTTP client's own timeout is not
    enough: it does not apply while a PUT that waited for `100 Continue` waits for its response.

    Raises:
        TimeoutError: the call took longer than the limit.
    """
    limit = seconds("MANTA_STORE_TIMEOUT_S", _ANSWER_S) + len(arguments.get("Body", b"")) / _SLOWEST
    rest = {name: value for name, value in arguments.items() if name != "verb"}
    call = asyncio.ensure_future(asyncio.wait_for(files._call_s3(arguments["verb"], **rest), limit))
    while not (await asyncio.wait([call], timeout=_HEADWAY_S))[0]:
        headway()  # the progress of an upload is unknown, but the limit ends one that is too slow
    return dict(call.result())


async def _body(files: Any, arguments: dict[str, Any]) -> bytes:
    """Read an object. There is no limit on the whole transfer as long as bytes keep arriving.

    Raises:
        ConnectionResetError: fewer bytes arrived than the response announced.
    """
    answer = await _called(files, {"verb": "get_object", **arguments})
    chunks = []
    async with answer["Body"] as stream:
        while chunk := await stream.read(_CHUNK):
            chunks.append(chunk)
            headway()
    content = b"".join(chunks)
    if len(content) != answer["ContentLength"]:
        raise ConnectionResetError(f"received {len(content)} of {answer['ContentLength']} bytes")
    return content


def _ranges(size: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(size, start + step)) for start in range(0, size, step)]


def _at_once(call: Callable[[A], B], of: Iterable[A]) -> list[B]:
    """Apply `call` to each item in threads. After an error, calls that have not begun are cancelled."""
    with ThreadPoolExecutor(_MAX_PARTS_AT_ONCE) as pool:
        calls = [pool.submit(call, each) for each in of]
        try:
            return [each.result() for each in calls]
        finally:
            pool.shutdown(cancel_futures=True)
