"""Leases: small files that a command renews while it runs.

Prune refuses a root while a night holds a lease, and a training run that is started twice is refused.
"""

import contextlib
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

from pipeline.errors import PipelineError, TransientError
from pipeline.store.base import Entry, Store
from pipeline.store.probe import clock

_EVERY_S = 300.0
# A killed run renews its lease no more: after four missed renewals the lease has expired.
_LASTS_S = 1_200.0


@contextlib.contextmanager
def lease(store: Store, top: str = "candidates") -> Iterator[None]:
    """Hold a lease below `top` while the block runs: a file rewritten every five minutes, then removed."""
    path = f"{top}/lease-{uuid.uuid4().hex}.json"
    content = json.dumps(
        {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    ).encode()
    store.write(path, content)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(_EVERY_S):
            # A failed renewal does not matter: the next one follows before the lease expires.
            with contextlib.suppress(OSError, TransientError):
                store.write(path, content)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        # The error that ended the block must not be hidden; a lease that remains expires within 20 minutes.
        with contextlib.suppress(OSError, PipelineError):
            store.delete(path)


def running(store: Store, now: float | None = None, top: str = "candidates") -> list[Entry]:
    """List the leases below `top` that have not expired.

    Args:
        now: seconds since 1970 by the store's clock; None asks the store.
    """
    oldest = (clock(store) if now is None else now) - _LASTS_S
    entries = store.list(top, ".json")
    return [entry for entry in entries if "/lease-" in entry.path and entry.modified > oldest]


def holders(store: Store, top: str) -> Iterator[str]:
    """Describe the holders of leases below `top`, except processes of this machine that have ended."""
    for entry in running(store, top=top):
        try:
            found = json.loads(store.read(entry.path))
        except (FileNotFoundError, ValueError):  # the process has just ended, or was killed while writing
            continue
        if found["host"] != socket.gethostname() or is_running(found["pid"]):
            yield f"process {found['pid']} on {found['host']}, since {found['started_at']}"


def is_running(pid: int) -> bool:
    """Return whether a process of this machine has this id."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # a process of another user
    return True
