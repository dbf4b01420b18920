"""Build a running service, and its routes for programs. `manta serve` runs it."""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from pipeline.errors import QueryError
from pipeline.index.search.search import OpenRelease
from pipeline.serve.access import OPEN_PATH, BodyLimit, LoopbackOnly, RequestMetrics, TokenCheck, token_of
from pipeline.serve.batches import Batches, Found, Search
from pipeline.serve.canary import Canary, CanaryOptions
from pipeline.serve.follow import Follower
from pipeline.serve.json_bodies import JsonRoute
from pipeline.serve.messages import (
    MAX_BODY_BYTES,
    Health,
    Problem,
    SearchRequest,
    SearchResponse,
    ServedRelease,
)
from pipeline.serve.metrics import ServiceMetrics
from pipeline.serve.page import add_page
from pipeline.serve.problems import add_problems
from pipeline.serve.query_log import QueryLog, QueryLogOptions
from pipeline.serve.shadow import Shadow
from pipeline.serve.shadow_page import add_shadow_page
from pipeline.serve.tokens import AccessToken, AccessTokens, TokenFile

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 401, 403, 409, 413, 422, 503)
}


@dataclass(frozen=True)
class ServiceOptions:
    """Options of a service."""

    poll_s: float = 30.0
    """seconds between two checks for another release"""
    same_space: bool = True
    """refuse releases of another space"""
    token: str = ""
    """the token that requests must carry; empty for none"""
    shadow: str = ""
    """number of a release, or first digits of a candidate, that answers off the path; see `Shadow`"""
    canary: CanaryOptions | None = None
    """a newly published release answers a share of the searches first; see `Canary`"""
    tokens: Path | None = None
    """a file of tokens, one of which requests must carry; see `TokenFile`"""
    hosts: tuple[str, ...] = ()
    """without a token, names and addresses under which the service answers, besides localhost"""
    query_log: QueryLogOptions | None = None
    """the log of queries; None for none"""


@dataclass(frozen=True)
class _Service:
    """The parts of a service."""

    release: OpenRelease
    metrics: ServiceMetrics
    batches: Batches
    follower: Follower
    canary: Canary | None
    shadow: Shadow | None
    log: QueryLog | None

    @contextlib.contextmanager
    def running(self, poll_s: float) -> Iterator[None]:
        """Run the threads of the parts while the block runs."""
        with contextlib.ExitStack() as running:
            running.callback(self.batches.close)
            if self.canary:
                running.callback(self.canary.close)
            running.enter_context(self.follower.following(poll_s))
            if self.log:
                running.enter_context(self.log.running())
            if self.shadow:
                running.enter_context(self.shadow.running(poll_s))
            yield

    async def answer(self, search: Search, request: Request) -> Found:
        """Answer the search of a request, by the canary or by the release of before."""
        if self.canary is None:
            return await self.batches.search(search, request.is_disconnected)
        key = request.headers.get("x-request-id", "")
        return await self.canary.search(self.batches, search, request.is_disconnected, key)


def _make_service(release: OpenRelease, held: contextlib.ExitStack, options: ServiceOptions) -> _Service:
    metrics = ServiceMetrics()
    canary = Canary(release, options.canary, metrics, options.poll_s) if options.canary else None
    return _Service(
        release,
        metrics,
        Batches(release, metrics),
        Follower(release, metrics, same_space=options.same_space, held=held, canary=canary),
        canary,
        Shadow(release, options.shadow, metrics) if options.shadow else None,
        QueryLog(options.query_log, release, metrics, has_tokens=options.tokens is not None)
        if options.query_log
        else None,
    )


