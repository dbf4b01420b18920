"""The address of the Ray cluster to connect to, and a check that it answers."""

import contextlib
import os
import socket

from pipeline.errors import TransientError
from pipeline.settings import ClusterSettings

_ANSWER_S = 10.0  # timeout for connecting to a cluster
_SILENT_S = 60.0  # timeout for the first bytes from the head; a busy head needs more than a moment
# the bytes that open an HTTP/2 connection (RFC 9113, 3.4), which a gRPC server answers
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
NO_ADDRESS = {
    "cluster.address": "set cluster.address to null for a local one",
    "RAY_ADDRESS": "unset RAY_ADDRESS for a local one",
    "local Ray": "look at its logs below /tmp/ray",
}
TOKEN = (
    "RAY_AUTH_MODE=token and the cluster's token in ~/.ray/auth_token, RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN"
)


def address_of(settings: ClusterSettings) -> tuple[str, str]:
    """Return the address to connect to and the setting that named it.

    Ray's own guess is never used: a stale file must not attach us to another user's cluster.
    """
    if settings.address:
        return settings.address, "cluster.address"
    inherited = os.environ.get("RAY_ADDRESS", "")  # inside `ray job submit`: the job's own cluster
    # an http address is the dashboard, for `ray job submit` itself
    if inherited and not inherited.startswith(("http://", "https://")):
        return inherited, "RAY_ADDRESS"
    return "local", "local Ray"


def no_answer(address: str, named: str, found: str) -> TransientError:
    """Return the error for a cluster that does not answer. named: setting that names the address."""
    token = "" if address == "local" else f"set {TOKEN} if it asks for one, "
    return TransientError(
        f"{named} {address}",
        "a Ray cluster that answers",
        found,
        f"check host and port, start the cluster, {token}or {NO_ADDRESS[named]}",
    )


def check_answers(address: str, named: str, patience_s: float) -> None:
    """Raise TransientError if nothing listens at a host:port, or if it listens but sends nothing.

    Ray would wait many minutes, or forever, without a message.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S)
    except (OSError, OverflowError) as error:
        raise no_answer(address, named, str(error)) from None
    silent_s = min(_SILENT_S, patience_s)
    # a server that closes the connection may expect TLS: Ray itself finds out
    with connection, contextlib.suppress(ConnectionError):
        connection.settimeout(silent_s)
        connection.sendall(_GREETING)
        try:
            connection.recv(1)
        except TimeoutError:
            raise no_answer(
                address, named, f"a port that accepts connections but sends nothing for {silent_s:g} s"
            ) from None
