"""Values of an iterator made by a thread of their own, a few of them ahead of whoever takes them."""

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

from pipeline.errors import TransientError

T = TypeVar("T")
_POLL_S = 0.1  # how soon the thread notices that nobody takes any more


class _End:
    """The last entry: the values are used up, or `error` was raised."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def ahead(values: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """The same values, at most `depth` of them waiting.

    An error of `values` is raised here; a taker that stops early ends the thread.

    TransientError where the machine starts no further thread.
    """
    waiting: queue.Queue[T | _End] = queue.Queue(depth)
    stopped = threading.Event()
    thread = threading.Thread(target=_fill, args=(values, waiting, stopped), name="manta-ahead", daemon=True)
    try:
        thread.start()
    except (
        RuntimeError
    ) as error:  # no fault of a text, as other errors of this kind are while texts are encoded
        remedy = (
            "end what else runs, use fewer workers (cluster.workers), or raise the limit (ulimit -u, "
            "pids.max)"
        )
        raise TransientError(
            "encode", "a thread that tokenizes ahead", str(error), f"{remedy}; then run again"
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
    except BaseException as error:  # not swallowed: the taker raises it
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
