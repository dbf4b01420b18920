"""Who is at work below a root is known to others, for as long as that is so."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from pipeline.store.lease import holders, lease, running
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
