"""Run work in a thread that does not keep the process alive."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_daemon_thread(work: Callable[[], T], name: str) -> "Future[T]":
    """Run `work` in a daemon thread named `name`. The future returns its result, or raises its error."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # future.result() raises it again
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name=name).start()
    return future
