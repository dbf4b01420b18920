"""A store below a prefix of an S3 bucket.

Files are created by conditional writes; if the response to such a write was lost, the object itself shows who
wrote it. Large files go in parts, each retried alone: MANTA_STORE_DEADLINE_S is the limit for a call with its
retries (default 120 seconds).
"""

import contextlib
import io
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import ConfigError, PipelineError, TransientError
from pipeline.store.base import Entry, checked, in_threads
from pipeline.store.remote import ObjectStore, entries_of
from pipeline.store.retry import answer_of, retrying
from pipeline.store.s3_client import answered, body, called, client

_MAX_PARTS_AT_ONCE = 8  # parts of one file in transfer: 128 MiB in memory
_PART = 16 << 20  # bytes of a part; S3 requires at least 5 MiB
_MAX_PARTS = 10_000  # limit of S3
_ONE_CALL = 2 * _PART  # bytes; larger objects are transferred in parts
_MARK = "manta-writer"  # key of an object's metadata; the value identifies the call that wrote it
_BUCKET = re.compile(r"(arn:[^/]*/[^/]+|[^/]+)/?(.*)")


@dataclass(frozen=True)
class _Content:
    """Bytes to be stored."""

    size: int
    piece: Callable[[int, int], bytes]
    """piece(start, end) returns the bytes from start to end; must be thread-safe"""


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
        return entries_of([each for each in self._listed(prefix) if each[0].endswith(suffix)])

    def names(self, prefix: str) -> tuple[str, ...]:
        """List the names of the files directly in the directory `prefix`, in order."""
        entries = entries_of([*self._listed(prefix, Delimiter="/")])
        return tuple(entry.path.rpartition("/")[2] for entry in entries)

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
        for upload in self._call("list_multipart_uploads", self.uri, Prefix=self._below).get("Uploads", ()):
            if upload["Initiated"].timestamp() < before:
                with contextlib.suppress(FileNotFoundError):
                    self._call(
                        "abort_multipart_upload", self.uri, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
        return 0

    def _store(self, path: str, content: _Content, *, once: bool) -> bool:
        """Write the object. Returns False if `once` is set and the object existed before."""
        mark = uuid.uuid4().hex
        condition = {"IfNoneMatch": "*"} if once else {}
        try:
            if content.size <= _ONE_CALL:
                whole = content.piece(0, content.size)
                self._call_on(path, "put_object", Body=whole, Metadata={_MARK: mark}, **condition)
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
            piece = content.piece(start, end)
            answer = self._call_on(path, "upload_part", UploadId=upload, PartNumber=number, Body=piece)
            return {"PartNumber": number, "ETag": answer["ETag"]}

        ranges = _ranges(content.size, max(_PART, -(-content.size // _MAX_PARTS)))
        try:
            parts = {"Parts": in_threads(send, enumerate(ranges, 1), _MAX_PARTS_AT_ONCE)}
            self._call_on(
                path, "complete_multipart_upload", UploadId=upload, MultipartUpload=parts, **condition
            )
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

            in_threads(take, _ranges(size, _PART), _MAX_PARTS_AT_ONCE)

    def _reader(self, path: str, status: dict[str, Any]) -> pa.NativeFile:
        source = _Spans(lambda start, end: self._span(path, status["ETag"], start, end), int(status["size"]))
        return pa.PythonFile(io.BufferedReader(source, buffer_size=_PART // 2), mode="r")

    def _span(self, path: str, etag: str, start: int, end: int) -> bytes:
        return self._get(path, IfMatch=etag, Range=f"bytes={start}-{end - 1}")

    def _get(self, path: str, **conditions: str) -> bytes:
        """Read the object, or a range of it. Raises TransientError if it was replaced meanwhile."""
        arguments = {"Bucket": self._bucket, "Key": self._key(path), **conditions}
        try:
            return retrying(lambda: answered(body, arguments), self.uri_of(path))
        except OSError as error:
            if answer_of(error)[1] != 412:
                raise
            raise TransientError(
                self.uri_of(path),
                "the same content while it is read",
                "the object was replaced",
                "run again when no other process writes it",
            ) from error

    def _status(self, path: str) -> dict[str, Any]:
        found = self._call_on(path, "head_object")
        return {"size": found["ContentLength"], "ETag": found["ETag"], "LastModified": found["LastModified"]}

    def _call_on(self, path: str, verb: str, **arguments: Any) -> dict[str, Any]:
        return self._call(verb, self.uri_of(path), Key=self._key(path), **arguments)

    def _call(self, verb: str, where: str, **arguments: Any) -> dict[str, Any]:
        call = {"verb": verb, "Bucket": self._bucket, **arguments}
        return dict(retrying(lambda: answered(called, call), where))

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


def _ranges(size: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(size, start + step)) for start in range(0, size, step)]
