"""The S3 client of this process, shared by its threads. Each call is made once: only `retrying` repeats it.

Environment variables: MANTA_STORE_TIMEOUT_S, the limit for one response (default 30 seconds);
AWS_ENDPOINT_URL, the server.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pipeline.errors import ConfigError
from pipeline.keep_alive import keep_alive
from pipeline.store.retry import seconds

A = TypeVar("A")

_MAX_CALLS = 32  # concurrent calls of one process; further threads wait
_CONNECT_S, _ANSWER_S = 5.0, 30.0
_SLOWEST = 256 << 10  # bytes/s; slower uploads time out
_CHUNK = 1 << 20  # bytes of a response read at once
_KEEP_ALIVE_S = 1.0  # between two keep-alive signals while a call runs

_clients: dict[tuple[object, ...], Any] = {}
_making = threading.Lock()
_turns = threading.BoundedSemaphore(_MAX_CALLS)


def client() -> Any:
    """Return the s3fs file system, shared by the threads of this process. Only `retrying` retries."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
    timeout = seconds("MANTA_STORE_TIMEOUT_S", _ANSWER_S)
    key = (os.getpid(), endpoint, timeout)
    with _making:
        if key not in _clients:
            _clients[key] = _connected(endpoint, timeout)
        return _clients[key]


def _connected(endpoint: str | None, timeout: float) -> Any:
    try:
        import s3fs
    except ImportError as error:
        raise ConfigError("s3://", "the package s3fs", str(error), "pip install s3fs") from None
    config = {
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "max_pool_connections": _MAX_CALLS,
        "connect_timeout": _CONNECT_S,
        "read_timeout": timeout,
    }
    made = s3fs.S3FileSystem(
        endpoint_url=endpoint, config_kwargs=config, use_listings_cache=False, skip_instance_cache=True
    )
    made.retries = 1
    return made


def answered(call: Callable[[Any, dict[str, Any]], Coroutine[Any, Any, A]], arguments: dict[str, Any]) -> A:
    """Make one call, after waiting until fewer than _MAX_CALLS are running, and return its result."""
    from fsspec.asyn import sync

    files = client()
    with _turns:
        answer: A = sync(files.loop, call, files, arguments)
    return answer


async def called(files: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the response of one call of the S3 API.

    The limit allows for the time that an upload of the body takes. The HTTP client's own timeout is not
    enough: it does not apply while a PUT that waited for `100 Continue` waits for its response.

    Raises:
        TimeoutError: the call took longer than the limit.
    """
    limit = seconds("MANTA_STORE_TIMEOUT_S", _ANSWER_S) + len(arguments.get("Body", b"")) / _SLOWEST
    rest = {name: value for name, value in arguments.items() if name != "verb"}
    call = asyncio.ensure_future(asyncio.wait_for(files._call_s3(arguments["verb"], **rest), limit))
    while not (await asyncio.wait([call], timeout=_KEEP_ALIVE_S))[0]:
        keep_alive()  # the progress of an upload is unknown, but the limit ends one that is too slow
    return dict(call.result())


async def body(files: Any, arguments: dict[str, Any]) -> bytes:
    """Read an object. There is no limit on the whole transfer as long as bytes keep arriving.

    Raises:
        ConnectionResetError: fewer bytes arrived than the response announced.
    """
    answer = await called(files, {"verb": "get_object", **arguments})
    chunks = []
    async with answer["Body"] as stream:
        while chunk := await stream.read(_CHUNK):
            chunks.append(chunk)
            keep_alive()
    content = b"".join(chunks)
    if len(content) != answer["ContentLength"]:
        raise ConnectionResetError(f"received {len(content)} of {answer['ContentLength']} bytes")
    return content
