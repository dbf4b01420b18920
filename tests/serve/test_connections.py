"""Clients that send a part of a request, or do not read, take no connection from others, and fill no log."""

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import HTTPException

from pipeline.serve.access import BodyLimit
from pipeline.serve.connections import Limits, Seldom, SeldomRepeated, limits_of_process
from pipeline.store.files.open_store import open_store
from tests.index.published import Publisher, texts
from tests.models.folders import save_folder
from tests.serve.serving import Client, serving, wait_until

PARTS = {
    "nothing": b"",
    "header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
    "body": b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 99\r\n\r\n{",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A root with one release."""
    folder = tmp_path_factory.mktemp("served")
    publish = Publisher(open_store(folder / "root"), save_folder(folder / "bert", "bert"), folder)
    publish(texts(20))
    return str(folder / "root")


Connect = Callable[[Client, bytes], socket.socket]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects to a service and sends bytes; the connections are closed after the test."""
    opened = []

    def connect(client: Client, sent: bytes) -> socket.socket:
        host, port = client.url.removeprefix("http://").split(":")
        opened.append(socket.create_connection((host, int(port)), timeout=30))
        opened[-1].sendall(sent)
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def is_closed(connection: socket.socket) -> bool:
    """Wait for the service to close a connection."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("part", PARTS)
def test_unfinished_requests_beyond_the_limit_do_not_keep_others_from_being_answered(
    root: str, connect: Connect, part: str, capfd: pytest.CaptureFixture[str]
):
    with serving(root, limits=Limits(8)) as client:
        unfinished = [connect(client, PARTS[part]) for _ in range(30)]
        for _ in range(3):
            assert client.get("/healthz")[0] == 200
            assert client.post("/search", {"queries": ["two dogs"]})[0] == 200
        assert is_closed(unfinished[0]), "the one that waited longest"
    assert len(capfd.readouterr().err.splitlines()) < 10


@pytest.mark.parametrize("part", PARTS)
def test_a_request_that_is_not_complete_in_time_is_closed(root: str, connect: Connect, part: str):
    with serving(root, limits=Limits(8, header_s=0.3, body_s=0.3)) as client:
        connection = connect(client, PARTS[part])
        for _ in range(3):  # a client that sends a little now and then is not faster
            time.sleep(0.05)
            connection.sendall(b"X" if part != "nothing" else b"")
        assert is_closed(connection)


def test_a_client_that_does_not_read_is_closed(root: str):
    body = b'{"queries": [%s], "k": 20, "texts": true}' % b", ".join([b'"two dogs"'] * 256)
    request = PARTS["body"].replace(b"99", str(len(body)).encode()).removesuffix(b"{") + body
    with serving(root, limits=Limits(8, body_s=0.3)) as client, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        host, port = client.url.removeprefix("http://").split(":")
        deaf.connect((host, int(port)))
        deaf.sendall(request * 30)
        wait_until(lambda: 'route="/search"' in client.get("/metrics")[1])
        deaf.settimeout(30)
        time.sleep(1)
        received = b""
        try:
            while part := deaf.recv(1 << 20):
                received += part
        except ConnectionError:
            pass
        assert client.get("/healthz")[0] == 200
    assert received.count(b"HTTP/1.1 200 OK") < 30


def test_connections_that_wait_are_kept_while_there_is_room(root: str, connect: Connect):
    with serving(root, limits=Limits(8)) as client:
        slow = connect(client, PARTS["header"])
        assert client.get("/healthz")[0] == 200
        slow.sendall(b"Connection: close\r\n\r\n")
        assert slow.recv(15) == b"HTTP/1.1 200 OK"


def test_large_bodies_take_bounded_memory_together():
    """Eight unfinished bodies of the largest size take it; until they end, a further one is refused."""

    async def unfinished(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await scope["end"].wait()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b" " * 100, "more_body": True}

    async def ask() -> None:
        limited, end = BodyLimit(unfinished, 100), asyncio.Event()
        eight = [asyncio.create_task(limited({"end": end}, receive, print)) for _ in range(8)]
        await asyncio.sleep(0)
        with pytest.raises(HTTPException) as refused:
            await limited({"end": end}, receive, print)
        assert refused.value.status_code == 503
        end.set()
        await asyncio.gather(*eight)
        await limited({"end": end}, receive, print)

    asyncio.run(ask())


def test_connections_stay_below_the_limit_of_open_files():
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 8 <= limits_of_process().connections < files


def test_a_fault_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    now = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    logger = logging.getLogger("manta-test-seldom")
    logger.addFilter(SeldomRepeated())
    for _ in range(500):
        logger.warning("no %s is left", "file")
        logger.warning("another fault")
    now += 61
    logger.warning("no %s is left", "file")
    assert [record.getMessage() for record in caplog.records] == [
        "no file is left",
        "another fault",
        "no file is left (499 more since the last such line)",
    ]


def test_kinds_of_faults_do_not_fill_the_memory():
    seldom = Seldom()
    for number in range(20_000):
        seldom.left_out(str(number))
        seldom.left_out(str(number))
    assert len(seldom._reported) + len(seldom._left_out) < 5_000
