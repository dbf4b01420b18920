"""Responses to failed requests: 400 to 499 for faults of a request, from 500 on for faults of the service."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from pipeline.errors import ConfigError, PipelineError, QueryError, SpaceMismatch
from pipeline.serve.batches import ClientGone
from pipeline.serve.connections import say_seldom

CLIENT_GONE = 499
"""status of requests whose client has gone, as nginx counts them"""

_MAX_SHOWN = 80  # characters of a header
_JSON_TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number with a fraction",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def add_problems(app: FastAPI) -> None:
    """Register handlers that answer every error with a `Problem`."""
    app.exception_handler(PipelineError)(_explain)
    app.exception_handler(RequestValidationError)(_explain_invalid)
    app.exception_handler(ClientGone)(_count_gone)
    app.exception_handler(HTTPException)(_explain_refusal)
    app.exception_handler(Exception)(_explain_defect)


def status_of(error: PipelineError) -> int:
    """Return the status of the response to a request that failed.

    The encoder was loaded before the first request, so a SpaceMismatch can only concern the vectors of a
    request.
    """
    if isinstance(error, SpaceMismatch):
        return 409
    return 400 if isinstance(error, ConfigError | QueryError) else 503


async def _explain(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PipelineError)
    status = status_of(error)
    if status >= 500:
        say_seldom(f"{request.method} {request.url.path}: {error}", type(error).__name__)
    body = {"error": type(error).__name__, "message": str(error)}
    return JSONResponse(body, status, {"Retry-After": "1"} if status == 503 else None)


async def _explain_invalid(request: Request, error: Exception) -> JSONResponse:
    """Say which fields are invalid. Their values are left out, since they may be large, or NaN."""
    assert isinstance(error, RequestValidationError)
    message = "; ".join(map(_sentence, error.errors()))
    found = request.headers.get("content-type", "none")
    if request.method == "POST" and "json" not in found:  # the body was not parsed
        message = f"header Content-Type: expected application/json, found {found[:_MAX_SHOWN]}; set it"
    return JSONResponse({"error": "InvalidRequest", "message": message}, 422)


def _sentence(fault: dict[str, Any]) -> str:
    """Return where a fault is, its reason, and the type that was found instead of another; for a body that is
    not JSON, the parser's reason, too."""
    reason = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "json_invalid":
        reason = f"{reason}: {fault['ctx']['error']}"
    elif fault["type"].endswith("_type"):
        reason = f"{reason}, found {_JSON_TYPES.get(type(fault['input']), 'another type')}"
    return f"{'.'.join(map(str, fault['loc']))}: {reason}"


async def _explain_refusal(_: Request, error: Exception) -> JSONResponse:
    """Name the refusal: an unknown path, a wrong method, or a body that is too large."""
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase.replace(" ", "")
    name = "TooLarge" if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else phrase
    return JSONResponse({"error": name, "message": error.detail}, error.status_code, error.headers)


async def _explain_defect(_: Request, error: Exception) -> JSONResponse:
    """Say that the service has a defect. The server prints the traceback on standard error."""
    message = f"{type(error).__name__}, a defect of the program: the service printed more about it"
    return JSONResponse({"error": "Defect", "message": message}, 500)


async def _count_gone(_: Request, error: Exception) -> Response:
    """Give the request a status for the metrics; nobody reads the response."""
    assert isinstance(error, ClientGone)
    return Response(status_code=CLIENT_GONE)
