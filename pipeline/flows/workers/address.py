"""The address of the Ray cluster to connect to, and a check that the cluster answers."""

import contextlib
import os
import socket

from pipeline.errors import TransientError
from pipeline.settings import ClusterSettings

_CONNECT_S = 10.0  # timeout for opening a connection
_FIRST_BYTES_S = 60.0  # timeout for the first bytes of the head, which may be busy
# The bytes that open an HTTP/2 connection (RFC 9113, 3.4), which a gRPC server answers.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
# What to do about an unusable address, by the setting that gave it.
ADDRESS_REMEDIES = {
    "cluster.address": "set cluster.address to null for a local one",
    "RAY_ADDRESS": "unset RAY_ADDRESS for a local one",
    "local Ray": "look at its logs below /tmp/ray",
}
TOKEN_SETTINGS = (
    "RAY_AUTH_MODE=token and the cluster's token in ~/.ray/auth_token, RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN"
)


def address_of(settings: ClusterSettings) -> tuple[str, str]:
    """Return the address to connect to and the setting that gives it.

    Ray itself would also look for a file of a running cluster, which may be stale or another user's.
    """
    if settings.address:
        return settings.address, "cluster.address"
    inherited = os.environ.get("RAY_ADDRESS", "")  # inside `ray job submit`: the job's own cluster
    # an http address is the dashboard, for `ray job submit` itself
    if inherited and not inherited.startswith(("http://", "https://")):
        return inherited, "RAY_ADDRESS"
    return "local", "local Ray"


def no_answer_error(address: str, setting: str, found: str) -> TransientError:
    """Return the error for a cluster that does not answer. `setting` gives its address."""
    token = "" if address == "local" else f"set {TOKEN_SETTINGS} if it asks for one, "
    return TransientError(
        f"{setting} {address}",
        "a Ray cluster that answers",
        found,
        f"check host and port, start the cluster, {token}or {ADDRESS_REMEDIES[setting]}",
    )


def check_answers(address: str, setting: str, patience_s: float) -> None:
    """Raise TransientError if nothing listens at a host:port, or if the listener sends nothing.

    Ray itself would wait many minutes, or forever, without a message. Other addresses are not checked.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S)
    except (OSError, OverflowError) as error:
        raise no_answer_error(address, setting, str(error)) from None
    timeout_s = min(_FIRST_BYTES_S, patience_s)
    # a server that closes the connection may expect TLS, which Ray tries itself
    with connection, contextlib.suppress(ConnectionError):
        connection.settimeout(timeout_s)
        connection.sendall(_PREFACE)
        try:
            connection.recv(1)
        except TimeoutError:
            raise no_answer_error(
                address, setting, f"a port that accepts connections but sends nothing for {timeout_s:g} s"
            ) from None
