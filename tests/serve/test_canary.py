"""A new release is tried with a share of the searches, and the service returns from it if it is faulty."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobs.serve import ServeOptions, _canary
from pipeline.errors import ConfigError, DataError
from pipeline.index.search.search import OpenRelease, open_release
from pipeline.serve import batches as batches_module
from pipeline.serve.canary import (
    CanaryOptions,
    CanaryOutcome,
    load_outcome,
    release_to_start_with,
)
from pipeline.serve.service import ServiceOptions
from pipeline.store.files.lease import SERVED, active_leases
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from tests.index.published import Publisher, texts
from tests.models.folders import save_folder
from tests.serve.serving import Client, serving, wait_for_release, wait_until

CORPUS = texts(120)
HALF = ServiceOptions(poll_s=0.1, canary=CanaryOptions(0.5))
QUICK = ServiceOptions(poll_s=0.1, canary=CanaryOptions(0.5, minutes=0.0))


@pytest.fixture
def publish(tmp_path: Path) -> Publisher:
    """Publishes into a store with release 1."""
    publisher = Publisher(open_store(tmp_path / "root"), save_folder(tmp_path / "bert", "bert"), tmp_path)
    publisher(CORPUS)
    return publisher


def ask(client: Client, count: int = 1, **options: Any) -> Counter[int]:
    """Search `count` times. Returns how often each release answered."""
    answered = Counter[int]()
    for _ in range(count):
        status, found = client.post("/search", {"queries": [CORPUS[3]], "k": 3, **options})
        assert status == 200, found
        assert len(found["answers"][0]) == 3
        answered[found["release"]] += 1
    return answered


def canary_of(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = client.json("/release")["canary"]
    return found


def wait_for_trial(client: Client, number: int) -> None:
    wait_until(lambda: canary_of(client)["release"] == number)


@contextlib.contextmanager
def faulty(monkeypatch: pytest.MonkeyPatch, number: int, seconds: float | None = None) -> Iterator[None]:
    """Let searches of a release fail, or take some seconds longer, while the block runs."""
    answer = batches_module.answer_together

    def answer_faulty(release: OpenRelease, searches: Any) -> Any:
        if release.number == number and seconds is None:
            raise DataError("a file", "its content", "another", "restore it")
        if release.number == number:
            time.sleep(seconds or 0)
        return answer(release, searches)

    with monkeypatch.context() as patched:
        patched.setattr(batches_module, "answer_together", answer_faulty)
        yield


def test_a_new_release_answers_its_share_and_takes_all_searches_when_it_has_proven_itself(
    publish: Publisher, capsys: pytest.CaptureFixture[str]
):
    with serving(publish.store.uri, QUICK) as client:
        assert ask(client, 5) == {1: 5}
        publish(CORPUS[:90])
        wait_for_trial(client, 2)
        served = Counter[int]()
        while canary_of(client)["release"] == 2:
            served += ask(client, 10)
        assert min(served.values()) > 20
        wait_for_release(client, 2)
        assert ask(client, 5) == {2: 5}
        assert client.json("/healthz")["checked_s"] < 30
        outcome = load_outcome(publish.store, 2)
        assert outcome is not None
        assert (outcome.outcome, outcome.base) == ("passed", 1)
    said = capsys.readouterr().err
    assert "release 2 answers 0.5 of the searches for 0 minutes, release 1 the others" in said
    assert "release 2 takes all searches: it answered" in said
    assert not active_leases(publish.store, folder=SERVED)


def test_a_request_id_gets_the_same_release_again(publish: Publisher):
    with serving(publish.store.uri, HALF) as client:
        publish(CORPUS[:90])
        wait_for_trial(client, 2)
        releases = set()
        for name in "abcdefghijkl":
            named = Client(client.url, {"X-Request-Id": name})
            [release] = ask(named, 4)
            releases.add(release)
        assert releases == {1, 2}


def test_a_release_that_fails_fails_no_request_and_is_not_tried_again(
    publish: Publisher, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    uri = publish.store.uri
    with serving(uri, HALF) as client, faulty(monkeypatch, 2):
        publish(CORPUS[:90])
        wait_for_trial(client, 2)
        assert ask(client, 40) == {1: 40}
        wait_until(lambda: canary_of(client)["returned"] == 2)
        assert "manta_serve_canary_returned_release 2.0" in client.get("/metrics")[1]
        assert "it failed" in canary_of(client)["state"]
        assert client.json("/release")["release"] == 1
        wait_until(lambda: len(active_leases(publish.store, folder=SERVED)) == 1)
        assert prune(Releases(publish.store), 1).kept == (1, 2)
    assert Releases(publish.store).get_or_current(None).release == 2, "the root is not changed"
    with serving(uri, HALF) as client:
        assert ask(client, 10) == {1: 10}, "also after a restart"
        wait_until(lambda: canary_of(client)["returned"] == 2)
    with serving(uri) as client:
        assert ask(client) == {2: 1}, "a service without a canary follows the root"
    publish(CORPUS[:80])
    with serving(uri, HALF) as client:
        wait_for_trial(client, 3)
        assert set(ask(client, 40)) == {1, 3}
        assert canary_of(client)["returned"] is None, "a later release is tried in its turn"
    assert capsys.readouterr().err.count("release 2 is not tried again") == 2, "once for each process"


def test_a_slow_release_is_left_by_its_bound(publish: Publisher, monkeypatch: pytest.MonkeyPatch):
    options = ServiceOptions(poll_s=0.1, canary=CanaryOptions(0.5, p99_ms=3_000))
    with serving(publish.store.uri, options) as client, faulty(monkeypatch, 2, seconds=3.1):
        publish(CORPUS[:90])
        wait_for_trial(client, 2)
        with ThreadPoolExecutor(8) as pool:
            counts = list(pool.map(lambda _: ask(client), range(24)))
        assert sum(counts, Counter()).total() == 24
        wait_until(lambda: canary_of(client)["returned"] == 2)
        assert "3000 ms" in canary_of(client)["state"]


def test_faults_of_a_request_are_not_faults_of_the_canary(publish: Publisher):
    with serving(publish.store.uri, ServiceOptions(poll_s=0.1, canary=CanaryOptions(0.99))) as client:
        publish(CORPUS[:90])
        wait_for_trial(client, 2)
        for body in ({"queries": ["a"], "where": "lenght < 3"}, {"queries": [" "]}):
            for _ in range(10):
                assert client.post("/search", body)[0] == 400
        assert canary_of(client)["failed"] == 0


def test_a_column_that_only_the_release_of_before_has_is_a_fault_of_the_canary(publish: Publisher):
    publish.kept["price"] = pa.array(range(len(CORPUS)))
    publish(CORPUS)
    Releases(publish.store).rollback(2)
    with serving(publish.store.uri, HALF) as client:
        assert client.json("/release")["release"] == 2
        publish.kept.clear()
        number = publish(CORPUS[:90]).release
        wait_for_trial(client, number)
        assert ask(client, 40, where="price >= 0") == {2: 40}
        wait_until(lambda: canary_of(client)["returned"] == number)


def test_a_rollback_is_followed_at_once_and_ends_a_trial(publish: Publisher):
    releases = Releases(publish.store)
    with serving(publish.store.uri, HALF) as client:
        publish(CORPUS[:90])
        wait_for_trial(client, 2)
        releases.hold(2)
        time.sleep(0.3)
        assert canary_of(client)["release"] == 2, "a hold changes nothing"
        releases.unhold()
        releases.rollback(1)
        wait_until(lambda: canary_of(client)["release"] is None)
        assert ask(client, 10) == {1: 10}
        releases.rollback(2)
        wait_for_release(client, 2)
        assert ask(client, 10) == {2: 10}, "somebody decided it"


def test_a_release_that_is_published_during_a_trial_is_tried_instead(publish: Publisher):
    with serving(publish.store.uri, HALF) as client:
        publish(CORPUS[:90])
        wait_for_trial(client, 2)
        publish(CORPUS[:80])
        wait_for_trial(client, 3)
        assert set(ask(client, 40)) == {1, 3}
        wait_until(lambda: len(active_leases(publish.store, folder=SERVED)) == 2)


def test_the_service_does_not_return_to_a_release_that_is_gone(
    publish: Publisher, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with serving(publish.store.uri, HALF) as client:
        publish(CORPUS[:90])
        wait_for_trial(client, 2)
        prune(Releases(publish.store), 1, grace_s=0, ignore_leases=True)
        wait_for_release(client, 2)
        assert ask(client, 10) == {2: 10}
    assert "release 2 takes all searches, as release 1 is gone" in capsys.readouterr().err


def test_another_service_follows_the_first_outcome(publish: Publisher, monkeypatch: pytest.MonkeyPatch):
    with serving(publish.store.uri, HALF) as one, serving(publish.store.uri, HALF) as other:
        publish(CORPUS[:90])
        wait_for_trial(one, 2)
        wait_for_trial(other, 2)
        with faulty(monkeypatch, 2):
            ask(one, 40)
            wait_until(lambda: canary_of(other)["returned"] == 2)
            assert ask(other, 10) == {1: 10}


def test_a_service_that_starts_during_a_trial_begins_with_the_release_of_before(publish: Publisher):
    releases = Releases(publish.store)
    assert release_to_start_with(releases, 60) is None, "there is none before the first"
    publish(CORPUS[:90])
    assert release_to_start_with(releases, 60) == 1
    assert release_to_start_with(releases, -1) is None, "it was published too long ago"
    passed = CanaryOutcome(release=2, outcome="passed", base=1, reason="", at="", host="")
    publish.store.write(CanaryOutcome.path(2), passed.to_json())
    assert release_to_start_with(releases, 60) is None
    returned = passed.model_copy(update={"outcome": "returned"})
    publish.store.write(CanaryOutcome.path(2), returned.to_json())
    assert release_to_start_with(releases, -1) == 1
    releases.rollback(2)
    assert release_to_start_with(releases, 60) is None, "somebody decided it"


def test_swaps_and_trials_under_load_give_no_wrong_or_failed_answer(
    publish: Publisher, monkeypatch: pytest.MonkeyPatch
):
    options = ServiceOptions(poll_s=0.05, canary=CanaryOptions(0.3, minutes=0.0))
    stop, answers = False, []
    ids = {1: open_release(publish.store.uri).search(CORPUS[:2], 5)["id"].to_pylist()}
    with serving(publish.store.uri, options) as client, ThreadPoolExecutor(4) as pool:

        def load() -> None:
            while not stop:
                answers.append(client.post("/search", {"queries": CORPUS[:2], "k": 5}))

        loading = [pool.submit(load) for _ in range(4)]
        try:
            publish(CORPUS[:90])
            ids[2] = open_release(publish.store.uri).search(CORPUS[:2], 5)["id"].to_pylist()
            wait_for_release(client, 2)
            with faulty(monkeypatch, 3):
                publish(CORPUS[:80])
                wait_until(lambda: canary_of(client)["returned"] == 3)
                Releases(publish.store).rollback(1)  # while release 3 fails the last searches that it got
                wait_for_release(client, 1)
        finally:
            stop = True
        for each in loading:
            each.result()
    assert {status for status, _ in answers} == {200}
    assert {found["release"] for _, found in answers} == {1, 2}
    for _, found in answers:
        assert [row["id"] for rows in found["answers"] for row in rows] == ids[found["release"]]


@pytest.mark.parametrize("share", ["5", "0%", "100%", "x%", "-5%", "1e1%"])
def test_a_share_that_is_none_is_an_error(share: str):
    with pytest.raises(ConfigError, match="write it like 5%"):
        _canary(ServeOptions("root", canary=share))
    options = _canary(ServeOptions("root", canary="2.5%"))
    assert options is not None
    assert options.share == 0.025
