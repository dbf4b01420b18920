"""Routes for people: the page on which they look at a corpus, without scripts and external resources."""

import time
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse

from pipeline.charts.frame import shorten
from pipeline.charts.plane import PlanePoint, group_numbers, plane_chart
from pipeline.errors import PipelineError, QueryError, did_you_mean
from pipeline.index.files.texts import MissingTexts
from pipeline.index.search.search import OpenRelease
from pipeline.report.explore import ExplorePage, MapPage, Question, render, render_map, render_map_wait
from pipeline.serve.access import token_of
from pipeline.serve.batches import Batches, Found, Search
from pipeline.serve.connections import say_seldom
from pipeline.serve.follow import Follower
from pipeline.serve.messages import MAX_CHARACTERS
from pipeline.serve.problems import status_of
from pipeline.serve.sample_map import PlacedRows, SampleMap
from pipeline.serve.tokens import AccessToken
from pipeline.store.releases.manifest import report_path
from pipeline.targets.values import json_column

_MAX_SHOWN = 100  # answers on the page
_MAX_TITLE = 200  # characters
_MAP_WAIT_S = 1.0  # time for a map to be drawn before the answer is a page that waits for it
_MAP_AGAIN_S = "3"  # seconds after which a browser asks again
_OVERVIEW = "index.html"
_Text = Annotated[str, Query(max_length=MAX_CHARACTERS)]
POLICY = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
}
"""headers of every page: no scripts, nothing from elsewhere"""


def _check_parameters(request: Request) -> None:
    """Raise QueryError if the URL has a parameter that the route does not have, or one parameter twice."""
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name in seen or name not in known:
            shown = repr(name[:_MAX_TITLE])
            raise QueryError(
                f"GET {request.url.path}",
                f"each of the parameters {', '.join(known)} at most once",
                f"{shown} again" if name in seen else shown,
                "remove one" if name in seen else did_you_mean(name, known, "remove it"),
            )
        seen.add(name)


_CHECKED = (Depends(_check_parameters),)


def add_page(app: FastAPI, release: OpenRelease, batches: Batches, follower: Follower) -> None:
    """Add the routes to an application."""
    _add_search_page(app, release, batches, follower)
    _add_map(app, release)
    _add_reports(app, release)


def _add_search_page(app: FastAPI, release: OpenRelease, batches: Batches, follower: Follower) -> None:
    @app.get("/", response_class=HTMLResponse, include_in_schema=False, dependencies=_CHECKED)
    async def search_page(
        request: Request,
        q: _Text = "",
        near: _Text = "",
        where: _Text = "",
        k: Annotated[int, Query(ge=1, le=_MAX_SHOWN)] = 10,
        group: bool = False,
    ) -> HTMLResponse:
        question, began_s = Question(q.strip(), near, where.strip(), k, group), time.perf_counter()
        opened, answers, problem, status = release.snapshot(), None, "", 200
        token = token_of(request.scope)
        try:
            if question.q and question.near:
                raise QueryError("GET /", "a text (q) or the id of a row (near)", "both", "remove one")
            if question.q or question.near:
                found = await _find(question, opened, batches, request)
                answers, opened = found.answers[0], _same(opened, found, release)
        except PipelineError as error:
            problem, status = str(error), status_of(error)
            if status >= 500:
                say_seldom(f"GET /: {error}", type(error).__name__)
        try:
            rows = await run_in_threadpool(lambda: len(token.limited(opened)))
        except PipelineError as error:
            rows, problem, status = 0, str(error), status_of(error)
        shown = ExplorePage(
            **_page(opened, question, follower, token),
            rows=rows,
            answers=answers,
            problem=problem,
            seconds=time.perf_counter() - began_s,
        )
        return HTMLResponse(render(shown), status, POLICY)


def _same(opened: OpenRelease, found: Found, release: OpenRelease) -> OpenRelease:
    """Return the release that answered: `opened`, or the release that has replaced it meanwhile."""
    return opened if found.release == opened.number else release.snapshot()


