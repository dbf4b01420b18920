"""An S3 server on loopback with a bucket; while it runs, the environment of this process names it."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

_START_S = 60.0
# The server accepts any keys.
ACCESS_KEY = "AKIAEASYTORECOGNIZE0"
SECRET_KEY = "easy/to+recognize/wherever/it/should/not/be"


@contextlib.contextmanager
def s3_server(bucket: str) -> Iterator[tuple[str, str]]:
    """Run the server during the block. Yields the URI of an empty bucket and the endpoint."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    pages = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": "100"}  # listings of real stores come in pages too
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, env=pages, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wanted = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        _wait_for(port, server)
        import s3fs

        s3fs.S3FileSystem(endpoint_url=endpoint, skip_instance_cache=True).mkdir(bucket)
        yield f"s3://{bucket}", endpoint
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        server.terminate()
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
    raise RuntimeError(f"the S3 server on port {port} did not start (exit code {server.poll()})")
