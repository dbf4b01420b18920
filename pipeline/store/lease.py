"""A command that is at work says so: prune leaves the root of a night alone while it is, and who begins the same training again is told."""

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
_LASTS_S = 1_200.0  # a run that was killed says nothing any more: four beats later it counts as over


@contextlib.contextmanager
def lease(store: Store, top: str = "candidates") -> Iterator[None]:
    """A file below `top` that is written again every five minutes while the block runs, and removed at its end."""
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
            with contextlib.suppress(
                OSError, TransientError
            ):  # a beat that is lost is made up for by the next
                store.write(path, content)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(
            OSError, PipelineError
        ):  # whatever ended the block is the error to show; a lease that stays is over in 20 minutes
            store.delete(path)


def running(store: Store, now: float | None = None, top: str = "candidates") -> list[Entry]:
    """Leases below `top` of commands that are at work, or were killed less than four beats ago. now: by the store's clock; None: ask it."""
    young = (clock(store) if now is None else now) - _LASTS_S
    return [entry for entry in store.list(top, ".json") if "/lease-" in entry.path and entry.modified > young]


def holders(store: Store, top: str) -> Iterator[str]:
    """Who is at work below `top`, in words; a process of this machine that is gone is not."""
    for entry in running(store, top=top):
        try:
            found = json.loads(store.read(entry.path))
        except (FileNotFoundError, ValueError):  # it has just ended, or was killed while it wrote
            continue
        if found["host"] != socket.gethostname() or _lives(found["pid"]):
            yield f"process {found['pid']} on {found['host']}, since {found['started_at']}"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # somebody else's
    return True
