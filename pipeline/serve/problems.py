"""Responses to failed requests: 400 to 499 for faults of a request, 500 and above for the service's."""

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from pipeline.errors import ConfigError, PipelineError, QueryError, SpaceMismatch
from pipeline.log import say
from pipeline.serve.batches import ClientGone

CLIENT_GONE = 499
"""status of requests whose client has gone, as nginx counts them"""


def add_problems(app: FastAPI) -> None:
    """Let an application explain errors as `Problem`."""
    app.exception_handler(PipelineError)(_explain)
    app.exception_handler(RequestValidationError)(_explain_invalid)
    app.exception_handler(ClientGone)(_count_gone)


def status_of(error: PipelineError) -> int:
    """Return the status of the response to a request that failed.

    The encoder was loaded before the first request, so a SpaceMismatch is about the vectors of a request.
    """
    if isinstance(error, SpaceMismatch):
        return 409
    return 400 if isinstance(error, ConfigError | QueryError) else 503


async def _explain(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PipelineError)
    status = status_of(error)
    if status >= 500:
        say(f"{request.method} {request.url.path}: {error}")
    body = {"error": type(error).__name__, "message": str(error)}
    return JSONResponse(body, status, {"Retry-After": "1"} if status == 503 else None)


async def _explain_invalid(_: Request, error: Exception) -> JSONResponse:
    """Say which fields are invalid. Their values are left out, since they may be large, or NaN."""
    assert isinstance(error, RequestValidationError)
    places = (
        f"{'.'.join(map(str, each['loc']))}: {each['msg'].removeprefix('Value error, ')}"
        for each in error.errors()
    )
    return JSONResponse({"error": "InvalidRequest", "message": "; ".join(places)}, 422)


async def _count_gone(_: Request, error: Exception) -> Response:
    """Give the request a status for the metrics; nobody reads the response."""
    assert isinstance(error, ClientGone)
    return Response(status_code=CLIENT_GONE)
