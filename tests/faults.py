"""An HTTP proxy before an S3 server that fails on purpose: throttling, lost answers, cut bodies, ignored
conditions.

    python -m tests.faults --target http://127.0.0.1:5000 --port 5001 --throttled 0.05 --lost 0.02 --seed 1

It prints its own address when it listens; GET /-/faults on it tells as JSON what it has done so far. Which
call fails is a matter of the seed, the call and how often that call was made, not of the order in which
threads come.
"""

import argparse
import contextlib
import http.client
import json
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

_STATISTICS = "/-/faults"
_PIECE = 1 << 16
_UPLOAD = re.compile("uploadId=[^&]*")
_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "expect")
_ANSWERS = {
    "throttled": (503, "SlowDown", "Please reduce your request rate."),
    "internal": (500, "InternalError", "We encountered an internal error. Please try again."),
    "limited": (429, "TooManyRequests", "Too many requests."),
    "denied": (403, "AccessDenied", "Access Denied"),
    "unknown": (
        403,
        "InvalidAccessKeyId",
        "The AWS Access Key Id you provided does not exist in our records.",
    ),
    "refused_condition": (
        501,
        "NotImplemented",
        "A header you provided implies functionality that is not implemented",
    ),
}


@dataclass(frozen=True)
class Faults:
    """Shares of calls (0 to 1), each call meets one fault at most.

    throttled, internal, limited: 503, 500, 429 instead of the answer; denied, unknown: 403 for the caller or
    its key, which does not pass.
    reset: the connection is reset before the store sees the call. delayed: the store does it, and the answer
        comes `delay_s` late.
    cut: the body of a GET ends halfway. lost: the store did what a PUT, POST or DELETE told it, and the
        connection is reset instead of the answer.
    drops_conditions: If-None-Match never reaches the store; refuses_conditions: 501 for calls that have it.
    """

    throttled: float = 0.0
    internal: float = 0.0
    limited: float = 0.0
    reset: float = 0.0
    delayed: float = 0.0
    cut: float = 0.0
    lost: float = 0.0
    denied: float = 0.0
    unknown: float = 0.0
    delay_s: float = 5.0
    drops_conditions: bool = False
    refuses_conditions: bool = False
    seed: int = 0

    def of(self, method: str, path: str, times: int) -> str | None:
        """The fault that this call meets; `times`: how often it was made before."""
        path = _UPLOAD.sub("uploadId=", path)  # the store draws a new one in every run
        chance = random.Random(f"{self.seed} {method} {path} {times}").random()
        for kind in (
            "throttled",
            "internal",
            "limited",
            "reset",
            "delayed",
            "cut",
            "lost",
            "denied",
            "unknown",
        ):
            share = getattr(self, kind)
            if chance < share:
                return kind if _concerns(kind, method) else None
            chance -= share
        return None


def _concerns(kind: str, method: str) -> bool:
    return (
        method == "GET" if kind == "cut" else method in ("PUT", "POST", "DELETE") if kind == "lost" else True
    )


class Request(NamedTuple):
    """A call that the store answered, with the bytes of both bodies and times of the monotonic clock."""

    method: str
    path: str
    bytes: int
    began_s: float
    ended_s: float


