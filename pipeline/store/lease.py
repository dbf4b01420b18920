"""A night that is at work says so, and prune leaves the root alone while it is."""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

from pipeline.errors import TransientError
from pipeline.store.store import Entry, Store

_EVERY_S = 300.0
_LASTS_S = 1_200.0      # a run that was killed says nothing any more: four beats later it counts as over


@contextlib.contextmanager
def lease(store: Store) -> Iterator[None]:
    """A file below candidates/ that is written again every five minutes while the block runs, and removed at its end."""
    path = f"candidates/lease-{uuid.uuid4().hex}.json"
    content = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "started_at": datetime.now(UTC).isoformat(timespec="seconds")}).encode()
    store.write(path, content)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(_EVERY_S):
            with contextlib.suppress(OSError, TransientError):      # a beat that is lost is made up for by the next
                store.write(path, content)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        store.delete(path)


def running(store: Store, now: float | None = None) -> list[Entry]:
    """Leases of nights that are at work."""
    young = (now or time.time()) - _LASTS_S
    return [entry for entry in store.list("candidates", ".json") if "/lease-" in entry.path and entry.modified > young]