def make_app(release: OpenRelease, held: contextlib.ExitStack, options: ServiceOptions) -> FastAPI:
    """Make the ASGI application that serves a release, and later the releases that replace it.

    Loads the encoder, so the first request is as fast as later ones.

    Args:
        held: holds a lease on the release, see `open_held`.

    Raises:
        ConfigError: the file of tokens, or the log of queries, cannot be used.
    """
    service = _make_service(release, held, options)
    file = TokenFile(options.tokens, release, service.metrics) if options.tokens else None
    service.follower.warm()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with service.running(options.poll_s), file.following() if file else contextlib.nullcontext():
            yield

    # the pages of documentation that FastAPI offers load scripts from elsewhere
    app = FastAPI(title="Manta", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.router.route_class = JsonRoute
    add_problems(app)
    _add_search(app, service)
    _add_state(app, service)
    add_page(app, release, service.batches, service.follower)
    add_shadow_page(app, service.shadow)
    app.add_middleware(BodyLimit, limit=MAX_BODY_BYTES)
    if file or options.token:
        app.add_middleware(TokenCheck, tokens=file.tokens if file else AccessTokens.of(options.token))
    else:
        app.add_middleware(LoopbackOnly, hosts=options.hosts)
    app.add_middleware(
        RequestMetrics, metrics=service.metrics
    )  # the outermost, so it counts refused requests
    return app


def _add_search(app: FastAPI, service: _Service) -> None:
    @app.post("/search", response_model=SearchResponse, responses=_PROBLEMS)
    async def search(body: SearchRequest, request: Request) -> Response:
        """Search for the nearest rows of each query."""
        if ignored := next((name for name in request.query_params if name in SearchRequest.model_fields), ""):
            raise QueryError(
                "POST /search",
                f"{ignored} in the body",
                "it in the URL",
                f'send it as JSON: {{"{ignored}": ...}}',
            )
        queries = tuple(body.queries) if body.queries is not None else _matrix(body.vectors or [])
        fields = body.model_dump(include={"k", "space_id", "where", "group", "texts"})
        wanted = Search(queries, **fields, token=token_of(request.scope))
        began_s = time.perf_counter()
        found = await service.answer(wanted, request)
        if service.log:
            service.log.offer(wanted, found, request)
        if service.shadow:
            service.shadow.offer(wanted, found, time.perf_counter() - began_s)
        content = await run_in_threadpool(_to_json, found)  # the body may have megabytes
        return Response(content, media_type="application/json")


def _to_json(found: Found) -> str:
    """Return the body of a SearchResponse, not validated: its rows come from a table with these columns."""
    return json.dumps(vars(found), ensure_ascii=False)


def _matrix(vectors: list[list[float]]) -> np.ndarray:
    """Return vectors as (q, d) float32. Raises QueryError if they differ in length."""
    lengths = sorted({len(vector) for vector in vectors})
    if len(lengths) > 1:
        raise QueryError("search: vectors", "one length", f"{lengths[0]} and {lengths[-1]}", "check them")
    with np.errstate(over="ignore"):  # the search refuses infinity
        return np.array(vectors, dtype=np.float32)


def _add_state(app: FastAPI, service: _Service) -> None:
    release, follower = service.release, service.follower

    @app.get(OPEN_PATH)
    async def healthz() -> Health:
        """Say that the service answers, and how old its knowledge of the root is."""
        return Health(
            status="ok",
            release=release.number,
            checked_s=round(follower.checked_s, 3),
            refused_release=follower.refused,
        )

    @app.get("/release")
    def current(request: Request) -> ServedRelease:
        """Describe the release that answers, without the rows that the filter of the token leaves out."""
        token = token_of(request.scope)
        described = _describe(release.snapshot(), follower, token)
        if token.where is None:
            described.shadow = service.shadow.report() if service.shadow else None
            described.canary = service.canary.report() if service.canary else None
        return described

    @app.get("/metrics", response_class=Response)
    async def prometheus() -> Response:
        """Return the metrics of the service for Prometheus."""
        if service.shadow:
            service.shadow.report()
        return Response(service.metrics.text(), media_type=_PROMETHEUS)


def _describe(release: OpenRelease, follower: Follower, token: AccessToken) -> ServedRelease:
    manifest, (number, published_at) = release.manifest, follower.published
    return ServedRelease(
        release=manifest.release,
        space_id=manifest.space_id,
        rows=len(token.limited(release)),
        dim=manifest.index.dim,
        index=manifest.index.kind,
        published_at=published_at if number == manifest.release else None,
        encoder=manifest.settings.get("encoder", {}).get("path", ""),
        gates={}
        if token.where is not None  # they describe all rows
        else {name: gate.model_dump(mode="json") for name, gate in manifest.gates.items()},
        refused=follower.refused,
    )
