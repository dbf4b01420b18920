"""An S3 bucket in memory that counts its requests, and workers that run in this process, on a virtual clock.

On the virtual clock a request takes the latency of an object store and the time to transfer its bytes. All
items of a task begin together, as on enough workers; so do calls in threads, up to the number of threads. A
path is a sequence of requests of which each begins when the previous one has ended: it has a duration in
seconds and a number of requests.
"""

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import RLock
from typing import Any, NamedTuple, TypeVar

import pytest

from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.nodes import Node
from pipeline.flows.workers.tasks import Item, Pool, Result, Task
from pipeline.log import RunningStage
from pipeline.settings import ClusterSettings, EncodeSettings
from pipeline.store.files import base, s3
from pipeline.store.files.s3 import read_object

LATENCY_S, BYTES_PER_S = 0.025, 100e6
_PAGE = 1_000  # objects in one answer to a listing
_MODIFIED = datetime(2026, 1, 1, tzinfo=UTC)
Value = TypeVar("Value")


class RequestPath(NamedTuple):
    """The longest path of requests up to some moment: its seconds and its number of requests."""

    seconds: float = 0.0
    requests: int = 0

    def then(self, other: "RequestPath") -> "RequestPath":
        """Return this path followed by another one."""
        return RequestPath(self.seconds + other.seconds, self.requests + other.requests)

    def since(self, earlier: "RequestPath") -> "RequestPath":
        """Return the part of this path after an earlier moment."""
        return RequestPath(self.seconds - earlier.seconds, self.requests - earlier.requests)


class Counted(NamedTuple):
    """A request.

    Attributes:
        verb: name of the call in the S3 API.
        key: key of the object, or the prefix of a listing.
        size: bytes of the object that were sent or received.
        task: class of the task that made it; empty for the driver.
        item: number of the item; -1 for the driver.
    """

    verb: str
    key: str
    size: int
    task: str
    item: int


class SimulatedObject:
    """An object whose bytes are zero, except for some pieces."""

    def __init__(self, size: int, pieces: dict[int, bytes]) -> None:
        self.size, self.pieces = size, pieces

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, wanted: slice) -> bytes:
        content = bytearray(wanted.stop - wanted.start)
        for start, piece in self.pieces.items():
            first, stop = max(start, wanted.start), min(start + len(piece), wanted.stop)
            if first < stop:
                content[first - wanted.start : stop - wanted.start] = piece[first - start : stop - start]
        return bytes(content)


