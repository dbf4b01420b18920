"""A shadow compares its answers with the service's, and neither slows, fails nor changes a request."""

import hashlib
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.index.search.search import open_release
from pipeline.serve import shadow as shadow_module
from pipeline.serve.batches import Found, Search
from pipeline.serve.metrics import ServiceMetrics
from pipeline.serve.service import ServiceOptions
from pipeline.serve.shadow import Shadow, find, memory_of
from pipeline.store.files.lease import SERVED, active_leases
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.store.releases.waiting import WAITING, Waiting
from tests.index.published import Publisher, texts
from tests.models.folders import save_folder
from tests.serve.serving import Client, serving, wait_for_release, wait_until

CORPUS = texts(120)
SHADOW_OF_1 = ServiceOptions(poll_s=0.1, shadow="1")


@pytest.fixture
def publish(tmp_path: Path) -> Publisher:
    """Publishes into an empty store; two releases, of which the first has half of the rows."""
    publisher = Publisher(open_store(tmp_path / "root"), save_folder(tmp_path / "bert", "bert"), tmp_path)
    publisher(CORPUS[:60])
    publisher(CORPUS)
    return publisher


def is_open(client: Client) -> bool:
    return "manta_serve_shadow_open 1.0" in client.get("/metrics")[1]


def wait_until_open(client: Client) -> None:
    deadline = time.monotonic() + 240  # a process that imports torch, on a busy machine
    while not is_open(client):
        assert time.monotonic() < deadline, client.json("/release")["shadow"]
        time.sleep(0.1)


def shadow_of(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = client.json("/release")["shadow"]
    return found


def outcome(client: Client, name: str) -> int:
    return int(shadow_of(client)["outcomes"].get(name, 0))


def children() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "spawn_main" in " ".join(each.cmdline())]


def ask(client: Client, **options: Any) -> Any:
    status, found = client.post("/search", {"queries": [CORPUS[3]], **options})
    assert status == 200
    return found


def test_answers_are_compared_with_those_of_the_other_release_and_not_changed(publish: Publisher):
    uri = publish.store.uri
    before = set(children())
    with serving(uri, SHADOW_OF_1) as client:
        wait_until_open(client)
        for number in range(20):
            found = client.post("/search", {"queries": [CORPUS[number]], "k": 10})[1]
            assert found["release"] == 2
            wait_until(lambda count=number + 1: outcome(client, "compared") == count)
        report = shadow_of(client)
        assert (report["name"], report["compared_with"]) == ("release 1", 2)
        one, two = (open_release(uri, number) for number in (1, 2))
        common = sum(
            len(set(one.search(text)["id"].to_pylist()) & set(two.search(text)["id"].to_pylist()))
            for text in CORPUS[:20]
        )
        assert report["differences"]["overlap_at_10"]["value"] == pytest.approx(common / 200)
        assert report["differences"]["kendall_tau"]["value"] == 1
        assert report["differences"]["score_shift"]["value"] == pytest.approx(0, abs=1e-6)
        assert "Only 20 requests" in report["verdict"]
        metrics = client.get("/metrics")[1]
        assert 'manta_serve_shadow_requests_total{outcome="compared"} 20.0' in metrics
        assert f'manta_serve_shadow_overlap_at_10{{estimate="value"}} {common / 200}' in metrics
        page = client.get("/shadow")[1]
        assert f"{common / 200:.1%}" in page
        assert "release 1" in page
        ask(client, where="length < 0")  # no row of either
        ask(client, texts=True)
        wait_until(lambda: outcome(client, "compared") == 22)
        leases = [
            json.loads(publish.store.read(each.path)) for each in active_leases(publish.store, folder=SERVED)
        ]
        assert sorted(each.get("releases", [each.get("release")]) for each in leases) == [[1], [2]]
        assert prune(Releases(publish.store), 1).kept == (1, 2), "both are leased"
    wait_until(lambda: set(children()) <= before)
    assert not active_leases(publish.store, folder=SERVED)


