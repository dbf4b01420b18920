"""The address of the Ray cluster to connect to, and a check that the cluster answers."""

import contextlib
import os
import socket
from typing import NamedTuple

from pipeline.errors import TransientError
from pipeline.settings import ClusterSettings

_CONNECT_S = 10.0  # timeout for opening a connection
_FIRST_BYTES_S = 60.0  # timeout for the first bytes from the head, which may be busy
# Bytes that open an HTTP/2 connection (RFC 9113, 3.4), which a gRPC server answers.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
TOKEN_SETTINGS = (
    "RAY_AUTH_MODE=token and the cluster's token in ~/.ray/auth_token, RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN"
)
_REMEDIES = {
    "cluster.address": "set cluster.address to null for a local one",
    "RAY_ADDRESS": "unset RAY_ADDRESS for a local one",
    "local Ray": "look at its logs below /tmp/ray",
}


class ClusterAddress(NamedTuple):
    """The Ray cluster to connect to."""

    address: str
    """host:port, auto, or local to start one on this machine"""
    setting: str
    """the setting or environment variable that names it; "local Ray" if none does"""

    @classmethod
    def of(cls, settings: ClusterSettings) -> "ClusterAddress":
        """Return the address that the settings or the environment name.

        Ray itself would also look for a file of a running cluster, which may be stale or another user's.
        """
        if settings.address:
            return cls(settings.address, "cluster.address")
        inherited = os.environ.get("RAY_ADDRESS", "")  # inside `ray job submit`: the job's own cluster
        # an http address is the dashboard, for `ray job submit` itself
        if inherited and not inherited.startswith(("http://", "https://")):
            return cls(inherited, "RAY_ADDRESS")
        return cls("local", "local Ray")

    @property
    def is_local(self) -> bool:
        """True for a cluster that is started on this machine."""
        return self.address == "local"

    @property
    def remedy(self) -> str:
        """Advice for an address that cannot be used."""
        return _REMEDIES[self.setting]

    def __str__(self) -> str:
        return f"{self.setting} {self.address}"

    def no_answer_error(self, found: str) -> TransientError:
        """Return the error for a cluster that does not answer."""
        token = "" if self.is_local else f"set {TOKEN_SETTINGS} if it asks for one, "
        return TransientError(
            str(self),
            "a Ray cluster that answers",
            found,
            f"check host and port, start the cluster, {token}or {self.remedy}",
        )

    def check_answers(self, patience_s: float) -> None:
        """Raise TransientError if nothing listens at a host:port, or if the listener sends nothing.

        Ray itself would wait many minutes, or forever, without a message. Other addresses are not checked.
        """
        host, _, port = self.address.rpartition(":")
        if not host or "/" in host or not port.isdigit():
            return
        try:
            connection = socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S)
        except (OSError, OverflowError) as error:
            raise self.no_answer_error(str(error)) from None
        timeout_s = min(_FIRST_BYTES_S, patience_s)
        # a server that closes the connection may expect TLS, which Ray tries itself
        with connection, contextlib.suppress(ConnectionError):
            connection.settimeout(timeout_s)
            connection.sendall(_PREFACE)
            try:
                connection.recv(1)
            except TimeoutError:
                raise self.no_answer_error(
                    f"a port that accepts connections but sends nothing for {timeout_s:g} s"
                ) from None
