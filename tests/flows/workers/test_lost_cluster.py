"""The end of a process that listens at a socket is noticed."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.flows.workers import lost_cluster

_LISTEN = """
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print(flush=True)
sys.stdin.read()
"""


def test_the_process_at_a_unix_socket_is_found_and_its_end_is_seen(tmp_path: Path):
    path = str(tmp_path / "raylet")
    assert lost_cluster._peer(path) is None
    command = [sys.executable, "-c", _LISTEN, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = lost_cluster._peer(path)
        assert found is not None
        assert found.pid == process.pid
        assert found.runs()
        process.kill()
        process.wait()
        assert not found.runs()


def test_a_head_is_lost_if_nothing_listens_for_too_long(monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr(lost_cluster.time, "monotonic", lambda: now)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        is_lost = lost_cluster._HeadCheck(f"{host}:{port}")
        now = 100.0
        assert not is_lost()
    now += lost_cluster._HEAD_S - 1
    assert not is_lost()
    now += lost_cluster._HEAD_POLL_S
    assert is_lost()
    with socket.create_server((host, port)):
        now += lost_cluster._HEAD_POLL_S
        assert not is_lost(), "it was started again"
