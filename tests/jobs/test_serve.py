"""`manta serve` listens where it was told to, needs a token beyond this machine, and ends on SIGTERM."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI

from jobs.serve import _run
from pipeline.errors import ConfigError
from pipeline.store.files.open_store import open_store
from tests.conftest import ROOT, CommandResult
from tests.index.published import Publisher, texts
from tests.models.folders import save_folder

Manta = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A root with one release."""
    folder = tmp_path_factory.mktemp("served")
    Publisher(open_store(folder / "root"), save_folder(folder / "bert", "bert"), folder)(texts(20))
    return str(folder / "root")


def test_a_service_that_others_can_reach_needs_a_token(
    root: str, manta: Manta, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MANTA_SERVE_TOKEN", raising=False)
    ended = manta("serve", root, "--host", "0.0.0.0", "--port", "0")
    assert ended.code == 2
    assert "expected a token in MANTA_SERVE_TOKEN" in ended.err


def test_the_address_and_errors_are_json_if_asked_for(root: str, manta: Manta):
    ended = manta("serve", root, "--host", "a..b", "--port", "0", "--json")
    assert json.loads(ended.out)["exit_code"] == ended.code == 2


def test_a_port_that_is_used_is_an_error(root: str, manta: Manta):
    with socket.create_server(("127.0.0.1", 0)) as other:
        ended = manta("serve", root, "--port", str(other.getsockname()[1]))
    assert ended.code == 2
    assert "an address of this machine that is free" in ended.err


def test_of_two_services_that_start_together_one_is_told_that_the_port_is_used():
    """Both may bind the port, as long as neither listens."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", one.getsockname()[1]))
        other.listen()
        with pytest.raises(ConfigError, match=f"--port {one.getsockname()[1]}: expected an address .* free"):
            _run(FastAPI(), one, lambda: pytest.fail("it listens"))


def test_a_pause_that_no_thread_can_wait_is_an_error(root: str, manta: Manta):
    assert manta("serve", root, "--port", "0", "--poll-s", "inf").code == 2


@pytest.mark.parametrize("token", [" ", "two words", "gehört"])
def test_a_token_that_no_header_can_carry_is_an_error(
    root: str, manta: Manta, monkeypatch: pytest.MonkeyPatch, token: str
):
    monkeypatch.setenv("MANTA_SERVE_TOKEN", token)
    ended = manta("serve", root, "--port", "0")
    assert ended.code == 2
    assert "printable ASCII" in ended.err


def test_a_file_of_tokens_serves_others_and_excludes_the_variable(
    root: str, manta: Manta, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("MANTA_SERVE_TOKEN", raising=False)
    missing = str(tmp_path / "tokens.yaml")
    ended = manta("serve", root, "--host", "0.0.0.0", "--port", "0", "--tokens", missing)
    assert ended.code == 2
    assert f"{missing}: expected a file of tokens" in ended.err
    monkeypatch.setenv("MANTA_SERVE_TOKEN", "secret")
    ended = manta("serve", root, "--port", "0", "--tokens", missing)
    assert ended.code == 2
    assert "either --tokens or MANTA_SERVE_TOKEN" in ended.err


def test_an_invalid_host_name_is_an_error(root: str, manta: Manta):
    assert manta("serve", root, "--host", "a..b", "--port", "0").code == 2


def test_a_root_without_a_release_is_an_error(tmp_path: Path, manta: Manta):
    ended = manta("serve", str(tmp_path), "--port", "0")
    assert ended.code == 3
    assert "run manta nightly first" in ended.err


def test_the_process_answers_until_sigterm_and_then_ends_well(root: str):
    """It listens on an address of its own, under which it is asked."""
    command = [sys.executable, "-m", "jobs.serve", root, "--host", "127.0.0.2", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"release 1 with 20 rows is served at (http://127\.0\.0\.2:\d+/)\n", line)
        assert found, line
        with urllib.request.urlopen(f"{found[1]}healthz") as response:
            assert json.loads(response.read())["release"] == 1
        slow = socket.create_connection(("127.0.0.2", int(found[1].rpartition(":")[2].strip("/"))))
        slow.sendall(b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        slow.close()
        assert process.returncode == 0, errors
    finally:
        process.kill()


def test_prune_keeps_the_release_of_a_running_service_until_it_ends(tmp_path: Path, manta: Manta):
    publish = Publisher(open_store(tmp_path / "root"), save_folder(tmp_path / "bert", "bert"), tmp_path)
    publish.in_units = True
    publish(texts(20))
    command = [sys.executable, "-m", "jobs.serve", publish.store.uri, "--port", "0", "--poll-s", "3600"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        publish(texts(30, seed=1))
        pruned = manta("releases", "prune", publish.store.uri, "--keep", "1", "--grace-hours", "0")
        assert "release 1 is kept as long as it is served: process" in pruned.err
        assert "kept releases: 1, 2" in pruned.out
        body = json.dumps({"queries": ["a man"], "texts": True}).encode()
        request = urllib.request.Request(f"{url}search", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            assert json.loads(response.read())["release"] == 1
    finally:
        process.kill()
        process.wait()
    assert "removed: 1" in manta("releases", "prune", publish.store.uri, "--keep", "1").out