@dataclass
class CountedBucket:
    """Objects by bucket and key, and the requests for them.

    Attributes:
        path: the longest path of requests up to now.
        task: class of the running task, and the number of its item.
        longest: the longest path within one item, by class of the task.
    """

    objects: dict[str, bytes | SimulatedObject] = field(default_factory=dict)
    log: list[Counted] = field(default_factory=list)
    path: RequestPath = field(default_factory=RequestPath)
    task: tuple[str, int] = ("", -1)
    longest: dict[str, RequestPath] = field(default_factory=dict)
    _listed: list[str] = field(default_factory=list)  # keys of the listing whose pages are asked for
    _lock: RLock = field(default_factory=RLock)  # a prefetching thread may ask beside the main one

    def answer(self, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Answer a call as `run_call` does."""
        verb = "get_object" if call is read_object else arguments["verb"]
        with self._lock:
            found, size = getattr(self, f"_{verb}")(arguments)
            self._count(verb, arguments.get("Key", arguments.get("Prefix", "")), size)
            return found

    def _count(self, verb: str, key: str, size: int) -> None:
        self.log.append(Counted(verb, key, size, *self.task))
        seconds = self.path.seconds + LATENCY_S + size / BYTES_PER_S
        self.path = RequestPath(seconds, self.path.requests + 1)

    def in_lanes(self, calls: Iterable[Callable[[], Value]], count: int) -> Iterator[Value]:
        """Yield the results of calls that run side by side in at most `count` lanes; a further call waits for
        the first free lane. Requests of the caller between two results are added after the longest lane.
        """
        begun, between = self.path, RequestPath()
        lanes = list[RequestPath]()
        for call in calls:
            self.path = begun
            if len(lanes) == count:
                lanes.sort()
                self.path = lanes.pop(0)
            value = call()
            lanes.append(self.path)
            handed_over = self.path
            yield value
            between = between.then(self.path.since(handed_over))
        if lanes:
            self.path = RequestPath(*map(max, *lanes, RequestPath(), RequestPath())).then(between)

    def run_item(self, task: str, item: int, work: Callable[[], Value]) -> Value:
        """Run an item of a task, and record its path."""
        outer, begun = self.task, self.path
        self.task = task, item
        try:
            return work()
        finally:
            own, before = self.path.since(begun), self.longest.get(task, RequestPath())
            self.longest[task] = RequestPath(*map(max, own, before))
            self.task = outer

    def _get_object(self, arguments: dict[str, Any]) -> tuple[bytes, int]:
        found = self._find(arguments)
        start, stop = 0, len(found)
        if "Range" in arguments:
            first, _, last = arguments["Range"].removeprefix("bytes=").partition("-")
            start, stop = int(first), min(stop, int(last) + 1)
        content = bytes(found[start:stop])
        return content, len(content)

    def _head_object(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], int]:
        found = self._find(arguments)
        return {"ContentLength": len(found), "ETag": _etag(found), "LastModified": _MODIFIED}, 0

    def _put_object(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], int]:
        key = self._key(arguments)
        if "IfNoneMatch" in arguments and key in self.objects:
            raise FileExistsError(key)
        self.objects[key] = bytes(arguments["Body"])
        return {}, len(arguments["Body"])

    def _delete_object(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], int]:
        self.objects.pop(self._key(arguments), None)
        return {}, 0

    def _list_objects_v2(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], int]:
        prefix = f"{arguments['Bucket']}/{arguments['Prefix']}"
        first = int(arguments.get("ContinuationToken", 0))
        if not first:
            self._listed = sorted(key for key in self.objects if key.startswith(prefix))
        keys = self._listed
        if "Delimiter" in arguments:
            keys = [key for key in keys if "/" not in key.removeprefix(prefix)]
        page = keys[first : first + _PAGE]
        contents = [
            {
                "Key": key.partition("/")[2],
                "Size": len(self.objects[key]),
                "ETag": _etag(self.objects[key]),
                "LastModified": _MODIFIED,
            }
            for key in page
        ]
        more = first + _PAGE < len(keys)
        return {"Contents": contents, "IsTruncated": more, "NextContinuationToken": str(first + _PAGE)}, 0

    def _list_multipart_uploads(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], int]:
        return {}, 0

    def _find(self, arguments: dict[str, Any]) -> bytes | SimulatedObject:
        key = self._key(arguments)
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key]

    def _key(self, arguments: dict[str, Any]) -> str:
        return f"{arguments['Bucket']}/{arguments['Key']}"


def _etag(content: bytes | SimulatedObject) -> str:
    return f"{len(content)}" if isinstance(content, SimulatedObject) else hashlib.md5(content).hexdigest()


@contextmanager
def counted_bucket() -> Iterator[CountedBucket]:
    """Let every S3 store of this process use a new bucket in memory, and run calls in threads one by one."""
    bucket = CountedBucket()

    class Lanes(ThreadPoolExecutor):
        """Runs calls in this thread; on the clock they take as long as in several threads."""

        def map(self, fn: Callable[..., Any], *items: Iterable[Any], **_: Any) -> Iterator[Any]:
            calls = [lambda given=given: fn(*given) for given in zip(*items, strict=False)]
            return bucket.in_lanes(calls, self._max_workers)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(s3, "run_call", bucket.answer)
        patched.setattr(base, "ThreadPoolExecutor", Lanes)
        yield bucket


class CountedWorkers(Workers):
    """Workers in this process, one for each item; on the clock of a bucket they begin together."""

    nodes = (Node(cpus=64.0),)
    grows = False
    shares_disk = True

    def __init__(self, bucket: CountedBucket) -> None:
        self.bucket = bucket

    def map_units(
        self, task: Task[Item, Result], items: Sequence[Item], pool: Pool, bar: RunningStage | None = None
    ) -> Iterator[tuple[int, Result]]:
        name, pickled = type(task).__name__, pickle.dumps(task)

        def run(number: int, item: Item) -> tuple[int, Result]:
            result = self.bucket.run_item(name, number, lambda: pickle.loads(pickled).start()(item))
            return number, result

        calls = [lambda number=number, item=item: run(number, item) for number, item in enumerate(items)]
        yield from self.bucket.in_lanes(calls, max(1, len(items)))

    def run(self, task: Task[Item, Result], item: Item, pool: Pool) -> Result:
        ((_, result),) = self.map_units(task, [item], pool)
        return result

    def pool(self, settings: ClusterSettings, work: int) -> Pool:
        return Pool(work)

    def machine_pool(self, settings: ClusterSettings) -> Pool:
        return Pool(1)

    def index_workers(self, settings: ClusterSettings, work: int) -> int:
        return max(1, work)

    def encode_settings(self, encode: EncodeSettings, pool: Pool | None = None) -> EncodeSettings:
        return encode

    def warm(self, task: Any) -> None:
        """Do nothing: models are loaded with the first item."""

    def close(self) -> None:
        """Do nothing."""
