"""Log a sample of the queries that a service answers (`manta serve --log-queries`), off the path of requests.

A request draws for each of its queries and puts the drawn ones into a queue. A thread encodes their texts and
writes lines. Nothing here can fail a request: a full queue, a full disk and an encoder that fails are counted
in the metric manta_serve_logged_queries_total, whose outcomes add up to all queries of POST /search.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any, Literal, NamedTuple

import numpy as np
from fastapi import Request

from pipeline.errors import MODEL_FAILURES, PipelineError
from pipeline.index.search.search import OpenRelease
from pipeline.log import announce
from pipeline.serve.access import token_of
from pipeline.serve.batches import Found, Search
from pipeline.serve.connections import say_seldom
from pipeline.serve.metrics import ServiceMetrics
from pipeline.text.query_log.draws import PER_CLIENT, Draw, QueryDraws, client_of_address
from pipeline.text.query_log.file import LogFull, QueryLogFile, now_utc
from pipeline.text.query_log.lines import LoggedQuery, encode_vector

OUTCOMES = ("written", "not_drawn", "declined", "dropped", "unusable", "failed")
"""declined: the request says so; dropped: the queue was full, or another encoder answers by now; unusable: a
vector that is zero or not finite; failed: not encoded or not written"""
_Outcome = Literal["written", "not_drawn", "declined", "dropped", "unusable", "failed"]
_MAX_QUEUED = 1_024  # drawn queries that wait for the thread
_LOOK_S = 60.0  # longest time between two looks at the clock
_TIDY_S = 3_600.0  # seconds between two rewrites without lines that are too old
_END_S = 5.0  # longest time in which the last lines are written
_JOIN_S = 60.0  # longest time for the line that is written then; the disk may hang
_DECLINED = ("sec-gpc", "dnt")  # Global Privacy Control, Do Not Track
_FAILURES = (PipelineError, OSError, MemoryError, *MODEL_FAILURES)


@dataclass(frozen=True)
class QueryLogOptions:
    """Options of the log of a service."""

    path: Path
    texts: bool = False
    """also log the texts of queries"""
    days: int = 14
    """number of days after which a line is removed"""


class _Drawn(NamedTuple):
    """A query to be logged."""

    draw: Draw
    query: str | np.ndarray
    """text, or raw vector (d,)"""
    space_id: str
    fields: dict[str, Any]
    """other fields of the line"""


class QueryLog:
    """QueryDraws queries and writes them to a file."""

    def __init__(
        self, options: QueryLogOptions, release: OpenRelease, metrics: ServiceMetrics, *, has_tokens: bool
    ) -> None:
        """Open the file.

        Args:
            has_tokens: whether clients have tokens of their own, so that a token is a client.

        Raises:
            ConfigError: the file cannot be written, or another service writes it.
        """
        self._options, self._release, self._metrics = options, release, metrics
        self._has_tokens = has_tokens
        self._held = contextlib.ExitStack()
        self._file = QueryLogFile(options.path, options.days)
        self._draws, self._day = QueryDraws(), ""
        self._per_client, self._tidied_day, self._tidied = PER_CLIENT, "", 0.0
        self._queue: Queue[_Drawn | None] = Queue(_MAX_QUEUED)
        self._ends = float("inf")
        for outcome in OUTCOMES:
            metrics.logged.labels(outcome)  # a rate needs a first value
        self._held.enter_context(self._file.held())
        self._tidy_if_due()

    def offer(self, search: Search, found: Found, request: Request) -> None:
        """Draw for each query of an answered search. Called in the event loop; does no I/O.

        Args:
            request: with the header `Sec-GPC: 1` or `DNT: 1` nothing is logged. Of its client, a keyed hash
                is stored, so that every client has the same share.
        """
        client = _client_of(request, self._has_tokens)
        if any(request.headers.get(name) == "1" for name in _DECLINED):
            self._count("declined", len(search.queries))
            return
        time_ = now_utc().strftime("%Y-%m-%dT%HZ")
        if time_[:10] != self._day:  # a new key, so that nobody can be followed from day to day
            lowered = self._per_client if time_[:10] == self._tidied_day else PER_CLIENT
            self._draws, self._day = QueryDraws(lowered), time_[:10]
        for query, answers in zip(search.queries, found.answers, strict=True):
            if (draw := self._draws.draw(client)) is None:
                self._count("not_drawn")
                continue
            fields = {
                "time": time_,
                "release": found.release,
                "filtered": search.where is not None or search.token.where is not None,
                "k": search.k,
                "answers": len(answers),
                "score": answers[0]["score"] if answers else None,
            }
            try:
                self._queue.put_nowait(_Drawn(draw, query, found.space_id, fields))
            except Full:
                self._count("dropped")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Write drawn queries while the block runs, and for some seconds those that wait at its end.

        The thread has ended then: an encoder that still ran while the process ends would abort it.
        """
        with self._held:
            thread = threading.Thread(target=self._work, daemon=True, name="query log")
            thread.start()
            try:
                yield
            finally:
                self._ends = time.monotonic() + _END_S
                with contextlib.suppress(Full):
                    self._queue.put_nowait(None)  # wakes the thread
                thread.join(_JOIN_S)
                if waiting := sum(each is not None for each in self._queue.queue):
                    announce(f"queries that waited to be logged are not: {waiting:,}")

    def _work(self) -> None:
        """Write lines until the end."""
        while time.monotonic() < self._ends:
            with contextlib.suppress(Empty):
                drawn = self._queue.get(timeout=_LOOK_S)
                if drawn is None:
                    return
                self._count(self._write(drawn))
            self._tidy_if_due()

    def _write(self, drawn: _Drawn) -> _Outcome:
        """Write a line. Returns what became of the query."""
        release = self._release.snapshot()
        if release.space_id != drawn.space_id:
            return "dropped"
        try:
            text = drawn.query if isinstance(drawn.query, str) else None
            vector = drawn.query if text is None else release.encode([text])[0]
            assert isinstance(vector, np.ndarray)
            if not (np.isfinite(vector).all() and vector.any()):
                return "unusable"
            self._file.append(
                LoggedQuery(
                    client=drawn.draw.client,
                    draw=drawn.draw.number,
                    per_client=drawn.draw.per_client,
                    space_id=drawn.space_id,
                    vector=encode_vector(vector),
                    text=text if self._options.texts else None,
                    **drawn.fields,
                )
            )
        except _FAILURES as error:
            if isinstance(error, LogFull):
                self._tidied_day = ""  # makes room
            say_seldom(f"a query is not logged: {type(error).__name__}: {error}", "query log")
            return "failed"
        return "written"

    def _tidy_if_due(self) -> None:
        now = now_utc()
        if now.date().isoformat() == self._tidied_day and time.monotonic() - self._tidied < _TIDY_S:
            return
        self._tidied_day, self._tidied = now.date().isoformat(), time.monotonic()
        try:
            per_client = self._file.tidy(now)
        except OSError as error:
            say_seldom(f"lines of the query log that are too old stay: {error}", "query log: old lines")
        else:
            self._per_client = per_client or PER_CLIENT
            if self._day == self._tidied_day:
                self._draws.per_client = self._per_client
            self._metrics.log_tidied.set(now.timestamp())

    def _count(self, outcome: _Outcome, queries: int = 1) -> None:
        self._metrics.logged.labels(outcome).inc(queries)


def _client_of(request: Request, has_tokens: bool) -> str:
    """Return who asks: the name of its token, or else its address, which a proxy may give."""
    if has_tokens:
        return token_of(request.scope).name
    return client_of_address(request.client.host if request.client else "")
