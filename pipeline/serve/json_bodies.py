"""Bodies of requests, parsed by pydantic's parser instead of Python's.

Parsing holds Python's global lock in whatever thread it runs, so other requests have to wait. Pydantic's
parser takes a sixth of the time. It makes an object for each value before any of them is checked, so values
are counted first, by NumPy, which releases the lock.

This module is separate from the routes, because it protects them from bodies that would stop the service.
"""

import codecs
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from pydantic_core import from_json

from pipeline.serve.messages import MAX_QUERIES

_SMALL = 1 << 17  # bytes; any body of this size is parsed within about 20 ms
_MOST = {"{": 1, "[": 1 + MAX_QUERIES, ",": (MAX_QUERIES << 13) + 64}
"""largest number of each character outside of strings: enough for 256 vectors of 8,192 components"""
_PLACE = re.compile(r"at line (\d+) column (\d+)$")


class JsonRequest(Request):
    """A request whose JSON is parsed by pydantic's parser."""

    async def json(self) -> Any:
        """Parse the body.

        Raises:
            JSONDecodeError: the body is not JSON; FastAPI answers with 422.
            HTTPException: the body has more values than a search can have.
        """
        body = (await self.body()).removeprefix(codecs.BOM_UTF8)
        if len(body) > _SMALL and not await run_in_threadpool(_has_few_values, body):
            raise HTTPException(
                413, "the body has more values than a search can have: send fewer queries at a time"
            )
        try:
            return from_json(body)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", _position(body, str(error))) from None


def _has_few_values(body: bytes) -> bool:
    """Return whether a body has at most `_MOST` objects, lists and commas outside of strings."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(
            b'\\"', b""
        )  # removes escapes, so that only quotes that delimit strings remain
    characters = np.frombuffer(body, np.uint8)
    in_string = np.bitwise_xor.accumulate(characters == ord('"'))
    return all(
        np.count_nonzero((characters == ord(sign)) & ~in_string) <= most for sign, most in _MOST.items()
    )


def _position(body: bytes, message: str) -> int:
    """Return the byte offset that the parser's message names by line and column; 0 if it names none."""
    if (found := _PLACE.search(message)) is None:
        return 0
    line, column = map(int, found.groups())
    return sum(len(each) + 1 for each in body.split(b"\n")[: line - 1]) + column - 1


class JsonRoute(APIRoute):
    """A route whose requests are JsonRequests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json
