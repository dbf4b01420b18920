"""Keep-alive signals of a process that finishes no rows and takes no CPU time, such as during a transfer.

A transfer sends a signal for every chunk of a file, whether it runs in this process or in another one that
this process waits for. Listeners use the signals to decide whether a process hangs.
"""

import contextlib
from collections.abc import Callable, Iterator

_listeners: list[Callable[[], None]] = []


def keep_alive() -> None:
    """Signal every listener, from any thread. Cheap enough to be called for every chunk of a file."""
    for listener in tuple(_listeners):
        # a listener may touch a file that is deleted or closed by now
        with contextlib.suppress(OSError, ValueError):
            listener()


@contextlib.contextmanager
def on_keep_alive(listener: Callable[[], None]) -> Iterator[None]:
    """Call `listener` for every signal during the block, in the thread that sends it."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
