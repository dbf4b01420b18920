"""Checks and measurements around every request: token, host, size of the body, and duration by route.

This module is separate from the routes, because it decides who may use them.
"""

import base64
import binascii
import json
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from fastapi import HTTPException

from pipeline.serve.metrics import ServiceMetrics
from pipeline.serve.tokens import ANYONE, AccessToken, AccessTokens

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATH = "/healthz"
"""the only path that needs no token"""
LIMITED_PATHS = frozenset({OPEN_PATH, "/", "/search", "/release", "/openapi.json"})
"""the only paths for a token with a filter: each of these routes uses the rows of the token alone"""
_TOKEN = "manta.token"
"""key of the request's token in the scope of the request"""
_LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1"}
_DENIED = b'{"error":"Unauthorized","message":"this service needs a token: Authorization: Bearer TOKEN"}'
_LIMITED = (
    b'{"error":"Forbidden","message":"this path shows rows or counts of all tokens, and this token has a '
    b'filter"}'
)
_OTHER_HOST = (
    b'{"error":"BadHost","message":"without a token, this service answers only as localhost, or under the '
    b'name or address that it listens on"}'
)
_OTHER_SITE = (
    b'{"error":"CrossSite","message":"without a token, this service refuses cross-site requests of '
    b'browsers: open its address directly"}'
)
_MAX_BODIES = 8  # how many bodies of the largest size may be read at one time
_TOO_MANY = "too many large bodies are received at the same time: send them again later"
_TOO_LARGE = "the body is too large: send fewer queries at a time"


class TokenCheck:
    """Answers 401 to requests without a token: a bearer token, or the password of basic authentication.

    A browser asks for a user name and the password; the user name is ignored. Requests whose token has a
    filter get 403, except for LIMITED_PATHS. The routes of these get the token by `token_of`.
    """

    def __init__(self, app: AsgiApp, tokens: AccessTokens) -> None:
        self._app, self._tokens = app, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan" or scope["path"] == OPEN_PATH:
            await self._app(scope, receive, send)
        elif (token := self._find(scope)) is None:
            await _refuse(send, 401, _DENIED, (b"www-authenticate", b'Basic realm="Manta"'))
        else:
            scope[_TOKEN] = token
            if token.where is not None and scope["path"] not in LIMITED_PATHS:
                await _refuse(send, 403, _LIMITED)
            else:
                await self._app(scope, receive, send)

    def _find(self, scope: Scope) -> AccessToken | None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, value = given.partition(b" ")
        if kind.lower() == b"basic":
            try:
                value = base64.b64decode(value, validate=True).partition(b":")[2]
            except binascii.Error:
                return None
        elif kind.lower() != b"bearer":
            return None
        return self._tokens.find(value)


def token_of(scope: Scope) -> AccessToken:
    """Return the token that a request carries; ANYONE for a service without tokens."""
    token = scope.get(_TOKEN, ANYONE)
    assert isinstance(token, AccessToken)
    return token


class LoopbackOnly:
    """Answers 400 to requests for another host than this machine, for a service without a token.

    Otherwise any web page that is open in a browser on this machine could read the corpus, under a name that
    its author lets resolve to this machine (DNS rebinding). Requests that a browser sends for a page of
    another site get 403: the page could not read the answers, but could keep the service busy.
    """

    def __init__(self, app: AsgiApp, hosts: Collection[str] = ()) -> None:
        """Wrap an application.

        Args:
            hosts: further names and addresses of this machine under which the service answers.
        """
        self._app, self._hosts = app, _LOOPBACK_NAMES | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif _host_of(scope, b"host") not in self._hosts:
            await _refuse(send, 400, _OTHER_HOST)
        elif self._is_of_another_site(scope):
            await _refuse(send, 403, _OTHER_SITE)
        else:
            await self._app(scope, receive, send)

    def _is_of_another_site(self, scope: Scope) -> bool:
        """Return whether the browser says that a page of another site sent the request; older browsers send
        only an Origin, and not with every request.
        """
        headers = dict(scope["headers"])
        if headers.get(b"sec-fetch-site") == b"cross-site":
            return True
        return b"origin" in headers and _host_of(scope, b"origin") not in self._hosts


class BodyLimit:
    """Answers 413 to requests whose body is too large, before all of the body is read.

    While the bodies that are being received take too much memory together, further requests get 503.
    """

    def __init__(self, app: AsgiApp, limit: int) -> None:
        self._app, self._limit, self._held = app, limit, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        declared = dict(scope.get("headers", ())).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limit:
            await _refuse(send, 413, json.dumps({"error": "TooLarge", "message": _TOO_LARGE}).encode())
            return
        size = 0

        async def receive_limited() -> MutableMapping[str, Any]:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            self._held += len(message.get("body", b""))
            if size > self._limit:  # a body without a declared length
                raise HTTPException(413, _TOO_LARGE)
            if self._held > _MAX_BODIES * self._limit:
                raise HTTPException(503, _TOO_MANY, {"Retry-After": "1"})
            return message

        try:
            await self._app(scope, receive_limited, send)
        finally:
            self._held -= size


def _host_of(scope: Scope, header: bytes) -> str:
    """Return the host in the header Host or Origin, without scheme, port and the brackets of IPv6."""
    host = dict(scope["headers"]).get(header, b"").decode("latin-1").lower().rpartition("//")[2]
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name.removeprefix("[").removesuffix("]")


async def _refuse(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    content_type = (b"content-type", b"application/json")
    await send({"type": "http.response.start", "status": status, "headers": [content_type, *headers]})
    await send({"type": "http.response.body", "body": body})


class RequestMetrics:
    """Counts requests by route and by token, and measures their duration by route."""

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
            # the route, not the path: unknown paths would create an unbounded number of label values
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(status)).inc()
            if name := token_of(scope).name:
                self._metrics.token_requests.labels(name, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - began_s)
