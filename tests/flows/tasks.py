"""Tasks for the tests of flows; in a module that a worker can import."""

import ctypes
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from pipeline.device import resolve
from pipeline.errors import DataError
from pipeline.flows.workers.tasks import PlainTask, progress
from pipeline.flows.workers.worker_encoder import gpu_assigned
from pipeline.store.files.cache import get_or_build
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import UnitRecord


@dataclass(frozen=True)
class Double:
    """Return twice the item and the worker's process id; raise DataError for item 13."""

    def start(self) -> Callable[[int], tuple[int, int]]:
        return self._work

    def _work(self, item: int) -> tuple[int, int]:
        if item == 13:
            raise DataError("item 13", "luck", "13", "take another number")
        return 2 * item, os.getpid()


@dataclass(frozen=True)
class NameProcess(PlainTask[int, str]):
    """Return the title of the worker's process."""

    def work(self, item: int) -> str:
        return psutil.Process().cmdline()[0]


@dataclass(frozen=True)
class NameUnit(PlainTask[UnitRecord, str]):
    """Return the name of a unit."""

    def work(self, unit: UnitRecord) -> str:
        return unit.name


@dataclass(frozen=True)
class Where:
    """Return process id, node and GPUs of an item's worker, and start and end of its work in seconds.

    Each item takes `seconds`.
    """

    seconds: float = 0.0

    def start(self) -> Callable[[int], tuple[int, str, tuple[str, ...], float, float]]:
        return self._work

    def _work(self, item: int) -> tuple[int, str, tuple[str, ...], float, float]:
        import ray

        start = time.time()
        time.sleep(self.seconds)
        return (
            os.getpid(),
            ray.get_runtime_context().get_node_id(),
            tuple(map(str, ray.get_gpu_ids())),
            start,
            time.time(),
        )


@dataclass(frozen=True)
class Meet:
    """Return the worker's process id as soon as `count` workers have an item at the same time.

    Each worker writes a file to `folder`.
    """

    folder: str
    count: int

    def start(self) -> Callable[[int], int]:
        return self._work

    def _work(self, item: int) -> int:
        Path(self.folder, str(os.getpid())).touch()
        while len(os.listdir(self.folder)) < self.count:
            time.sleep(0.02)
        return os.getpid()


@dataclass(frozen=True)
class Long:
    """Return the item after `seconds`, during which it reports ten rows, while the driver's patience is
    `patience_s`.
    """

    seconds: float
    patience_s: float

    def start(self) -> Callable[[int], int]:
        return self._work

    def _work(self, item: int) -> int:
        from pipeline.flows.workers.heartbeat import set_patience  # which imports Ray

        set_patience(self.patience_s)
        for row in range(10):
            time.sleep(self.seconds / 10)
            progress(row)
        return item


@dataclass(frozen=True)
class SlowFirst:
    """Return the worker's process id; the first attempt at item 0 takes `seconds` and writes a file."""

    folder: str
    seconds: float

    def start(self) -> Callable[[int], int]:
        return self._work

    def _work(self, item: int) -> int:
        mark = Path(self.folder, "first")
        if item == 0 and not mark.exists():
            mark.write_text(str(os.getpid()))
            time.sleep(self.seconds)
        return os.getpid()


@dataclass(frozen=True)
class NeverExit:
    """Return the worker's process id. The process will not exit by itself, once Ray has asked it to."""

    def start(self) -> Callable[[int], int]:
        libc = ctypes.CDLL(None)
        # written as an attribute, Python would put the name of the class before it
        getattr(libc, "__cxa_atexit")(ctypes.cast(libc.pause, ctypes.c_void_p), None, None)
        return lambda item: os.getpid()


@dataclass(frozen=True)
class Device:
    """Return the kind of device that encode.device=auto selects on the worker."""

    def start(self) -> Callable[[int], str]:
        return lambda item: resolve("auto", float(gpu_assigned())).kind


@dataclass(frozen=True)
class Swell:
    """Allocate more and more memory, up to `most` bytes, and keep it."""

    most: int

    def start(self) -> Callable[[int], int]:
        return self._work

    def _work(self, item: int) -> int:
        held = []
        while sum(map(len, held)) < self.most:
            held.append(bytearray(os.urandom(1 << 20)) * 64)  # touched, and not to be merged
            time.sleep(0.02)
        time.sleep(2.0)
        return len(held)


@dataclass(frozen=True)
class DieOnce:
    """Return the item after the first `deaths` processes that received it have died.

    Each of them writes a file to the directory `marks`.
    """

    marks: str
    deaths: int = 1

    def start(self) -> Callable[[int], int]:
        return self._work

    def _work(self, item: int) -> int:
        for death in range(self.deaths):
            mark = os.path.join(self.marks, f"{item}-{death}")
            if not os.path.exists(mark):
                open(mark, "w").close()
                os.kill(os.getpid(), 9)
        return item


@dataclass(frozen=True)
class HangOnce:
    """Return the item after the first process that received it has reported a row and then hung.

    It sleeps, or stops with all its threads if `stopped`; it writes a file to the directory `marks`.
    """

    marks: str
    stopped: bool = False

    def start(self) -> Callable[[int], int]:
        return self._work

    def _work(self, item: int) -> int:
        mark = Path(self.marks, str(item))
        if not mark.exists():
            mark.write_text(str(os.getpid()))
            progress(1)
            if self.stopped:
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(3600)
        return item


@dataclass(frozen=True)
class Compute:
    """Return the item after `seconds` of computing without a report of progress, as when a model is loaded or
    a quantizer is trained.
    """

    seconds: float

    def start(self) -> Callable[[int], int]:
        return self._work

    def _work(self, item: int) -> int:
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            hash(bytes(1 << 20))
        return item


@dataclass(frozen=True)
class Count:
    """Report ten rows, a tenth of a second apart, and return their number."""

    def start(self) -> Callable[[int], int]:
        return self._work

    def _work(self, item: int) -> int:
        for rows in range(1, 11):
            time.sleep(0.1)
            progress(rows)
        return 10


@dataclass(frozen=True)
class Kept:
    """Return the item as soon as the cache has the file `path`, which another process may be writing."""

    path: str

    def start(self) -> Callable[[int], int]:
        return self._work

    def _work(self, item: int) -> int:
        get_or_build(Path(self.path), lambda copy: copy.touch(), Path.is_file)
        return item


@dataclass(frozen=True)
class Fetch:
    """Return the number of bytes of a file in a store."""

    uri: str
    path: str

    def start(self) -> Callable[[int], int]:
        return self._work

    def _work(self, item: int) -> int:
        return len(open_store(self.uri).read(self.path))