async def _find(question: Question, release: OpenRelease, batches: Batches, request: Request) -> Found:
    """Find rows near a text, or near another row; without their texts if these cannot be read."""
    queries: tuple[str, ...] | np.ndarray = (question.q,)
    token = token_of(request.scope)
    if not question.q:
        queries = (await run_in_threadpool(lambda: token.limited(release).vector(question.near)))[None]
    search = Search(
        queries,
        question.k,
        space_id=None if question.q else release.space_id,
        where=question.where or None,
        group=question.group,
        texts=True,
        token=token,
    )
    try:
        return await batches.search(search, request.is_disconnected)
    except MissingTexts:
        return await batches.search(replace(search, texts=False), request.is_disconnected)


def _page(release: OpenRelease, question: Question, follower: Follower, token: AccessToken) -> dict[str, Any]:
    """Return the values of the page that do not depend on the answer."""
    manifest, (number, published_at) = release.manifest, follower.published
    published = published_at[:16].replace("T", " ") + " UTC" if published_at else ""
    return {
        "root": release.releases.store.uri,
        "release": manifest.release,
        "is_limited": token.where is not None,
        "published": published if number == manifest.release else "",
        "encoder": manifest.settings.get("encoder", {}).get("path", "its encoder"),
        "has_chunks": "chunks" in manifest.counts,
        "columns": manifest.settings.get("corpus", {}).get("keep", ()),
        "question": question,
    }


def _add_map(app: FastAPI, release: OpenRelease) -> None:
    sample_map = SampleMap()

    @app.get("/map", response_class=HTMLResponse, include_in_schema=False, dependencies=_CHECKED)
    async def map_page(colour: str = "") -> HTMLResponse:
        opened = release.snapshot()
        placed = await sample_map.of(opened, _MAP_WAIT_S)
        if placed is None:
            again = {"Retry-After": _MAP_AGAIN_S, "Refresh": _MAP_AGAIN_S}
            return HTMLResponse(render_map_wait(opened.number), 503, POLICY | again)
        return await run_in_threadpool(_draw_map, placed, colour, len(opened))


def _draw_map(placed: PlacedRows, colour: str, rows: int) -> HTMLResponse:
    columns = [name for name in placed.rows.column_names if name not in ("id", "text")]
    if colour and colour not in columns:
        kept = ", ".join(columns) or "none, because no column was kept"
        raise QueryError("GET /map: colour", kept, repr(colour[:_MAX_TITLE]), "choose one of these columns")
    page = _map_page(placed, colour, columns, rows)
    return HTMLResponse(render_map(page), headers=POLICY)


def _map_page(placed: PlacedRows, colour: str, columns: list[str], rows: int) -> MapPage:
    values = list(json_column(placed.rows[colour])) if colour else [""] * placed.rows.num_rows
    numbers, labels = group_numbers(values)
    titles = placed.rows["text" if "text" in placed.rows.column_names else "id"].to_pylist()
    points = [
        PlanePoint(float(x), float(y), str(row_id), shorten(" ".join(str(title).split()), _MAX_TITLE), number)
        for (x, y), row_id, title, number in zip(
            placed.points, placed.rows["id"].to_pylist(), titles, numbers, strict=True
        )
    ]
    return MapPage(
        release=placed.release,
        rows=rows,
        method=placed.method,
        variance=placed.variance,
        shown=len(points),
        columns=columns,
        colour=colour,
        labels=labels if colour else (),
        chart=plane_chart(points),
    )


def _add_reports(app: FastAPI, release: OpenRelease) -> None:
    """Add the pages that nights write: the list of releases, and the report of each."""
    store = release.releases.store

    def stored(path: str) -> HTMLResponse:
        try:
            return HTMLResponse(store.read(path), headers=POLICY)
        except FileNotFoundError:
            raise HTTPException(404, f"{path} does not exist") from None

    @app.get("/index.html", response_class=HTMLResponse, include_in_schema=False)
    def overview() -> HTMLResponse:
        return stored(_OVERVIEW)

    @app.get("/releases/{number}/report.html", response_class=HTMLResponse, include_in_schema=False)
    def report(number: Annotated[int, Path(ge=1)]) -> HTMLResponse:
        return stored(report_path(number))
