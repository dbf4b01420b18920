"""Searches that are answered together get the answers that they get alone, and only faulty ones fail."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import ConfigError, ModelError, QueryError, TransientError
from pipeline.index.search.search import OpenRelease, open_release
from pipeline.serve.batches import Batches, ClientGone, Found, Overloaded, Search
from pipeline.serve.messages import MAX_QUERIES
from pipeline.serve.metrics import ServiceMetrics
from pipeline.serve.problems import status_of
from pipeline.store.files.open_store import open_store
from tests.index.published import Publisher, choosy_encoder, texts
from tests.models.folders import save_folder

CORPUS = texts(120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a root of one release, and its encoder."""
    folder = tmp_path_factory.mktemp("served")
    Publisher(open_store(folder / "root"), save_folder(folder / "bert", "bert"), folder)(CORPUS)
    return folder


@pytest.fixture(scope="module")
def release(folder: Path) -> OpenRelease:
    """An open release."""
    return open_release(folder / "root")


@pytest.fixture
def batches(release: OpenRelease) -> Iterator[Batches]:
    """Batches over the release."""
    batches = Batches(release, ServiceMetrics())
    yield batches
    batches.close()


def ids(found: Found | Exception) -> list[list[str]]:
    assert isinstance(found, Found)
    return [[row["id"] for row in rows] for rows in found.answers]


def test_searches_of_different_kinds_are_answered_together_as_alone(batches: Batches, release: OpenRelease):
    vectors = release.encode(CORPUS[:3])
    searches = [
        Search(("two dogs",), 3),
        Search(tuple(CORPUS[5:9]), 3),
        Search(("two dogs", "a girl"), 3, where="length < 20"),
        Search(vectors, 2, release.space_id),
        Search(("a girl",), 7, texts=True),
    ]
    together = batches.answer(searches)
    alone = [batches.answer([search])[0] for search in searches]
    assert list(map(ids, together)) == list(map(ids, alone))
    assert [len(found.answers) for found in together if isinstance(found, Found)] == [1, 4, 2, 3, 1]


def test_a_faulty_search_fails_alone(batches: Batches, release: OpenRelease):
    searches = [
        Search(("two dogs",)),
        Search((" ",)),
        Search(("a girl",)),
        Search((np.full((1, 48), np.nan, np.float32)), space_id=release.space_id),
        Search(("a girl",), where="nothing = 1"),
    ]
    results = batches.answer(searches)
    kinds = [type(result) for result in results]
    assert kinds == [Found, ConfigError, Found, QueryError, ConfigError]
    assert ids(results[2]) == ids(batches.answer([searches[2]])[0])


def test_a_text_that_cannot_be_encoded_fails_alone_and_is_named(folder: Path):
    release = open_release(folder / "root")
    release._files._encoder = choosy_encoder(folder / "bert")
    batches = Batches(release, ServiceMetrics())
    searches = [Search((text,)) for text in CORPUS[:40]]
    searches[7] = searches[30] = Search(("two dogs", "a \u2603"))
    results = batches.answer(searches)
    assert [number for number, result in enumerate(results) if not isinstance(result, Found)] == [7, 30]
    for bad in (results[7], results[30]):
        assert isinstance(bad, QueryError)
        assert status_of(bad) == 400
        assert str(bad).startswith("search: query 1: expected a text that the release's encoder can encode")
    assert ids(results[8]) == ids(batches.answer([searches[8]])[0])


def test_an_encoder_that_encodes_nothing_is_a_fault_of_the_service(folder: Path):
    release = open_release(folder / "root")
    release._files._encoder = encoder = choosy_encoder(folder / "bert")
    encoder.is_broken = True
    [result] = Batches(release, ServiceMetrics()).answer([Search(("two dogs",))])
    assert isinstance(result, ModelError)
    assert status_of(result) == 503


@pytest.mark.parametrize("error", [MemoryError(), Exception("odd"), BaseException("panicked")], ids=repr)
def test_an_error_of_any_class_fails_only_the_search_that_causes_it(release: OpenRelease, error):
    class FaultyRelease(_PanickingRelease):
        def search(self, queries, *arguments, **options) -> pa.Table:
            if "fault" in queries:
                raise error
            return self._release.search(queries, *arguments, **options)

    searches = [Search((text,)) for text in (*CORPUS[:20], "fault", *CORPUS[20:35])]
    results = Batches(FaultyRelease(release), ServiceMetrics()).answer(searches)
    assert [number for number, result in enumerate(results) if not isinstance(result, Found)] == [20]


def test_queries_beyond_the_limit_are_refused_and_the_others_answered(release: OpenRelease):
    batches = Batches(release, ServiceMetrics())

    async def ask() -> list[Found | BaseException]:
        full = tuple(CORPUS[:1] * MAX_QUERIES)
        return await asyncio.gather(
            *(batches.search(Search(full, 1)) for _ in range(18)), return_exceptions=True
        )

    kinds = [type(result) for result in asyncio.run(ask())]
    assert kinds[:16] == [Found] * 16
    assert kinds[16:] == [Overloaded] * 2


