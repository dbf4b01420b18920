"""Leases: small files that show that a command is running. The command rewrites its lease until it ends.

Prune refuses a root while a command that needs its files holds a lease, and a second export to a target is
refused. The lease of a service names the release that it serves, which prune keeps.
"""

import contextlib
import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from pipeline.errors import PipelineError, TransientError
from pipeline.store.files.base import Entry, Store
from pipeline.store.files.check_store import clock

SERVED = "served"
"""folder of the leases of services"""
PRUNE = "prune"
"""command in the lease of a running prune"""
_RENEWAL_S = 300.0
# The lease of a killed run expires after four missed renewals.
_EXPIRY_S = 1_200.0
_MAX_PAUSE_S = 1.0  # many times as long as writing and listing take, so that commands do not meet again


@contextlib.contextmanager
def lease(store: Store, folder: str = "candidates", **facts: Any) -> Iterator[str]:
    """Hold a lease in `folder` while the block runs: a file rewritten every five minutes, then removed.

    Yields the path of the file.

    Args:
        facts: further content of the file.
    """
    path = f"{folder}/lease-{uuid.uuid4().hex}.json"
    content = json.dumps(
        {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "pid_namespace": pid_namespace(),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            **facts,
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
        yield path
    finally:
        ended.set()
        thread.join()
        # Do not hide the error that ended the block; a lease that remains expires within 20 minutes.
        with contextlib.suppress(OSError, PipelineError):
            store.delete(path)


@contextlib.contextmanager
def exclusive_lease(store: Store, folder: str, refusal: Callable[[str], PipelineError]) -> Iterator[None]:
    """Hold the only lease in `folder` while the block runs. If commands start together, exactly one gets it.

    A command writes its lease before it lists the leases again, so of two commands at least one sees the
    other's lease. A command that sees another lease removes its own, and tries again after a random pause.

    Args:
        refusal: returns the error to raise, given a description of the holder.
    """
    while True:
        for holder in describe_holders(store, folder):
            raise refusal(holder)
        with lease(store, folder) as own:
            if not any(describe_holders(store, folder, own)):
                yield
                return
        time.sleep(random.uniform(0, _MAX_PAUSE_S))


@contextlib.contextmanager
def lease_without_prune(store: Store) -> Iterator[None]:
    """Hold a lease while the block makes a release current, so that no prune removes it.

    Both commands write their lease before they look for the other's, so at least one of them is refused.

    Raises:
        TransientError: prune is running, and may be about to remove the release.
    """
    with lease(store) as own:
        for path, holder in holders(store, own.partition("/")[0]):
            if holder is not None and holder.get("command") == PRUNE:
                raise TransientError(
                    store.uri,
                    "no running prune, which may be removing that release",
                    describe(holder),
                    f"run again when it has ended; if it was killed, delete {store.uri_of(path)}",
                )
        yield


def active_leases(store: Store, now: float | None = None, folder: str = "candidates") -> list[Entry]:
    """List the leases below `folder` that have not expired.

    Args:
        now: seconds since 1970 by the store's clock; None asks the store.
    """
    leases = [entry for entry in store.list(folder, ".json") if is_lease(entry.path)]
    if not leases:  # asking for the time writes a file, and a root that has no lease may be read only
        return []
    oldest = (clock(store) if now is None else now) - _EXPIRY_S
    return [entry for entry in leases if entry.modified > oldest]


def is_lease(path: str) -> bool:
    """Return whether a file is a lease, by its name."""
    return PurePosixPath(path).match("lease-*.json")


def describe_holders(store: Store, folder: str, own: str = "") -> Iterator[str]:
    """Describe the holders of leases below `folder`, except processes of this machine that have ended.

    Args:
        own: path of a lease to leave out.
    """
    for path, holder in holders(store, folder):
        if path == own:
            continue
        if holder is None:
            yield f"an unknown process: {store.uri_of(path)} is no lease that a command wrote"
        else:
            yield describe(holder)


def describe(holder: Mapping[str, Any]) -> str:
    """Describe the process that wrote a lease."""
    return f"process {holder['pid']} on {holder['host']}, since {holder['started_at']}"


def holders(
    store: Store, folder: str, now: float | None = None
) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield path and content of the leases below `folder`, except those of ended processes of this machine.

    A lease of an earlier version names no namespace of process ids: it counts as one of this namespace.

    Yields:
        None for the content of a file that is not a lease.
    """
    for entry in active_leases(store, now, folder):
        try:
            holder = json.loads(store.read(entry.path))
        except FileNotFoundError:  # the process has just ended
            continue
        except ValueError:
            holder = None
        if not isinstance(holder, dict) or not holder.keys() >= {"host", "pid", "started_at"}:
            yield entry.path, None
            continue
        # Containers may share a host name, and a process of another container looks ended from here.
        is_elsewhere = holder["host"] != socket.gethostname()
        is_hidden = holder.get("pid_namespace", pid_namespace()) != pid_namespace()
        is_alive = not isinstance(holder["pid"], int) or is_running(holder["pid"])
        if is_elsewhere or is_hidden or is_alive:
            yield entry.path, holder


def pid_namespace() -> str:
    """Return the name of the namespace in which this process has its id; "" if the system has none."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def is_running(pid: int) -> bool:
    """Return whether a process of this machine has this id."""
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)  # a process of another user
    return True
