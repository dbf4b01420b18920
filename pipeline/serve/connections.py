"""Limits of the service's connections and of its log, so that no client keeps others from being answered."""

import asyncio
import contextlib
import logging
import os
import resource
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from pipeline.log import announce

if TYPE_CHECKING:
    from fastapi import FastAPI

_MAX_CONNECTIONS = 4_096
_SPARE_FILES = 64  # file descriptors that are left for opening a release
_REPEATED_S = 60.0  # interval in which a fault is logged only once
_SHUTDOWN_S = 5  # time for open requests to end after SIGTERM


class Limits(NamedTuple):
    """Limits of connections."""

    connections: int
    """largest number of open connections"""
    header_s: float = 10.0
    """longest time for the header of a request"""
    body_s: float = 30.0
    """longest time for a request's body, and longest time in which a client reads nothing of an answer"""
    backlog: int = 2_048
    """largest number of connections that are accepted at once, before any is closed"""


def limits_of_process() -> Limits:
    """Return limits that leave the process file descriptors to open further files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return Limits(_MAX_CONNECTIONS)
    spare = max(_SPARE_FILES, files // 4)
    connections = min(_MAX_CONNECTIONS, max(8, files - len(os.listdir("/dev/fd")) - spare))
    return Limits(connections, backlog=min(2_048, spare // 2))


def server_config(app: "FastAPI", limits: Limits | None = None, **options: Any) -> uvicorn.Config:
    """Return the configuration of a server with limits.

    Args:
        limits: default: limits of the process.
        options: further options of uvicorn.
    """
    for name in ("uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        if not any(isinstance(each, SeldomRepeated) for each in logger.filters):
            logger.addFilter(SeldomRepeated())
    limits = limits or limits_of_process()
    protocol = type("Protocol", (LimitedProtocol,), {"limits": limits})
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        backlog=limits.backlog,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        **options,
    )


class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """HTTP over a connection that is closed if its client takes too long.

    If too many connections are open, the one that waits longest for its client is closed. So clients that
    send a part of a request, or do not read an answer, take no connection from others.
    """

    limits = Limits(_MAX_CONNECTIONS)

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._waits_for, self._since = "", 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._watch()
        if len(self.connections) > self.limits.connections:
            waiting = [each for each in self.connections if each._waits_for and each is not self]
            slowest = min(waiting, key=lambda each: each._since, default=self)
            most = self.limits.connections
            say_seldom(f"more than {most:,} connections: the one that waits longest for its client is closed")
            slowest.transport.abort()
            self.connections.discard(slowest)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Go on, since the client has read."""
        super().resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait."""
        self._stop()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection as soon as its request is answered; at once if the request is not complete."""
        if self._waits_for == "body":
            self.transport.abort()
        else:
            super().shutdown()

    def _watch(self) -> None:
        """Start a timer whenever the connection begins to wait for its client."""
        cycle = self.cycle
        if self.flow.write_paused:
            waits_for, limit_s = "reading", self.limits.body_s
        elif cycle is None or cycle.response_complete:
            waits_for, limit_s = "header", self.limits.header_s
        else:
            waits_for, limit_s = ("body", self.limits.body_s) if cycle.more_body else ("", 0.0)
        if waits_for == self._waits_for:
            return
        self._stop()
        self._waits_for, self._since = waits_for, time.monotonic()
        if waits_for:  # even while it is closing, because a client that reads nothing keeps it open
            self._timer = self.loop.call_later(limit_s, self._close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        say_seldom("a client took too long to send a request or to read the answer; its connection is closed")
        self.transport.abort()


class SeldomRepeated(logging.Filter):
    """Lets each kind of record pass once a minute, with the number of records left out before it."""

    def __init__(self) -> None:
        super().__init__()
        self._seldom = Seldom()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        repeated = self._seldom.left_out(f"{str(record.msg).splitlines()[0]}{kind}")
        if repeated is None:
            return False
        if repeated:
            record.msg = f"{record.msg} ({repeated:,} more since the last such line)"
        return True


class Seldom:
    """Counts faults by kind, and decides which to report: the first of each kind in a minute."""

    def __init__(self) -> None:
        self._reported: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def left_out(self, kind: str) -> int | None:
        """Return how many faults were left out since the last report; None: do not report this one."""
        now = time.monotonic()
        if now - self._reported.get(kind, -_REPEATED_S) < _REPEATED_S:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return None
        if len(self._reported) > 1_000:  # kinds may contain text from clients
            self._reported.clear()
            self._left_out.clear()
        self._reported[kind] = now
        return self._left_out.pop(kind, 0)


_SAID = Seldom()


def say_seldom(sentence: str, kind: str = "") -> None:
    """Print a sentence on standard error, if none of its kind was printed within a minute.

    Args:
        kind: by default, the sentence itself.
    """
    if (repeated := _SAID.left_out(kind or sentence)) is None:
        return
    with contextlib.suppress(OSError):  # standard error is closed, or its disk is full
        announce(f"{sentence} ({repeated:,} more since the last such line)" if repeated else sentence)
