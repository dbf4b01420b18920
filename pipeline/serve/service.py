"""The parts of a running service, and the routes over them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from pipeline.errors import ConfigError, DataError, PipelineError, SpaceMismatch, TransientError
from pipeline.index.search import OpenRelease
from pipeline.index.texts import MissingTexts
from pipeline.log import say
from pipeline.serve.access import OPEN_PATH, RequestMetrics, TokenCheck
from pipeline.serve.batches import Batches, Search
from pipeline.serve.follow import Follower
from pipeline.serve.messages import Health, Problem, SearchRequest, SearchResponse, ServedRelease
from pipeline.serve.metrics import ServiceMetrics
from pipeline.serve.page import add_page

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_PROBLEMS: dict[int | str, dict[str, Any]] = {status: {"model": Problem} for status in (400, 401, 409, 503)}


@dataclass(frozen=True)
class ServiceOptions:
    """Options of a service.

    Attributes:
        poll_s: seconds between two looks for another release.
        same_space: refuse releases of another space.
        token: the token that requests must carry; empty for none.
    """

    poll_s: float = 30.0
    same_space: bool = True
    token: str = ""


def make_app(release: OpenRelease, options: ServiceOptions) -> FastAPI:
    """Make the ASGI application that serves a release and those that follow it.

    Loads the encoder, so the first request is as fast as later ones.
    """
    metrics = ServiceMetrics()
    batches = Batches(release, metrics)
    follower = Follower(release, metrics, same_space=options.same_space)
    follower.warm()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(follower.follow(options.poll_s))
        yield
        task.cancel()
        follower.close()
        batches.close()

    # the pages of documentation that FastAPI offers load scripts from elsewhere
    app = FastAPI(title="Manta", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.exception_handler(PipelineError)(_explain)
    _add_search(app, batches)
    _add_state(app, release, follower, metrics)
    add_page(app, release, batches)
    if options.token:
        app.add_middleware(TokenCheck, token=options.token)
    app.add_middleware(RequestMetrics, metrics=metrics)  # the outermost, so it counts refused requests
    return app


def _add_search(app: FastAPI, batches: Batches) -> None:
    @app.post("/search", response_model=SearchResponse, responses=_PROBLEMS)
    async def search(request: SearchRequest) -> Response:
        """Search for the nearest rows of each query."""
        queries = tuple(request.queries) if request.queries is not None else _matrix(request.vectors or [])
        fields = request.model_dump(include={"k", "space_id", "where", "group", "texts"})
        found = await batches.search(Search(queries, **fields))
        # not validated again: the answers are made from a table with these columns
        return Response(json.dumps(asdict(found), ensure_ascii=False), media_type="application/json")


def _matrix(vectors: list[list[float]]) -> np.ndarray:
    """Return vectors as (q, d) float32. Raises DataError if they differ in length."""
    lengths = sorted({len(vector) for vector in vectors})
    if len(lengths) > 1:
        raise DataError("search: vectors", "one length", f"{lengths[0]} and {lengths[-1]}", "send equal ones")
    with np.errstate(over="ignore"):  # infinity is refused by the search
        return np.array(vectors, dtype=np.float32)


def _add_state(app: FastAPI, release: OpenRelease, follower: Follower, metrics: ServiceMetrics) -> None:
    @app.get(OPEN_PATH)
    async def healthz() -> Health:
        """Say that the service answers, and how old its knowledge of the root is."""
        return Health(status="ok", release=release.number, checked_s=round(follower.checked_s, 3))

    @app.get("/release")
    async def current() -> ServedRelease:
        """Describe the release that answers."""
        return _describe(release.snapshot(), follower.refused)

    @app.get("/metrics", response_class=Response)
    async def prometheus() -> Response:
        """Return the metrics of the service for Prometheus."""
        return Response(metrics.text(), media_type=_PROMETHEUS)


def _describe(release: OpenRelease, refused: int | None) -> ServedRelease:
    manifest = release.manifest
    commit = release.releases.commits.read(manifest.release)
    return ServedRelease(
        release=manifest.release,
        space_id=manifest.space_id,
        rows=len(release),
        dim=manifest.index.dim,
        index=manifest.index.kind,
        published_at=commit.committed_at if commit else None,
        encoder=manifest.settings.get("encoder", {}).get("path", ""),
        gates={name: gate.model_dump(mode="json") for name, gate in manifest.gates.items()},
        refused=refused,
    )


async def _explain(request: Request, error: Exception) -> JSONResponse:
    """Return the response to a request that failed."""
    status, headers = 500, {}
    if isinstance(error, TransientError):
        status, headers = 503, {"Retry-After": "1"}
    elif isinstance(error, MissingTexts):  # a file is gone, and the request is not to blame
        status = 503
    elif isinstance(error, SpaceMismatch):
        status = 409
    elif isinstance(error, ConfigError | DataError):
        status = 400
    if status >= 500:
        say(f"{request.method} {request.url.path}: {error}")
    body = {"error": type(error).__name__, "message": str(error)}
    return JSONResponse(body, status, headers)
