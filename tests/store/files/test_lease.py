"""A running command is visible below its root for as long as it runs."""

import json
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, DataError, TransientError
from pipeline.store.files.check_store import clock
from pipeline.store.files.lease import active_leases, describe_holders, exclusive_lease, lease
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases


def test_a_lease_exists_during_its_block_and_names_its_holder(tmp_path: Path):
    store = open_store(tmp_path)
    with lease(store, "leases"):
        (holder,) = describe_holders(store, "leases")
        assert socket.gethostname() in holder
        assert len(active_leases(store, folder="leases")) == 1
        assert active_leases(store) == []
    assert list(describe_holders(store, "leases")) == []


def test_a_killed_process_of_this_machine_holds_no_lease(tmp_path: Path):
    store, ended = open_store(tmp_path), subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    holder = {"host": socket.gethostname(), "pid": ended.pid, "started_at": "then"}
    store.write("leases/lease-1.json", json.dumps(holder).encode())
    assert list(describe_holders(store, "leases")) == []
    store.write("leases/lease-2.json", json.dumps(holder | {"host": "elsewhere"}).encode())
    assert list(describe_holders(store, "leases")) == [f"process {ended.pid} on elsewhere, since then"]


@pytest.mark.parametrize(
    "content", ["[]", "{}", "null", "", '{"host"', '{"host": 1, "pid": "x", "started_at": []}']
)
def test_a_lease_that_was_edited_counts_until_it_expires(tmp_path: Path, content: str):
    store = open_store(tmp_path)
    store.write("leases/lease-1.json", content.encode())
    assert len(list(describe_holders(store, "leases"))) == 1


def test_a_lease_with_an_impossible_process_is_no_lease(tmp_path: Path):
    store = open_store(tmp_path)
    holder = {"host": socket.gethostname(), "pid": 10**30, "started_at": "then"}
    store.write("leases/lease-1.json", json.dumps(holder).encode())
    assert list(describe_holders(store, "leases")) == []


def test_a_process_of_another_container_with_this_host_name_holds_its_lease(tmp_path: Path):
    """Its id says nothing here, where another process may have it, or none."""
    store = open_store(tmp_path)
    with lease(store, "leases") as path:
        own = json.loads(store.read(path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    store.write("leases/lease-1.json", json.dumps(own | {"pid": ended.pid}).encode())
    assert list(describe_holders(store, "leases")) == []
    other = own | {"pid": ended.pid, "pid_namespace": "pid:[1]"}
    store.write("leases/lease-2.json", json.dumps(other).encode())
    assert len(list(describe_holders(store, "leases"))) == 1


def test_a_lease_without_heartbeats_expires(tmp_path: Path):
    store = open_store(tmp_path)
    with lease(store, "leases"):
        assert active_leases(store, time.time() + 1_000, "leases")
        assert not active_leases(store, time.time() + 1_300, "leases")


def test_leases_expire_by_the_clock_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, real_time = open_store(tmp_path), time.time
    with lease(store):
        for skew_s in (-30 * 3600, 1_500, 40 * 3600):
            monkeypatch.setattr(time, "time", lambda skew_s=skew_s: real_time() + skew_s)
            assert abs(clock(store) - real_time()) < 60
            assert len(active_leases(store)) == 1
            with pytest.raises(TransientError, match="expected no running night"):
                prune(Releases(store), keep=1)
    store.write("units/vectors/of-a-running-night.parquet", b"young")
    assert prune(Releases(store), keep=1).files == 0
    assert store.exists("units/vectors/of-a-running-night.parquet")


@pytest.mark.parametrize("commands", [2, 5])
def test_of_commands_that_start_together_one_gets_an_exclusive_lease(tmp_path: Path, commands: int):
    store, together, running = open_store(tmp_path), threading.Barrier(commands), threading.Lock()

    def refusal(holder: str) -> TransientError:
        return TransientError("leases", "no other command", holder, "wait")

    def run(_: int) -> str:
        together.wait()
        try:
            with exclusive_lease(store, "leases", refusal):
                assert running.acquire(blocking=False), "two commands hold the lease"
                time.sleep(1.5)  # longer than the pause of a command that withdrew
                running.release()
        except TransientError:
            return "refused"
        return "ran"

    with ThreadPoolExecutor(commands) as pool:
        ended = list(pool.map(run, range(commands)))
    assert sorted(ended) == ["ran", *(commands - 1) * ["refused"]]
    assert store.list("leases") == []


def test_an_error_is_raised_although_the_lease_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = open_store(tmp_path)

    def refuse(*_: object) -> None:
        raise ConfigError("root", "a writable store", "PermissionError", "check the permissions")

    monkeypatch.setattr(type(store), "delete", refuse)
    with pytest.raises(DataError, match="the real error"), lease(store):
        raise DataError("unit", "the real error", "another", "nothing")
