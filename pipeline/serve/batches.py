"""Answer concurrent searches together, as the encoder and faiss are faster with many queries at a time."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import PipelineError, TransientError
from pipeline.index.search import OpenRelease
from pipeline.serve.messages import MAX_QUERIES
from pipeline.serve.metrics import ServiceMetrics

_MAX_WAITING = 4_096  # queries; later requests are refused until some are answered


class Overloaded(TransientError):
    """Too many queries wait for an answer."""


@dataclass(frozen=True)
class Search:
    """Queries of one request.

    Attributes:
        queries: texts, or vectors (q, d).
        k: answers per query.
        space_id: space of the queries; None if it does not matter.
        where: a filter.
        group: answer with documents.
        texts: add the text of each answer.
    """

    queries: tuple[str, ...] | np.ndarray
    k: int = 10
    space_id: str | None = None
    where: str | None = None
    group: bool = False
    texts: bool = False

    @property
    def kind(self) -> tuple[Any, ...]:
        """Value that is equal for searches that can be computed together."""
        shape = self.queries.shape[1:] if isinstance(self.queries, np.ndarray) else None
        return shape, self.k, self.space_id, self.where, self.group, self.texts


@dataclass(frozen=True)
class Found:
    """Answers to each query of a search, from one release."""

    release: int
    space_id: str
    answers: list[list[dict[str, Any]]]


class Batches:
    """Answers searches in batches: while one is computed, new searches wait and form the next.

    So nobody waits for a batch to become full. All methods but `answer` are called in one event loop.
    """

    def __init__(self, release: OpenRelease, metrics: ServiceMetrics) -> None:
        self._release, self._metrics = release, metrics
        self._waiting: list[tuple[Search, asyncio.Future[Found]]] = []
        self._computing: asyncio.Task[None] | None = None
        # one thread, because encoder and faiss use all cores by themselves
        self._thread = ThreadPoolExecutor(1, "search")

    async def search(self, search: Search) -> Found:
        """Answer a search.

        Raises:
            PipelineError: the queries or the filter are invalid, or a file of the release is missing.
            Overloaded: too many queries wait.
        """
        waiting = sum(len(other.queries) for other, _ in self._waiting)
        if waiting + len(search.queries) > _MAX_WAITING:
            raise Overloaded(
                "search", f"at most {_MAX_WAITING:,} queries at a time", "more", "send them again later"
            )
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((search, future))
        if self._computing is None:
            self._computing = asyncio.create_task(self._compute())
        return await future

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    async def _compute(self) -> None:
        """Answer all waiting searches, batch after batch."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = self._take_batch()
            searches = [search for search, _ in batch]
            results = await loop.run_in_executor(self._thread, self.answer, searches)
            for (_, future), result in zip(batch, results, strict=True):
                if future.cancelled():  # its client has gone
                    continue
                if isinstance(result, Found):
                    future.set_result(result)
                else:
                    future.set_exception(result)
        self._computing = None

    def _take_batch(self) -> list[tuple[Search, "asyncio.Future[Found]"]]:
        """Remove the oldest searches, with at most MAX_QUERIES queries, from those that wait."""
        ends = np.cumsum([len(search.queries) for search, _ in self._waiting])
        count = max(1, int(np.searchsorted(ends, MAX_QUERIES, side="right")))
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        self._metrics.batch_queries.observe(int(ends[count - 1]))
        return batch

    def answer(self, searches: Sequence[Search]) -> list[Found | Exception]:
        """Answer searches, all from one release. Errors are returned in the place of answers."""
        release = self._release.snapshot()
        results: dict[int, Found | Exception] = {}
        kinds = defaultdict(list)
        for number, search in enumerate(searches):
            kinds[search.kind].append(number)
        for numbers in kinds.values():
            same = [searches[number] for number in numbers]
            results.update(zip(numbers, _answer_same(release, same), strict=True))
        return [results[number] for number in range(len(searches))]


def _answer_same(release: OpenRelease, searches: list[Search]) -> list[Found | Exception]:
    """Answer searches of one kind together; if that fails, one by one, so that only the faulty ones fail."""
    try:
        return list(_answers(release, searches))
    except PipelineError as error:
        if len(searches) == 1:
            return [error]
        return [result for search in searches for result in _answer_same(release, [search])]
    except Exception as error:  # a defect of the program ends the request, not the service
        return [error for _ in searches]


def _answers(release: OpenRelease, searches: list[Search]) -> Iterator[Found]:
    """Yield the answers to each of the searches, which are of one kind."""
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


def json_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table with values that JSON has; others, such as dates, as texts."""
    for row in table.to_pylist():
        yield {name: _json_value(value) for name, value in row.items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_json_value(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _json_value(each) for name, each in value.items()}
    return value if value is None or isinstance(value, bool | int | str) else str(value)
