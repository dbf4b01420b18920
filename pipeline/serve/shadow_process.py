"""The process of a shadow: it opens a release, answers searches and compares them with the service's answers.

It is a process of its own with the lowest priority, so that the service has its interpreter and memory for
itself, and a release whose files crash their reader ends this process alone.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from pipeline.errors import TransientError
from pipeline.index.search.release_files import OpenOptions, ReleaseFiles
from pipeline.index.search.search import OpenRelease
from pipeline.serve.batches import Search, answer_together
from pipeline.serve.comparisons import Answer, AnswerComparison, compare
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases

_NICE = 19  # the lowest priority of Linux
_POLL_S = 0.2


class Asked(NamedTuple):
    """A search, and the service's answer to it."""

    search: Search
    answers: Sequence[Sequence[Answer]]
    seconds: float


class Failed(NamedTuple):
    """Why the release could not be opened, or could not answer."""

    reason: str


class ShadowProcess:
    """A child process with an open release. One thread uses it."""

    def __init__(self, releases: Releases, manifest: ReleaseManifest) -> None:
        """Start the process, which opens the release."""
        context = multiprocessing.get_context("spawn")
        self._connection, child = context.Pipe()
        self._process = context.Process(
            target=serve_shadow, args=(child, releases, manifest), daemon=True, name="shadow"
        )
        self._process.start()
        child.close()

    def wait_until_open(self, stop: threading.Event) -> None:
        """Wait until the release is open.

        Raises:
            TransientError: it cannot be opened.
        """
        while not stop.is_set():
            if (answer := self._receive(_POLL_S)) is None:
                continue
            if isinstance(answer, Failed):
                raise TransientError(
                    "the shadow's process", "a release that opens", answer.reason, "see its files"
                )
            return

    def compare(self, asked: Asked, limit_s: float) -> AnswerComparison | Failed | None:
        """Answer a search, and compare. Returns None if that takes longer than `limit_s` seconds."""
        try:
            self._connection.send(asked)
        except OSError:
            return Failed(self._end_of_process())
        answer = self._receive(limit_s)
        assert answer is None or isinstance(answer, AnswerComparison | Failed)
        return answer

    @property
    def is_alive(self) -> bool:
        """True as long as the process runs."""
        return self._process.is_alive()

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _receive(self, limit_s: float) -> object:
        try:
            return self._connection.recv() if self._connection.poll(limit_s) else None
        except (EOFError, OSError):
            return Failed(self._end_of_process())

    def _end_of_process(self) -> str:
        self._process.join(_POLL_S)
        return f"its process ended with exit code {self._process.exitcode}"


def serve_shadow(connection: Connection, releases: Releases, manifest: ReleaseManifest) -> None:
    """Open a release, and answer searches until the other end of the connection is closed."""
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the service, which ends this process
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            files = ReleaseFiles(manifest, OpenOptions(releases.store, None, True, "cpu"))
            release = OpenRelease(releases, files, follows=False)
            release.encode(["a query that loads the encoder"])
        except Exception as error:  # whatever it is, the service goes on and says it
            connection.send(Failed(f"{type(error).__name__}: {error}"))
            return
        connection.send(True)
        while True:
            connection.send(_compare(release, connection.recv()))


def _compare(release: OpenRelease, asked: Asked) -> AnswerComparison | Failed:
    began_s = time.perf_counter()
    try:
        [found] = answer_together(asked.search.token.limited(release), [asked.search])
    except Exception as error:  # an answer that the service could give, and the shadow could not
        return Failed(f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - began_s
    answers = [[(row["id"], row["score"]) for row in rows] for rows in found.answers]
    return compare(asked.answers, answers, asked.seconds, seconds)
