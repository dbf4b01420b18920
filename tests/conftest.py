"""Fixtures for all tests: an S3 server on loopback, and a proxy before it that fails on purpose."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.faults import FaultyProxy

_START_S = 60.0
ACCESS_KEY, SECRET_KEY = "AKIAEASYTORECOGNIZE0", "easy/to+recognize/wherever/it/should/not/be"       # the server takes any


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """URI of a bucket on a server that speaks S3 over HTTP; endpoint and credentials are in the environment while it runs."""
    port = _free_port()
    address = ["-H", "127.0.0.1", "-p", str(port)]
    pages = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": "100"}        # listings of real stores come in pages too
    server = subprocess.Popen([sys.executable, "-m", "moto.server", *address], env=pages, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    access = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_DEFAULT_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", **access}.items():
            environment.setenv(name, value)
        try:
            _wait_for(port, server)
            yield _bucket("manta-tests")
        finally:
            server.terminate()
            server.wait()


@pytest.fixture
def faulty(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy before the S3 server, without faults at first. Stores that this process opens go through it; set its `faults`."""
    with FaultyProxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the S3 server on port {port} did not start (exit code {server.poll()})")


def _bucket(name: str) -> str:
    import s3fs

    s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"], skip_instance_cache=True).mkdir(name)
    return f"s3://{name}"
