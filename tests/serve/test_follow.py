"""A follower tries a damaged release again after growing pauses, and holds a lease on the served release."""

import json
import threading
import time
from pathlib import Path

import pytest

from pipeline.index.search.search import OpenRelease, open_release
from pipeline.serve.follow import Follower, open_held, pause_s
from pipeline.serve.metrics import ServiceMetrics
from pipeline.store.files.lease import SERVED, active_leases
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from tests.index.published import Publisher, texts
from tests.models.folders import save_folder
from tests.serve.serving import ServiceOptions, serving, wait_for_release


def test_pauses_double_up_to_ten_minutes_whatever_the_number_of_failures():
    pauses = [pause_s(30, failures) for failures in range(1, 3_000)]
    assert pauses[:5] == [60, 120, 240, 480, 600]
    assert set(pauses[5:]) == {600}
    assert pause_s(0.1, 1) == 0.2


def test_a_service_holds_one_lease_on_the_served_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    publish = Publisher(open_store(tmp_path / "root"), save_folder(tmp_path / "bert", "bert"), tmp_path)
    publish(texts(20))
    store = publish.store

    def served() -> list[int]:
        return [
            json.loads(store.read(entry.path))["release"] for entry in active_leases(store, folder=SERVED)
        ]

    with serving(store.uri, ServiceOptions(poll_s=0.1)) as client:
        assert served() == [1]
        publish(texts(20, seed=1))
        wait_for_release(client, 2)
        deadline = time.monotonic() + 30
        while served() != [2]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert served() == []
    assert "prune" not in capsys.readouterr().err
    (tmp_path / "root" / SERVED).rmdir()
    (tmp_path / "root" / SERVED).touch()  # no lease can be written
    with serving(store.uri) as client:
        assert client.json("/healthz")["release"] == 2
    assert "`manta releases prune` does not know that release 2 is served" in capsys.readouterr().err


def test_the_lease_is_written_before_the_release_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also if a night publishes another one meanwhile."""
    publish = Publisher(open_store(tmp_path / "root"), save_folder(tmp_path / "bert", "bert"), tmp_path)
    publish(texts(20))
    store, seen = publish.store, list[tuple[int, list[int]]]()

    def served() -> list[int]:
        leases = active_leases(store, folder=SERVED)
        return [json.loads(store.read(entry.path))["release"] for entry in leases]

    def open_slowly(releases: Releases) -> OpenRelease:
        if not seen:
            publish(texts(20, seed=1))
        seen.append((releases.get_or_current(None).release, served()))
        return open_release(releases)

    monkeypatch.setattr("pipeline.serve.follow.open_release", open_slowly)
    with open_held(store.uri) as (release, _):
        assert release.number == 2
        assert served() == [2]
    assert seen == [(2, [1]), (2, [2])]
    assert served() == []


def test_a_store_that_does_not_answer_keeps_no_service_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    publish = Publisher(open_store(tmp_path / "root"), save_folder(tmp_path / "bert", "bert"), tmp_path)
    publish(texts(20))
    monkeypatch.setattr("pipeline.serve.follow._LEASE_END_S", 0.05)
    answered = threading.Event()
    with open_held(publish.store.uri) as (release, held):
        held.callback(answered.wait, 60)
        with Follower(release, ServiceMetrics(), same_space=True, held=held).following(60):
            pass
        assert [thread.name for thread in threading.enumerate()].count("end lease") == 1
        answered.set()
