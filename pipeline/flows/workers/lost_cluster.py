"""Notice that the head of a running cluster, or Ray on this node, has ended.

Ray itself would end this process with exit code 1: at its next call, or a minute later without a message.
This is apart from `cluster`, which connects, because it reads sockets and Ray's internals.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

from pipeline.errors import TransientError
from pipeline.flows.workers.address import ClusterAddress
from pipeline.flows.workers.processes import WorkerProcess, abort_on_error
from pipeline.flows.workers.ray_internals import raylet_socket

_POLL_S = 0.2  # time between two checks; Ray notices the end of its raylet at the next call
_HEAD_POLL_S, _CONNECT_S = 2.0, 5.0  # time between two connections to the head, and time limit of each
_HEAD_S = 40.0  # time without a connection after which the head is lost; Ray ends the process after 60 s


@contextlib.contextmanager
def abort_if_cluster_dies(cluster: ClusterAddress) -> Iterator[None]:
    """Abort this process with a message if the connected cluster's head, or the raylet of this node, ends.

    A head that is started again within 40 seconds, as is possible with a store for its state, is not lost.
    """
    import ray

    head, socket_path = ray.get_runtime_context().gcs_address, raylet_socket()
    raylet = None if socket_path is None else _peer(socket_path)
    is_lost = _HeadCheck(head)

    def find_error() -> TransientError | None:
        if raylet is not None and not raylet.runs():
            return _lost_error(cluster, "the raylet of this node has ended")
        return (
            _lost_error(cluster, f"no answer from its head, {head}, for {_HEAD_S:g} s") if is_lost() else None
        )

    with abort_on_error(find_error, _POLL_S):
        yield


class _HeadCheck:
    """Check, again and again, whether nothing has listened at an address, host:port, for too long."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._answered = self._asked = time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._asked < _HEAD_POLL_S:
            return False
        self._asked = now
        with (
            contextlib.suppress(OSError),
            socket.create_connection((self._host.strip("[]"), self._port), _CONNECT_S),
        ):
            self._answered = now
        return time.monotonic() - self._answered > _HEAD_S


def _peer(path: str) -> WorkerProcess | None:
    """Return the process that listens at a Unix socket; None if it is in another container."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, _, _ = struct.unpack("3i", credentials)
        return WorkerProcess.of(pid) if pid else None
    return None


def _lost_error(cluster: ClusterAddress, found: str) -> TransientError:
    remedy = "see what ended it, start the cluster, and run again: finished units are kept"
    return TransientError(str(cluster), "a Ray cluster that answers", found, remedy)
