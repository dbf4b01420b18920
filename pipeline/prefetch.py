"""Prefetching: a thread computes the next values of an iterator while its caller uses the current one."""

import queue
import threading
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar

from pipeline.errors import TransientError

T = TypeVar("T")
_POLL_S = 0.1  # interval at which the thread checks whether the caller has stopped


@dataclass
class _End:
    """The last entry: there are no more values, or `error` was raised."""

    error: BaseException | None = None


def prefetch(values: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """Yield the values, which a thread computes in advance. The thread ends with this generator.

    Args:
        values: an iterable that the thread consumes; an error that it raises is raised here.
        depth: largest number of values that wait for the caller; the thread holds one more.

    Raises:
        TransientError: no thread can be started.
    """
    waiting: queue.Queue[T | _End] = queue.Queue(depth)
    stopped = threading.Event()
    thread = threading.Thread(
        target=_fill, args=(values, waiting, stopped), name="manta-prefetch", daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:  # a caller that encodes would blame a text for a RuntimeError
        raise TransientError(
            "prefetching",
            "a thread that reads and tokenizes in advance",
            str(error),
            "end other programs, use fewer workers (cluster.workers), or raise the limit (ulimit -u, "
            "pids.max); then run again",
        ) from error
    try:
        while not isinstance(value := waiting.get(), _End):
            yield value
        if value.error is not None:
            raise value.error
    finally:
        stopped.set()
        thread.join()


def _fill(values: Iterable[T], waiting: "queue.Queue[T | _End]", stopped: threading.Event) -> None:
    try:
        for value in values:
            if not _offer(value, waiting, stopped):
                return
        end = _End()
    except BaseException as error:  # the caller raises it
        end = _End(error)
    _offer(end, waiting, stopped)


def _offer(value: T | _End, waiting: "queue.Queue[T | _End]", stopped: threading.Event) -> bool:
    while not stopped.is_set():
        try:
            waiting.put(value, timeout=_POLL_S)
        except queue.Full:
            continue
        return True
    return False