def test_a_shadow_that_is_killed_or_hangs_fails_no_request_and_is_started_again(
    publish: Publisher, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(shadow_module, "_LIMIT_S", 1.0)
    before = {each.pid for each in children()}
    with serving(publish.store.uri, SHADOW_OF_1) as client:
        wait_until_open(client)
        for kind in (signal.SIGKILL, signal.SIGSTOP):
            failed = outcome(client, "failed")
            [child] = [each for each in children() if each.pid not in before]
            os.kill(child.pid, kind)
            ask(client)
            wait_until(lambda failed=failed: outcome(client, "failed") == failed + 1)
            wait_until_open(client)
            ask(client)
    said = capsys.readouterr().err
    assert "its process ended with exit code -9" in said
    assert "no answer within 1 s" in said


def test_a_full_queue_drops_and_counts_and_waits_for_nothing(publish: Publisher):
    served = open_release(publish.store.uri)
    shadow = Shadow(served, "1", ServiceMetrics())
    shadow._is_open = True  # nobody takes from its queue
    began_s = time.monotonic()
    for _ in range(1_000):
        shadow.offer(Search(("a",)), Found(2, served.space_id, [[]]), 0.1)
    assert time.monotonic() - began_s < 5
    assert shadow.report().outcomes == {"dropped": 1_000 - 64}


def test_the_comparison_starts_again_when_another_release_answers_and_ends_at_the_shadow_itself(
    publish: Publisher,
):
    with serving(publish.store.uri, SHADOW_OF_1) as client:
        wait_until_open(client)
        ask(client)
        wait_until(lambda: outcome(client, "compared") == 1)
        publish(CORPUS[:90])
        wait_for_release(client, 3)
        ask(client)
        wait_until(lambda: shadow_of(client)["compared_with"] == 3)
        wait_until(lambda: outcome(client, "compared") == 1)
        Releases(publish.store).rollback(1)
        wait_for_release(client, 1)
        wait_until(lambda: "another release than the one that answers" in shadow_of(client)["state"])
        assert not is_open(client)
        assert ask(client)["release"] == 1


def test_the_candidate_that_waits_is_a_shadow_until_it_is_overtaken(publish: Publisher):
    """Prune keeps its files even if it does not wait any more, as long as it is the shadow."""
    store, releases = publish.store, Releases(publish.store)
    manifest = releases.get(1).model_copy(update={"release": 0, "parent": 2})
    path = "candidates/ab12/manifest.json"
    store.write(path, manifest.to_json())
    digest = hashlib.sha256(manifest.to_json()).hexdigest()
    record = Waiting(
        candidate="ab12",
        manifest=FileRef(path=path, sha256=digest, bytes=len(manifest.to_json())),
        parent=2,
        last_commit=2,
        first_ordinal=99,
        at="2026-11-29T00:00:00+00:00",
        reason="",
        rows=60,
    )
    store.write(WAITING, record.to_json())
    with serving(store.uri, ServiceOptions(poll_s=0.5, shadow="ab")) as client:
        wait_until_open(client)
        ask(client)
        wait_until(lambda: outcome(client, "compared") == 1)
        assert find(releases, "ab").command == f"manta releases promote {store.uri} ab12 --by NAME"
        store.delete(WAITING)
        pruned = prune(releases, 1, grace_s=0)
        assert (pruned.removed, store.exists(path)) == ((1,), True)
        assert all(store.exists(file.path) for file in manifest.index.files)
        wait_until(lambda: "a candidate ab that waits" in shadow_of(client)["state"])
        store.write(WAITING, record.to_json())
        publish(CORPUS[:90])
        wait_until(lambda: "cannot be published any more" in shadow_of(client)["state"])
        assert ask(client)["release"] in (2, 3)


def test_vectors_are_not_compared_with_a_shadow_of_another_space(publish: Publisher, tmp_path: Path):
    other = Publisher(publish.store, save_folder(tmp_path / "mpnet", "mpnet"), tmp_path)
    other.encoder_path = "encoders/other"
    other(CORPUS)
    Releases(publish.store).rollback(2)
    with serving(publish.store.uri, ServiceOptions(poll_s=0.1, shadow="3")) as client:
        wait_until_open(client)
        release = open_release(publish.store.uri)
        body = {"vectors": release.encode(["a man"]).tolist(), "space_id": release.space_id}
        assert client.post("/search", body)[0] == 200
        wait_until(lambda: outcome(client, "not comparable") == 1)
        ask(client)
        wait_until(lambda: outcome(client, "compared") == 1)


@pytest.mark.parametrize("name", ["9", "abc", "candidates/", "x y"])
def test_a_shadow_that_does_not_exist_is_said_and_the_service_answers(
    publish: Publisher, name: str, capsys: pytest.CaptureFixture[str]
):
    with serving(publish.store.uri, ServiceOptions(poll_s=0.1, shadow=name)) as client:
        wait_until(lambda: "answers nothing" in shadow_of(client)["state"])
        assert ask(client)["release"] == 2
        assert "manta_serve_shadow_open 0.0" in client.get("/metrics")[1]
    assert capsys.readouterr().err.count("answers nothing") == 1


def test_a_shadow_that_does_not_fit_into_memory_is_not_loaded(
    publish: Publisher, monkeypatch: pytest.MonkeyPatch
):
    needed = memory_of(Releases(publish.store).get(1))
    monkeypatch.setattr(shadow_module, "available_memory", lambda: needed - 1)
    with serving(publish.store.uri, SHADOW_OF_1) as client:
        wait_until(lambda: "answers nothing" in shadow_of(client)["state"])
        assert re.search(r"expected .* of memory, found", shadow_of(client)["state"])
        assert "manta_serve_shadow_open 0.0" in client.get("/metrics")[1]
        assert ask(client)["release"] == 2


def test_a_service_without_a_shadow_says_so(publish: Publisher):
    with serving(publish.store.uri) as client:
        assert client.json("/release")["shadow"] is None
        status, problem = client.get("/shadow")
        assert (status, "--shadow" in problem) == (404, True)
