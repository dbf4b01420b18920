"""A service logs a sample of its queries, without texts, off the path of requests, and never fails for it."""

import hashlib
import json
import re
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.index.search.search import open_release
from pipeline.serve import query_log as module
from pipeline.serve.query_log import OUTCOMES, QueryLogOptions
from pipeline.serve.service import ServiceOptions
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.text.query_log.draws import sampled
from pipeline.text.query_log.file import read_log
from pipeline.text.query_log.lines import LoggedQuery
from tests.index.published import Publisher, texts
from tests.models.folders import save_folder
from tests.serve.serving import Client, serving, wait_until

QUERIES = [f"query number {number} of a person" for number in range(20)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A root with one release."""
    folder = tmp_path_factory.mktemp("served")
    store = open_store(folder / "root")
    Publisher(store, save_folder(folder / "bert", "bert"), folder)(texts(40))
    return store


@pytest.fixture
def options(tmp_path: Path) -> QueryLogOptions:
    """Options of a log."""
    return QueryLogOptions(tmp_path / "log")


def outcomes(client: Client) -> dict[str, float]:
    """Return the counts of the metric."""
    _, text = client.get("/metrics")
    found = re.findall(r'^manta_serve_logged_queries_total\{outcome="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {outcome: float(count) for outcome, count in found}


def settled(client: Client, queries: int) -> dict[str, float]:
    """Return the counts that are not 0, when they add up to the queries."""
    wait_until(lambda: sum(outcomes(client).values()) == queries)
    return {outcome: count for outcome, count in outcomes(client).items() if count}


def logged(options: QueryLogOptions) -> list[LoggedQuery]:
    queries, damaged = read_log(options.path)
    assert damaged == 0
    return queries


def test_the_log_has_vectors_and_facts_of_the_queries_but_not_their_texts(
    store: Store, options: QueryLogOptions
):
    with serving(store.uri, ServiceOptions(query_log=options)) as client:
        assert set(outcomes(client)) == set(OUTCOMES)
        _, answer = client.post("/search", {"queries": QUERIES, "k": 3})
        client.post("/search", {"queries": QUERIES[:1], "where": "id = 'nothing'"})
        assert settled(client, 21) == {"written": 21}
    lines, release = logged(options), open_release(store.uri)
    np.testing.assert_array_equal(
        [query.array() for query in lines], release.encode([*QUERIES, QUERIES[0]]).astype(np.float32)
    )
    assert [query.score for query in lines] == [*(found[0]["score"] for found in answer["answers"]), None]
    facts = {(query.filtered, query.k, query.answers, query.release) for query in lines}
    assert facts == {(False, 3, 3, 1), (True, 10, 0, 1)}
    assert {query.space_id for query in lines} == {release.space_id}
    assert len({query.client for query in lines}) == 1
    content = options.path.read_text()
    assert not any(private in content for private in ("person", "nothing", "127.0.0.1"))
    assert all(re.fullmatch(r"[\d-]{10}T\d\dZ", query.time) for query in lines)  # the hour, no minutes


def test_texts_are_logged_if_asked_for_and_vectors_of_clients_as_they_are(
    store: Store, options: QueryLogOptions
):
    release = open_release(store.uri)
    vectors = release.encode(QUERIES[:2])
    with serving(store.uri, ServiceOptions(query_log=QueryLogOptions(options.path, texts=True))) as client:
        client.post("/search", {"queries": QUERIES[:1]})
        client.post("/search", {"vectors": vectors.tolist(), "space_id": release.space_id})
        assert settled(client, 3) == {"written": 3}
    lines = logged(options)
    assert [query.text for query in lines] == [QUERIES[0], None, None]
    np.testing.assert_array_equal([query.array() for query in lines[1:]], vectors)


@pytest.mark.parametrize("header", ["Sec-GPC", "DNT"])
def test_a_request_that_declines_is_not_logged(store: Store, options: QueryLogOptions, header: str):
    with serving(store.uri, ServiceOptions(query_log=options), None, **{header: "1"}) as client:
        client.post("/search", {"queries": QUERIES[:3]})
        assert settled(client, 3) == {"declined": 3}
    assert logged(options) == []


def test_every_client_has_the_same_share(
    store: Store, options: QueryLogOptions, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "PER_CLIENT", 4)
    with serving(store.uri, ServiceOptions(query_log=options)) as client:
        for address, requests in (("192.0.2.1", 6), ("192.0.2.2", 1), ("2001:db8::1", 1), ("2001:db8::2", 1)):
            client.headers["X-Forwarded-For"] = address
            for _ in range(requests):
                client.post("/search", {"queries": QUERIES})
        counts = settled(client, 180)
    assert set(counts) == {"written", "not_drawn"}
    assert Counter(Counter(query.client for query in sampled(logged(options))).values()) == {4: 3}


def test_a_token_of_a_file_is_a_client_and_its_filter_counts_as_one(
    store: Store, options: QueryLogOptions, tmp_path: Path
):
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("one", "two")}
    where = {"one": "", "two": ", where: \"id <> 'x'\""}
    lines = [f"{name}: {{sha256: {digest}{where[name]}}}\n" for name, digest in digests.items()]
    (tmp_path / "tokens").write_text("".join(lines))
    served = ServiceOptions(query_log=options, tokens=tmp_path / "tokens")
    with serving(store.uri, served, None, Authorization="Bearer one") as client:
        for address, secret in (("192.0.2.1", "one"), ("192.0.2.2", "one"), ("192.0.2.1", "two")):
            client.headers.update({"X-Forwarded-For": address, "Authorization": f"Bearer {secret}"})
            assert client.post("/search", {"queries": QUERIES[:1]})[0] == 200
        client.headers["Authorization"] = "Bearer one"
        assert settled(client, 3) == {"written": 3}
    one, again, two = logged(options)
    assert one.client == again.client != two.client
    assert [query.filtered for query in (one, again, two)] == [False, False, True]
    assert "one" not in options.path.read_text()


def test_requests_without_an_answer_are_not_logged(store: Store, options: QueryLogOptions):
    with serving(store.uri, ServiceOptions(query_log=options)) as client:
        assert client.post("/search", {"queries": ["x"], "where": "no_column = 1"})[0] == 400
        assert client.post("/search", {"queries": []})[0] == 422
        assert client.get("/?q=a+page")[0] == 200
        assert sum(outcomes(client).values()) == 0


def test_a_full_disk_fails_no_request_and_is_counted_and_said(
    store: Store, options: QueryLogOptions, capfd: pytest.CaptureFixture[str]
):
    with serving(store.uri, ServiceOptions(query_log=options)) as client:
        client.post("/search", {"queries": QUERIES[:1]})
        settled(client, 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.path.stat().st_size + 9, hard))
        try:
            assert client.post("/search", {"queries": QUERIES[:2]})[0] == 200
            assert settled(client, 3) == {"written": 1, "failed": 2}
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        client.post("/search", {"queries": QUERIES[:1]})
        assert settled(client, 4) == {"written": 2, "failed": 2}
    assert len(logged(options)) == 2
    assert "a query is not logged: OSError" in capfd.readouterr().err


def test_a_thread_that_is_slow_drops_queries_and_delays_no_request(
    store: Store, options: QueryLogOptions, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_MAX_QUEUED", 2)
    write = module.QueryLog._write

    def slow(log: module.QueryLog, drawn: Any) -> Any:
        time.sleep(0.5)
        return write(log, drawn)

    monkeypatch.setattr(module.QueryLog, "_write", slow)
    with serving(store.uri, ServiceOptions(query_log=options)) as client:
        assert client.post("/search", {"queries": QUERIES})[0] == 200
        counts = settled(client, 20)
    assert counts["dropped"] >= 16
    assert counts["dropped"] + counts["written"] == 20


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Set the clock of the log."""
    offset = [timedelta()]
    monkeypatch.setattr(module, "now_utc", lambda: datetime.now(UTC) + offset[0])
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    return lambda by: offset.__setitem__(0, by)


def test_old_lines_go_without_any_request_and_clients_get_other_hashes_every_day(
    store: Store, options: QueryLogOptions, clock: Callable[[timedelta], None]
):
    with serving(store.uri, ServiceOptions(query_log=options)) as client:
        for number, days in enumerate((0, 1, 1, -1, 0), 1):  # the clock may be set back
            clock(timedelta(days=days))
            client.post("/search", {"queries": ["x"]})
            settled(client, number)
        lines = logged(options)
        assert len(lines) == 5
        assert len({query.client for query in lines}) == 4  # only both queries of one day have one hash
        clock(timedelta(days=14))
        wait_until(lambda: len(logged(options)) == 2)  # of tomorrow
        clock(timedelta(days=15))
        wait_until(lambda: logged(options) == [])
        _, text = client.get("/metrics")
        tidied = re.search(r"^manta_serve_query_log_tidied_timestamp_seconds (\S+)$", text, re.MULTILINE)
    assert tidied
    assert float(tidied[1]) > time.time() + 14 * 86_400


def test_a_service_that_ends_writes_for_a_moment_and_then_says_what_it_left_out(
    store: Store,
    options: QueryLogOptions,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(module, "_END_S", 0.5)
    write = module.QueryLog._write

    def slow(log: module.QueryLog, drawn: Any) -> Any:
        time.sleep(0.2)
        return write(log, drawn)

    monkeypatch.setattr(module.QueryLog, "_write", slow)
    with serving(store.uri, ServiceOptions(query_log=options)) as client:
        assert client.post("/search", {"queries": QUERIES})[0] == 200
    assert not any(thread.name == "query log" for thread in threading.enumerate())
    assert 0 < len(logged(options)) < 20
    assert "queries that waited to be logged are not: " in capfd.readouterr().err


def test_two_services_cannot_have_one_log(store: Store, options: QueryLogOptions):
    with (
        serving(store.uri, ServiceOptions(query_log=options)),
        pytest.raises(ConfigError, match="no other service writes"),
        serving(store.uri, ServiceOptions(query_log=options)),
    ):
        pass
    with serving(store.uri, ServiceOptions(query_log=options)):  # the lock ended with the service
        pass


def test_a_log_without_a_service_or_a_folder_is_an_error(store: Store, tmp_path: Path):
    def serve(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "jobs.serve", store.uri, "--port", "0", *options]
        return subprocess.run(command, capture_output=True, text=True)

    ended = serve("--log-texts", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["exit_code"]) == (2, 2)
    assert "add --log-queries FILE" in ended.stderr
    ended = serve("--log-queries", str(tmp_path / "missing" / "log"))
    assert ended.returncode == 2
    assert "a file that can be written" in ended.stderr
