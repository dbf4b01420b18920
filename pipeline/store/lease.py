"""Leases: small files that show that a command is running. The command rewrites its lease until it ends.

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

_RENEWAL_S = 300.0
# The lease of a killed run expires after four missed renewals.
_EXPIRY_S = 1_200.0


@contextlib.contextmanager
def lease(store: Store, folder: str = "candidates") -> Iterator[None]:
    """Hold a lease in `folder` while the block runs: a file rewritten every five minutes, then removed."""
    path = f"{folder}/lease-{uuid.uuid4().hex}.json"
    content = json.dumps(
        {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    ).encode()
    store.write(path, content)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(_RENEWAL_S):
            # A failed renewal does not matter: the next one follows before the lease expires.
            with contextlib.suppress(OSError, TransientError):
                store.write(path, content)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        # Do not hide the error that ended the block; a lease that remains expires within 20 minutes.
        with contextlib.suppress(OSError, PipelineError):
            store.delete(path)


def active_leases(store: Store, now: float | None = None, folder: str = "candidates") -> list[Entry]:
    """List the leases below `folder` that have not expired.

    Args:
        now: seconds since 1970 by the store's clock; None asks the store.
    """
    oldest = (clock(store) if now is None else now) - _EXPIRY_S
    entries = store.list(folder, ".json")
    return [entry for entry in entries if "/lease-" in entry.path and entry.modified > oldest]


def describe_holders(store: Store, folder: str) -> Iterator[str]:
    """Describe the holders of leases below `folder`, except processes of this machine that have ended."""
    for entry in active_leases(store, folder=folder):
        try:
            holder = json.loads(store.read(entry.path))
        except (FileNotFoundError, ValueError):  # the process has just ended, or was killed while writing
            continue
        if holder["host"] != socket.gethostname() or is_running(holder["pid"]):
            yield f"process {holder['pid']} on {holder['host']}, since {holder['started_at']}"


def is_running(pid: int) -> bool:
    """Return whether a process of this machine has this id."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # a process of another user
    return True
