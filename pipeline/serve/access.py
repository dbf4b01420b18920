"""Checks and measurements around every request: the token, and duration by route."""

import base64
import binascii
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pipeline.serve.metrics import ServiceMetrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATH = "/healthz"
"""the only path that needs no token"""
_DENIED = b'{"error":"Unauthorized","message":"this service needs a token: Authorization: Bearer TOKEN"}'


class TokenCheck:
    """Answers 401 to requests without the token: a bearer token, or the password of basic authentication.

    A browser asks for the latter; the user name is ignored.
    """

    def __init__(self, app: AsgiApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] == OPEN_PATH or self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b'Basic realm="Manta"')]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": _DENIED})

    def _is_allowed(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, value = given.partition(b" ")
        if kind.lower() == b"basic":
            try:
                value = base64.b64decode(value, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif kind.lower() != b"bearer":
            return False
        return hmac.compare_digest(value, self._token)


class RequestMetrics:
    """Counts requests and measures their duration, by route."""

    def __init__(self, app: AsgiApp, metrics: ServiceMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began_s = 500, time.perf_counter()

        async def send_and_note(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            # the route, not the path: paths of strangers would make metrics without end
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - began_s)
