"""An HTTP proxy before an S3 server that fails on purpose: throttling, lost answers, cut bodies, ignored
conditions.

    python -m tests.faults --target http://127.0.0.1:5000 --port 5001 --throttled 0.05 --lost 0.02 --seed 1

It prints its address as soon as it listens. GET /-/faults returns the counts of calls and faults so far as
JSON. Whether a call fails depends on the seed, on the call and on how often this call was made before, not on
the order of threads.
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
_UPLOAD = re.compile("uploadId=[^&]*")
_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "expect")
_ANSWERS = {
    "throttled": (503, "SlowDown", "Please reduce your request rate."),
    "internal": (500, "InternalError", "We encountered an internal error. Please try again."),
    "limited": (429, "TooManyRequests", "Too many requests."),
    "denied": (403, "AccessDenied", "Access Denied"),
    "redirected": (301, "PermanentRedirect", "The bucket must be addressed by the specified endpoint."),
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
    """Proportions of calls that get a fault, from 0 to 1. A call gets one fault at most.

    Attributes:
        throttled: answered with 503; the store does not see the call.
        internal: answered with 500; the store does not see the call.
        limited: answered with 429; the store does not see the call.
        reset: the connection is reset; the store does not see the call.
        delayed: the store executes the call, and the answer comes `delay_s` late.
        cut: the body of a GET ends halfway.
        lost: the store executes a PUT, POST or DELETE, and the connection is reset instead of the answer.
        denied: answered with 403 AccessDenied.
        redirected: answered with 301, without the region of the bucket.
        unknown: answered with 403 for an unknown access key.
        delay_s: seconds of delay.
        drops_conditions: If-None-Match never reaches the store.
        refuses_conditions: calls with If-None-Match are answered with 501.
    """

    throttled: float = 0.0
    internal: float = 0.0
    limited: float = 0.0
    reset: float = 0.0
    delayed: float = 0.0
    cut: float = 0.0
    lost: float = 0.0
    denied: float = 0.0
    redirected: float = 0.0
    unknown: float = 0.0
    delay_s: float = 5.0
    drops_conditions: bool = False
    refuses_conditions: bool = False
    seed: int = 0

    def of(self, method: str, path: str, times: int) -> str | None:
        """Return the kind of fault of a call that was made `times` times before; None for no fault."""
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
            "redirected",
            "unknown",
        ):
            proportion = getattr(self, kind)
            if chance < proportion:
                return kind if _concerns(kind, method) else None
            chance -= proportion
        return None


def _concerns(kind: str, method: str) -> bool:
    """Return whether calls of this HTTP method can have this kind of fault."""
    if kind == "cut":
        return method == "GET"
    return kind != "lost" or method in ("PUT", "POST", "DELETE")


class Request(NamedTuple):
    """A call that the store answered, with the bytes of both bodies and times of the monotonic clock."""

    method: str
    path: str
    bytes: int
    began_s: float
    ended_s: float


class FaultyProxy:
    """A proxy on loopback that listens while the block runs.

    Attributes:
        faults: may be replaced at any time.
        met: number of faults by kind.
        calls: number of calls by HTTP method.
        log: every call that the store answered, if it was set to a list; None to record none.
        at_work: number of calls at this moment.
        most_at_work: largest number of calls at one time.
    """

    def __init__(self, target: str, faults: Faults = Faults(), port: int = 0) -> None:
        self.target, self.faults = urlsplit(target), faults
        self.met: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.log: list[Request] | None = None
        self.at_work = self.most_at_work = 0
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()
        # moto checks the condition and stores the object in two steps, S3 in one; so conditional calls are
        # sent to moto one at a time.
        self.conditional = threading.Lock()
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
        """Count a call that has arrived, and return its kind of fault; None for no fault."""
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
        """Count a fault that took effect. An answer is lost, for instance, only if the store executed the
        call.
        """
        with self._lock:
            self.met[kind] += 1

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count a call as at work during the block."""
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
        """Ignore the error: this server makes clients go away on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self._pass_on
        raise AttributeError(name)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

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
            late = kind == "delayed"
            lost = kind == "lost" and status < 300
            cut = kind == "cut" and len(content) > 1
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
        """End the connection with a TCP reset instead of an answer."""
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