class _PanickingRelease:
    """A release whose first search ends in a panic of Rust code, which is no Exception in Python."""

    def __init__(self, release: OpenRelease) -> None:
        self._release, self._searched = release, False

    def snapshot(self) -> "_PanickingRelease":
        return self

    def __getattr__(self, name: str):
        return getattr(self._release, name)

    def search(self, *arguments, **options) -> pa.Table:
        if not self._searched:
            self._searched = True
            raise BaseException("panicked")
        return self._release.search(*arguments, **options)


def test_a_panic_ends_its_search_and_not_the_service(release: OpenRelease):
    batches = Batches(_PanickingRelease(release), ServiceMetrics())

    async def ask() -> list[Found | BaseException]:
        return [
            *await asyncio.gather(batches.search(Search(("two dogs",))), return_exceptions=True),
            await asyncio.wait_for(batches.search(Search(("two dogs",))), 30),
        ]

    failed, found = asyncio.run(ask())
    assert isinstance(failed, RuntimeError)
    assert "panicked" in str(failed)
    assert ids(found) == ids(Batches(release, ServiceMetrics()).answer([Search(("two dogs",))])[0])


def test_a_fault_of_the_store_is_met_once_for_a_batch(release: OpenRelease):
    asked = []

    class FailingRelease(_PanickingRelease):
        def search(self, *arguments, **options) -> pa.Table:
            asked.append(arguments)
            raise TransientError("store", "an answer", "none", "try again")

    results = Batches(FailingRelease(release), ServiceMetrics()).answer([Search(("two dogs",))] * 50)
    assert [type(result) for result in results] == [TransientError] * 50
    assert len(asked) == 1


def test_searches_of_clients_that_have_gone_are_not_computed(release: OpenRelease):
    metrics = ServiceMetrics()
    batches = Batches(release, metrics)

    async def gone() -> bool:
        return True

    async def ask() -> list[Found | BaseException]:
        return await asyncio.gather(
            batches.search(Search(("two dogs",)), gone),
            batches.search(Search(("a girl",))),
            return_exceptions=True,
        )

    left, found = asyncio.run(ask())
    assert isinstance(left, ClientGone)
    assert isinstance(found, Found)
    assert b"manta_serve_batch_queries_sum 1.0" in metrics.text()


def test_a_client_that_goes_away_does_not_disturb_others(release: OpenRelease):
    batches = Batches(release, ServiceMetrics())

    async def ask() -> Found:
        impatient = asyncio.create_task(batches.search(Search(("two dogs",))))
        patient = asyncio.create_task(batches.search(Search(("two dogs",))))
        await asyncio.sleep(0)
        impatient.cancel()
        return await patient

    assert ids(asyncio.run(ask())) == ids(batches.answer([Search(("two dogs",))])[0])


class _SlowFilter(_PanickingRelease):
    """A release whose filters are evaluated for ever; counts how often it may go on."""

    proceeded = 0

    def search(self, *arguments, **options) -> pa.Table:
        return self._release.search(*arguments, **options)

    def count(self, where: str, proceed: Callable[[], None]) -> int:
        while True:
            proceed()
            self.proceeded += 1
            time.sleep(0.005)


def test_a_filter_that_takes_long_delays_no_search_without_a_filter_and_ends(release: OpenRelease):
    batches = Batches(_SlowFilter(release), ServiceMetrics(), filter_s=0.5)

    async def ask() -> tuple[bool, list[Found | BaseException]]:
        slow = asyncio.create_task(batches.search(Search(("two dogs",), where="length < 20")))
        await asyncio.sleep(0.05)
        found = await batches.search(Search(("two dogs",)))
        return isinstance(found, Found) and not slow.done(), await asyncio.gather(
            slow, return_exceptions=True
        )

    was_first, [ended] = asyncio.run(ask())
    assert was_first
    assert isinstance(ended, ConfigError)
    assert "found within 0.5 s" in str(ended)
    batches.close()


def test_a_filter_ends_if_its_clients_have_gone_or_the_service_ends(release: OpenRelease):
    slow = _SlowFilter(release)
    batches = Batches(slow, ServiceMetrics())
    gone = asyncio.Event()

    async def is_gone() -> bool:
        return gone.is_set()

    async def ask() -> list[BaseException]:
        searching = asyncio.create_task(batches.search(Search(("two dogs",), where="length < 20"), is_gone))
        while not slow.proceeded:
            await asyncio.sleep(0.01)
        gone.set()
        left = await asyncio.gather(searching, return_exceptions=True)
        slow.proceeded = 0
        gone.clear()
        other = asyncio.create_task(batches.search(Search(("two dogs",), where="length < 30"), is_gone))
        while not slow.proceeded:
            await asyncio.sleep(0.01)
        batches.close()  # would wait for ever
        other.cancel()
        return left

    [left] = asyncio.run(asyncio.wait_for(ask(), 30))
    assert isinstance(left, ClientGone)
