"""A running command is visible below its root for as long as it runs."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, DataError, TransientError
from pipeline.store.lease import holders, lease, running
from pipeline.store.probe import clock
from pipeline.store.prune import prune
from pipeline.store.release import Releases
from pipeline.store.store import open_store


def test_a_lease_is_there_while_its_block_runs_and_tells_who_holds_it(tmp_path: Path):
    store = open_store(tmp_path)
    with lease(store, "leases"):
        (holder,) = holders(store, "leases")
        assert socket.gethostname() in holder
        assert len(running(store, top="leases")) == 1
        assert running(store) == []
    assert list(holders(store, "leases")) == []


def test_a_process_of_this_machine_that_was_killed_holds_nothing(tmp_path: Path):
    store, ended = open_store(tmp_path), subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = {"host": socket.gethostname(), "pid": ended.pid, "started_at": "then"}
    store.write("leases/lease-1.json", json.dumps(here).encode())
    assert list(holders(store, "leases")) == []
    store.write("leases/lease-2.json", json.dumps(here | {"host": "elsewhere"}).encode())
    assert list(holders(store, "leases")) == [f"process {ended.pid} on elsewhere, since then"]


def test_a_lease_without_a_beat_for_long_is_over(tmp_path: Path):
    store = open_store(tmp_path)
    with lease(store, "leases"):
        assert running(store, time.time() + 1_000, "leases")
        assert not running(store, time.time() + 1_300, "leases")


def test_the_stores_clock_counts_and_not_this_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, real = open_store(tmp_path), time.time
    with lease(store):
        for skew_s in (-30 * 3600, 1_500, 40 * 3600):
            monkeypatch.setattr(time, "time", lambda skew_s=skew_s: real() + skew_s)
            assert abs(clock(store) - real()) < 60
            assert len(running(store)) == 1
            with pytest.raises(TransientError, match="expected no running night"):
                prune(Releases(store), keep=1)
    store.write("units/vectors/of-a-running-night.parquet", b"young")
    assert prune(Releases(store), keep=1).files == 0
    assert store.exists("units/vectors/of-a-running-night.parquet")


def test_what_ended_the_night_is_told_although_its_lease_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = open_store(tmp_path)

    def refused(*_: object) -> None:
        raise ConfigError("root", "a writable store", "PermissionError", "check the permissions")

    monkeypatch.setattr(type(store), "delete", refused)
    with pytest.raises(DataError, match="the real error"), lease(store):
        raise DataError("unit", "the real error", "another", "nothing")
