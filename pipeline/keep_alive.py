"""Keep-alive signals, which a process sends while it neither finishes rows nor uses CPU time.

The transfer of a file sends a signal for every chunk, both in the process that transfers the file and in a
process that waits for the file. Listeners decide by these signals whether a process hangs.
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
