"""Signs that this process gets on though it finishes no rows and takes no CPU time: bytes come or go, here or
in another process that it waits for.

Whoever transfers gives them, and knows nothing of whoever judges by them whether a process hangs.
"""

import contextlib
from collections.abc import Callable, Iterator

_listeners: list[Callable[[], None]] = []


def headway() -> None:
    """Some bytes have come or gone, whichever thread moved them. Cheap enough for every piece of a file."""
    for listener in tuple(_listeners):
        with contextlib.suppress(
            OSError, ValueError
        ):  # a listener whose file is gone or closed stops no transfer
            listener()


@contextlib.contextmanager
def at_headway(listener: Callable[[], None]) -> Iterator[None]:
    """Call `listener`, in the thread that transfers, at every sign while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
