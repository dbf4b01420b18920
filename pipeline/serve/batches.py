"""Answer concurrent searches together, as the encoder and faiss are faster with many queries at a time.

Searches with a filter have a separate queue and thread, because a filter may take long.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import ConfigError, PipelineError, TransientError
from pipeline.index.search.search import OpenRelease
from pipeline.serve.messages import MAX_QUERIES
from pipeline.serve.metrics import ServiceMetrics
from pipeline.serve.tokens import ANYONE, AccessToken
from pipeline.targets.values import json_rows

_MAX_WAITING = 4_096  # queries; later requests are refused until some are answered
_FILTER_S = 30.0  # longest time for the rows of a filter
_POLL_S = 0.2  # time between two checks for clients that have gone while their searches are computed


IsGone = Callable[[], Awaitable[bool]]


async def never_gone() -> bool:
    """Return False: the client waits."""
    return False


class Overloaded(TransientError):
    """Too many queries wait for an answer."""


class ClientGone(Exception):
    """The client of a search has closed its connection, so the search was not computed."""


@dataclass(frozen=True)
class Search:
    """Queries of one request."""

    queries: tuple[str, ...] | np.ndarray
    """texts, or vectors (q, d)"""
    k: int = 10
    """answers per query"""
    space_id: str | None = None
    """space of the queries; None if it does not matter"""
    where: str | None = None
    """a filter"""
    group: bool = False
    """answer with documents"""
    texts: bool = False
    """add the text of each answer"""
    token: AccessToken = ANYONE
    """whose rows are searched"""

    @property
    def is_filtered(self) -> bool:
        """True if a filter is evaluated for the search."""
        return self.where is not None or self.token.where is not None

    @property
    def batch_key(self) -> tuple[Any, ...]:
        """Value that is equal for searches that can be computed together."""
        shape = self.queries.shape[1:] if isinstance(self.queries, np.ndarray) else None
        return shape, self.k, self.space_id, self.token, self.where, self.group, self.texts


@dataclass(frozen=True)
class Found:
    """Answers to each query of a search, from one release."""

    release: int
    space_id: str
    answers: list[list[dict[str, Any]]]


class _Waiting(NamedTuple):
    """A search that waits, with the future of its result."""

    search: Search
    result: "asyncio.Future[Found]"
    is_gone: IsGone


@dataclass
class _Queue:
    """Searches that wait, and the thread that answers them.

    It is one thread, because encoder and faiss use all cores by themselves.
    """

    waiting: list[_Waiting] = field(default_factory=list)
    computing: asyncio.Task[None] | None = None
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "search"))


def _always(_: int) -> bool:
    return True


class Batches:
    """Answers searches in batches: while a batch is computed, new searches wait and form the next one.

    So no search waits for a batch to become full. All methods but `answer` are called in one event loop.
    """

    def __init__(self, release: OpenRelease, metrics: ServiceMetrics, *, filter_s: float = _FILTER_S) -> None:
        """Make the queues.

        Args:
            filter_s: longest time for the rows of a filter.
        """
        self._release, self._metrics, self._filter_s = release, metrics, filter_s
        self._plain, self._filtered = _Queue(), _Queue()
        self._is_closed = False

    async def search(self, search: Search, is_gone: IsGone = never_gone) -> Found:
        """Answer a search.

        Args:
            is_gone: returns whether the client has gone; then the search is stopped, or not begun.

        Raises:
            PipelineError: the queries or the filter are invalid, or a file of the release is missing.
            Overloaded: too many queries wait.
            ClientGone: the client has gone.
        """
        queue = self._filtered if search.is_filtered else self._plain
        waiting = sum(len(other.search.queries) for other in queue.waiting)
        if waiting + len(search.queries) > _MAX_WAITING:
            raise Overloaded(
                "search", f"at most {_MAX_WAITING:,} queries at a time", "more", "send them again later"
            )
        result: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        queue.waiting.append(_Waiting(search, result, is_gone))
        if queue.computing is None:
            queue.computing = asyncio.create_task(self._compute(queue))
        return await result

    def close(self) -> None:
        """End the threads, and the filters that they evaluate."""
        self._is_closed = True
        for queue in (self._plain, self._filtered):
            queue.waiting.clear()
            queue.thread.shutdown()

    async def _compute(self, queue: _Queue) -> None:
        """Answer all waiting searches, batch after batch."""
        loop = asyncio.get_running_loop()
        try:
            while queue.waiting:
                batch = await self._take_batch(queue)
                searches = [each.search for each in batch]

                def is_wanted(number: int, batch: list[_Waiting] = batch) -> bool:
                    return not batch[number].result.done()

                answering = loop.run_in_executor(queue.thread, self.answer, searches, is_wanted)
                while not (await asyncio.wait({answering}, timeout=_POLL_S))[0]:
                    await _drop_gone(batch)
                for waiting, result in zip(batch, answering.result(), strict=True):
                    if waiting.result.done():
                        continue
                    if isinstance(result, Found):
                        waiting.result.set_result(result)
                    else:
                        waiting.result.set_exception(result)
        finally:
            queue.computing = None

    async def _take_batch(self, queue: _Queue) -> list[_Waiting]:
        """Take the oldest searches, with at most MAX_QUERIES queries; drop those whose client has gone."""
        ends = np.cumsum([len(each.search.queries) for each in queue.waiting])
        count = max(1, int(np.searchsorted(ends, MAX_QUERIES, side="right")))
        oldest, queue.waiting = queue.waiting[:count], queue.waiting[count:]
        batch = await _drop_gone(oldest)
        if batch:
            self._metrics.batch_queries.observe(sum(len(each.search.queries) for each in batch))
        return batch

    def answer(
        self, searches: Sequence[Search], is_wanted: Callable[[int], bool] = _always
    ) -> list[Found | Exception]:
        """Answer searches, all from one release. A search that fails gets its error instead of answers.

        Args:
            is_wanted: returns whether somebody still waits for the answer to search number i.
        """
        release = self._release.snapshot()
        results: dict[int, Found | Exception] = {}
        numbers_by_key = defaultdict(list)
        for number, search in enumerate(searches):
            numbers_by_key[search.batch_key].append(number)
        for numbers in numbers_by_key.values():
            same = [searches[number] for number in numbers]
            wanted = (partial(is_wanted, number) for number in numbers)
            found = self._answer_wanted(release, same, tuple(wanted))
            results.update(zip(numbers, found, strict=True))
        return [results[number] for number in range(len(searches))]

    def _answer_wanted(
        self, release: OpenRelease, same: list[Search], wanted: Sequence[Callable[[], bool]]
    ) -> "list[Found | Exception]":
        """Answer searches of one `batch_key`, from the rows of their token.

        Args:
            wanted: functions, one per search, that return whether somebody still waits for its answer.
        """
        try:
            limited = same[0].token.limited(release)
        except PipelineError as error:
            return [error] * len(same)
        failed = self._evaluate(limited, same[0], wanted)
        return [failed] * len(same) if failed is not None else _answer_same(limited, same)

    def _evaluate(
        self, release: OpenRelease, search: Search, wanted: Sequence[Callable[[], bool]]
    ) -> Exception | None:
        """Evaluate a search's filters, so that the release keeps the selected rows. Returns the error if that
        fails.
        """
        if not search.is_filtered:
            return None
        began_s = time.monotonic()

        def proceed() -> None:
            if self._is_closed or not any(is_wanted() for is_wanted in wanted):
                raise ClientGone
            if time.monotonic() - began_s > self._filter_s:
                found = "one that takes longer"
                expected = f"a filter whose rows are found within {self._filter_s:g} s"
                raise ConfigError("where", expected, found, "write fewer conditions, or simpler patterns")

        try:
            release.count(search.where, proceed)
        except Exception as error:
            return error
        return None


async def _drop_gone(searches: list[_Waiting]) -> list[_Waiting]:
    """Return the searches that somebody waits for; those whose client has gone get ClientGone."""
    for each in searches:
        if not each.result.done() and await each.is_gone():
            each.result.set_exception(ClientGone())
    return [each for each in searches if not each.result.done()]


def _answer_same(release: OpenRelease, searches: list[Search]) -> list[Found | Exception]:
    """Answer searches of one `batch_key` together. If that fails, halve them, so that only faulty ones fail.

    After a fault of the store, the halves are not tried, because an attempt to read it may take long.
    """
    try:
        return list(answer_together(release, searches))
    except TransientError as error:
        return [error] * len(searches)
    except BaseException as error:  # the error ends these requests, but not the service
        if len(searches) == 1:  # a panic in Rust code is not an Exception in Python
            panicked = RuntimeError(f"{type(error).__name__}: {error}")
            return [error if isinstance(error, Exception) else panicked]
        middle = len(searches) // 2
        return _answer_same(release, searches[:middle]) + _answer_same(release, searches[middle:])


def answer_together(release: OpenRelease, searches: list[Search]) -> Iterator[Found]:
    """Yield the answers to each of the searches, which have one `batch_key`."""
    first, all_queries = searches[0], [search.queries for search in searches]
    queries: Any = (
        np.concatenate(all_queries)
        if isinstance(first.queries, np.ndarray)
        else [text for texts in all_queries for text in texts]
    )
    table = release.search(
        queries, first.k, space_id=first.space_id, where=first.where, group=first.group, texts=first.texts
    )
    answers: list[list[dict[str, Any]]] = [[] for _ in queries]
    for row in json_rows(table):
        answers[row.pop("query")].append(row)
    start = 0
    for search in searches:
        end = start + len(search.queries)
        yield Found(release.number, release.space_id, answers[start:end])
        start = end