class FaultyProxy:
    """A proxy on loopback that listens while the block runs.

    `faults` may be replaced at any time; `met` counts faults by kind.
    """

    def __init__(self, target: str, faults: Faults = Faults(), port: int = 0) -> None:
        self.target, self.faults = urlsplit(target), faults
        self.met: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.log: list[Request] | None = None  # set to a list to record every call
        self.at_work = self.most_at_work = 0
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.conditional = (
            threading.Lock()
        )  # moto looks and stores in two steps, S3 in one: conditional calls reach it one after the other
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.proxy = self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "FaultyProxy":
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def decide(self, method: str, path: str, conditional: bool) -> str | None:
        """The fault of the call that just came."""
        with self._lock:
            times = self._times[f"{method} {path}"]
            self._times[f"{method} {path}"] += 1
            self.calls[method] += 1
            if conditional and self.faults.refuses_conditions:
                kind: str | None = "refused_condition"
            else:
                kind = self.faults.of(method, path, times)
        return kind

    def meet(self, kind: str) -> None:
        """Count a fault that really happened: what was refused has no answer to lose."""
        with self._lock:
            self.met[kind] += 1

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Calls at work at once, at their most."""
        with self._lock:
            self.at_work += 1
            self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            yield
        finally:
            with self._lock:
                self.at_work -= 1

    def statistics(self) -> dict[str, object]:
        return {
            "faults": asdict(self.faults),
            "met": dict(self.met),
            "calls": dict(self.calls),
            "most_at_work": self.most_at_work,
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    proxy: FaultyProxy

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what this server is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self._pass_on
        raise AttributeError(name)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def _pass_on(self) -> None:
        proxy = self.server.proxy
        if self.path == _STATISTICS:
            return self._answer(
                200, [("Content-Type", "application/json")], json.dumps(proxy.statistics()).encode()
            )
        with proxy.counted():
            began, body = time.monotonic(), self._body()
            kind = proxy.decide(self.command, self.path, "If-None-Match" in self.headers)
            if kind == "reset" or kind in _ANSWERS:
                proxy.meet(kind)
                return self._reset() if kind == "reset" else self._fail(*_ANSWERS[kind])
            with proxy.conditional if "If-None-Match" in self.headers else contextlib.nullcontext():
                status, headers, content = self._forwarded(body)
            late, lost, cut = (
                kind == "delayed",
                kind == "lost" and status < 300,
                kind == "cut" and len(content) > 1,
            )
            if kind and (late or lost or cut):
                proxy.meet(kind)
            if late:
                time.sleep(proxy.faults.delay_s)
            if proxy.log is not None:
                proxy.log.append(
                    Request(self.command, self.path, len(body) + len(content), began, time.monotonic())
                )
            if lost:
                return self._reset()
        self._answer(status, headers, content, cut=cut)

    def _body(self) -> bytes:
        if "Expect" in self.headers:
            self.send_response_only(100)
            self.end_headers()
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        proxy = self.server.proxy
        dropped = (*_HOP, "if-none-match") if proxy.faults.drops_conditions else _HOP
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        connection = http.client.HTTPConnection(
            str(proxy.target.hostname), proxy.target.port or 80, timeout=120
        )
        try:
            connection.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
            answer = connection.getresponse()
            content = answer.read()
            length = answer.headers.get("Content-Length") if self.command == "HEAD" else None
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
            return answer.status, kept + ([("Content-Length", length)] if length else []), content
        finally:
            connection.close()

    def _fail(self, status: int, code: str, message: str) -> None:
        page = (
            "<?xml version='1.0' "
            f"encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
        ).encode()
        self._answer(status, [("Content-Type", "application/xml")], b"" if self.command == "HEAD" else page)

    def _answer(
        self, status: int, headers: Sequence[tuple[str, str]], content: bytes, *, cut: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name == "Content-Length" for name, _ in headers) and status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.wfile.flush()
            self.close_connection = True

    def _reset(self) -> None:
        """The connection ends with a TCP reset and no answer."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


def main() -> None:
    """Listen until stopped."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True, metavar="URL")
    parser.add_argument("--port", type=int, default=0)
    for each in fields(Faults):
        name = "--" + each.name.replace("_", "-")
        if isinstance(each.default, bool):
            parser.add_argument(name, action="store_true")
        else:
            parser.add_argument(name, type=type(each.default), default=each.default)
    given = vars(parser.parse_args())
    target, port = given.pop("target"), given.pop("port")
    with FaultyProxy(target, Faults(**given), port) as proxy:
        print(proxy.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
