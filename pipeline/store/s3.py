"""A store below a prefix of an S3 bucket: conditional creation whose lost answers are resolved, parts that are tried again one by one, one client per process.

MANTA_STORE_TIMEOUT_S (30) is how long one answer may take, MANTA_STORE_DEADLINE_S (120) how long a call is tried again. AWS_ENDPOINT_URL names another server.
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

_CALLS_AT_ONCE = 32  # of one process, all its threads together; more of them wait for their turn
_PARTS_AT_ONCE = 8  # of one file, 128 MiB in memory
_PART = 16 << 20  # bytes; S3 takes at least 5 MiB
_MOST_PARTS = 10_000  # S3's limit
_ONE_CALL = 2 * _PART  # bytes: up to here an object goes and comes in one call
_CONNECT_S, _ANSWER_S = 5.0, 30.0
_SLOWEST = 256 << 10  # bytes/s: a body that moves more slowly counts as stuck
_PIECE = 1 << 20  # bytes of a body that are taken at once
_SIGN_S = 1.0  # between two signs that a call is under way
_MARK = "manta-writer"  # metadata of an object: which call wrote it
_BUCKET = re.compile(r"(arn:[^/]*/[^/]+|[^/]+)/?(.*)")

_clients: dict[tuple[object, ...], Any] = {}
_making = threading.Lock()
_turns = threading.BoundedSemaphore(_CALLS_AT_ONCE)


def client() -> Any:
    """The s3fs file system of this process, for all its threads. It makes each call once: `retrying` is what tries again."""
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
        "max_pool_connections": _CALLS_AT_ONCE,
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
    """What is to be stored. piece(start, end): those bytes; threads may ask at once."""

    size: int
    piece: Callable[[int, int], bytes]

    def ranges(self) -> list[tuple[int, int]]:
        return _ranges(self.size, max(_PART, -(-self.size // _MOST_PARTS)))


class S3Store(ObjectStore):
    """A prefix of a bucket. A store that refuses conditional writes is treated as one that ignores them: `probe` tells, and commits have to lie elsewhere."""

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
        """Names of the files in the directory `prefix` itself, in order; what lies in directories below it is not listed."""
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
        """Uploads that killed writers began `before` are given up; how many bytes that frees S3 does not tell."""
        page = self._call("list_multipart_uploads", self.uri, Prefix=self._below)
        for upload in page.get("Uploads", ()):
            if upload["Initiated"].timestamp() < before:
                with contextlib.suppress(FileNotFoundError):
                    self._call(
                        "abort_multipart_upload", self.uri, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
        return 0

    def _store(self, path: str, content: _Content, *, once: bool) -> bool:
        """False where the object was there before and `once` is asked for."""
        mark = uuid.uuid4().hex
        condition = {"IfNoneMatch": "*"} if once else {}
        try:
            if content.size <= _ONE_CALL:
                self._call_on(
                    path,
                    "put_object",
                    Body=content.piece(0, content.size),
                    Metadata={_MARK: mark},
                    **condition,
                )
            else:
                self._in_parts(path, content, mark, condition)
        except OSError as error:
            code, status = answer_of(error)
            if once and (code == "NotImplemented" or status == 501):
                return self._store(path, content, once=False)
            if not once or not (isinstance(error, FileExistsError) or status == 412):
                raise
            # the connection may have lost the answer of a call that did create it, and made the call again by itself: then what is in the way is ours
            return self._is_by(path, mark)
        return True

    def _in_parts(self, path: str, content: _Content, mark: str, condition: dict[str, str]) -> None:
        upload = self._call_on(path, "create_multipart_upload", Metadata={_MARK: mark})["UploadId"]

        def send(part: tuple[int, tuple[int, int]]) -> dict[str, Any]:
            number, (start, end) = part
            answer = self._call_on(
                path, "upload_part", UploadId=upload, PartNumber=number, Body=content.piece(start, end)
            )
            return {"PartNumber": number, "ETag": answer["ETag"]}

        try:
            parts = _at_once(send, enumerate(content.ranges(), 1))
            self._call_on(
                path,
                "complete_multipart_upload",
                UploadId=upload,
                MultipartUpload={"Parts": parts},
                **condition,
            )
        except FileNotFoundError as error:  # no such upload any more: the answer of a completion was lost, or somebody gave the upload up
            if not self._is_by(path, mark):
                if condition and self.exists(path):
                    raise FileExistsError(self.uri_of(path)) from error
                raise TransientError(
                    self.uri_of(path), "its upload to be there", str(error), "run again"
                ) from error
        except (OSError, PipelineError):
            with contextlib.suppress(OSError, PipelineError):
                self._call_on(path, "abort_multipart_upload", UploadId=upload)
            raise

    def _is_by(self, path: str, mark: str) -> bool:
        """Whether the object at `path` was written by the call with that mark."""
        try:
            return bool(self._call_on(path, "head_object").get("Metadata", {}).get(_MARK) == mark)
        except FileNotFoundError:
            return False

    def _download(self, path: str, status: dict[str, Any], place: Path) -> None:
        size, etag = int(status["size"]), status["ETag"]
        if size <= _ONE_CALL:
            place.write_bytes(self._get(path, IfMatch=etag))
            return
        with place.open("wb") as stream:
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
        """The object, or a range of it. TransientError where it is no more the one that was asked for."""
        arguments = {"Bucket": self._bucket, "Key": self._key(path), **conditions}
        try:
            return retrying(lambda: _answered(_body, arguments), self.uri_of(path))
        except OSError as error:
            if answer_of(error)[1] != 412:
                raise
            raise TransientError(
                self.uri_of(path),
                "one content while it is read",
                "another one",
                "run again when nobody writes it",
            ) from error

    def _status(self, path: str) -> dict[str, Any]:
        found = self._call_on(path, "head_object")
        return {"size": found["ContentLength"], "ETag": found["ETag"], "LastModified": found["LastModified"]}

    def _call_on(self, path: str, verb: str, **arguments: Any) -> dict[str, Any]:
        return self._call(verb, self.uri_of(path), Key=self._key(path), **arguments)

    def _call(self, verb: str, where: str, **arguments: Any) -> dict[str, Any]:
        return dict(
            retrying(lambda: _answered(_called, {"verb": verb, "Bucket": self._bucket, **arguments}), where)
        )

    def _key(self, path: str) -> str:
        return self._below + checked(path)


class _Spans(io.RawIOBase):
    """An object as a seekable stream; each read is a call for that range."""

    def __init__(self, span: Callable[[int, int], bytes], size: int) -> None:
        self._span, self._size, self._place = span, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = max(
            0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        )
        return self._place

    def readinto(self, buffer: Any) -> int:
        end = min(self._size, self._place + len(buffer))
        if end <= self._place:
            return 0
        content = self._span(self._place, end)
        buffer[: len(content)] = content
        self._place = end
        return len(content)


def _answered(call: Callable[[Any, dict[str, Any]], Coroutine[Any, Any, A]], arguments: dict[str, Any]) -> A:
    """What one call gives, once it is its turn."""
    from fsspec.asyn import sync

    files = client()
    with _turns:
        answer: A = sync(files.loop, call, files, arguments)
    return answer


async def _called(files: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The answer; TimeoutError when it takes longer than set, and than the body that goes up may take.

    The HTTP client's own time-out does not do: it is off while a PUT that waited for `100 Continue` waits for its answer.
    """
    limit = seconds("MANTA_STORE_TIMEOUT_S", _ANSWER_S) + len(arguments.get("Body", b"")) / _SLOWEST
    rest = {name: value for name, value in arguments.items() if name != "verb"}
    call = asyncio.ensure_future(asyncio.wait_for(files._call_s3(arguments["verb"], **rest), limit))
    while not (await asyncio.wait([call], timeout=_SIGN_S))[0]:
        headway()  # how much of a body has gone up is not told, but it goes at least as fast as the limit wants
    return dict(call.result())


async def _body(files: Any, arguments: dict[str, Any]) -> bytes:
    """An object's bytes, all that its answer announced; for as long as they come, there is no limit."""
    answer = await _called(files, {"verb": "get_object", **arguments})
    pieces = []
    async with answer["Body"] as stream:
        while piece := await stream.read(_PIECE):
            pieces.append(piece)
            headway()
    content = b"".join(pieces)
    if len(content) != answer["ContentLength"]:
        raise ConnectionResetError(f"{len(content)} of {answer['ContentLength']} bytes came")
    return content


def _ranges(size: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(size, start + step)) for start in range(0, size, step)]


def _at_once(call: Callable[[A], B], of: Iterable[A]) -> list[B]:
    """call(each), in order; after an error what has not begun does not begin."""
    with ThreadPoolExecutor(_PARTS_AT_ONCE) as pool:
        calls = [pool.submit(call, each) for each in of]
        try:
            return [each.result() for each in calls]
        finally:
            pool.shutdown(cancel_futures=True)
