"""Reports that this process makes headway although it finishes no rows and takes no CPU time.

Transfers report every piece of a file, here or in another process that this one waits for. Listeners decide
by the reports whether a process hangs.
"""

import contextlib
from collections.abc import Callable, Iterator

_listeners: list[Callable[[], None]] = []


def headway() -> None:
    """Report that some bytes were transferred, from any thread. Cheap enough for every piece of a file."""
    for listener in tuple(_listeners):
        with contextlib.suppress(OSError, ValueError):  # its file may be deleted or closed
            listener()


@contextlib.contextmanager
def at_headway(listener: Callable[[], None]) -> Iterator[None]:
    """Call `listener` at every report during the block, in the thread that transfers."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
