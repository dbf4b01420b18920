"""A service over a root, on a free port of this machine."""

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from pipeline.serve.canary import release_to_start_with
from pipeline.serve.connections import Limits, server_config
from pipeline.serve.follow import open_held
from pipeline.serve.service import ServiceOptions, make_app


@dataclass(frozen=True)
class Client:
    """A client of a service.

    Attributes:
        url: address of the service.
        headers: headers of every request.
    """

    url: str
    headers: dict[str, str]

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Return status and body."""
        return self._send(urllib.request.Request(self.url + path, headers=self.headers | headers))

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Send JSON. Returns status and decoded body."""
        headers = {"Content-Type": "application/json", **self.headers}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        status, text = self._send(request)
        return status, json.loads(text)

    def json(self, path: str) -> Any:
        """Return the decoded body of a successful GET."""
        status, text = self.get(path)
        assert status == 200, text
        return json.loads(text)

    @staticmethod
    def _send(request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@contextlib.contextmanager
def serving(
    uri: str, options: ServiceOptions = ServiceOptions(), limits: Limits | None = None, **headers: str
) -> Iterator[Client]:
    """Serve a root while the block runs."""
    canary = options.canary
    choose = partial(release_to_start_with, minutes=canary.minutes) if canary else (lambda _: None)
    with open_held(uri, choose) as (release, held):
        app = make_app(release, held, options)
        with _running(app, limits) as port:
            yield Client(f"http://127.0.0.1:{port}", headers)


@contextlib.contextmanager
def _running(app: FastAPI, limits: Limits | None) -> Iterator[int]:
    server = uvicorn.Server(server_config(app, limits, port=0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline, "the service does not start"
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def wait_for_release(client: Client, number: int) -> None:
    """Wait until the service answers with a release."""
    wait_until(lambda: client.json("/release")["release"] == number)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true. Raises AssertionError after 30 seconds."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
