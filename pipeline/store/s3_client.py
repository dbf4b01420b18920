"""The S3 client of this process, shared by its threads. It makes each call once: `retrying` repeats calls.

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
from pipeline.store.retry import positive_number

Answer = TypeVar("Answer")

_MAX_CONCURRENT_CALLS = 32  # concurrent calls of one process; further threads wait
_CONNECT_S, _ANSWER_S = 5.0, 30.0
_SLOWEST_UPLOAD = 256 << 10  # bytes/s; slower uploads time out
_CHUNK = 1 << 20  # bytes of a response read at once
_KEEP_ALIVE_S = 1.0  # between two keep-alive signals while a call runs

_clients: dict[tuple[object, ...], Any] = {}
_clients_lock = threading.Lock()
_call_slots = threading.BoundedSemaphore(_MAX_CONCURRENT_CALLS)


def client() -> Any:
    """Return the s3fs file system of this process."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
    timeout = positive_number("MANTA_STORE_TIMEOUT_S", _ANSWER_S)
    key = (os.getpid(), endpoint, timeout)
    with _clients_lock:
        if key not in _clients:
            _clients[key] = _connect(endpoint, timeout)
        return _clients[key]


def _connect(endpoint: str | None, timeout: float) -> Any:
    try:
        import s3fs
    except ImportError as error:
        raise ConfigError("s3://", "the package s3fs", str(error), "pip install s3fs") from None
    config = {
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "max_pool_connections": _MAX_CONCURRENT_CALLS,
        "connect_timeout": _CONNECT_S,
        "read_timeout": timeout,
    }
    file_system = s3fs.S3FileSystem(
        endpoint_url=endpoint, config_kwargs=config, use_listings_cache=False, skip_instance_cache=True
    )
    file_system.retries = 1
    return file_system


def run_call(
    call: Callable[[Any, dict[str, Any]], Coroutine[Any, Any, Answer]], arguments: dict[str, Any]
) -> Answer:
    """Run `call` in the event loop of s3fs as soon as a slot for a call is free, and return its result."""
    from fsspec.asyn import sync

    file_system = client()
    with _call_slots:
        answer: Answer = sync(file_system.loop, call, file_system, arguments)
    return answer


async def call_api(file_system: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the response of one call of the S3 API.

    The time limit allows for an upload of the body. It is enforced here, because the HTTP client's own
    timeout does not apply to a PUT that waits for its response after `100 Continue`.

    Args:
        file_system: that of s3fs.
        arguments: arguments of the call, and its name as "verb".

    Raises:
        TimeoutError: the call took longer than the limit.
    """
    limit = (
        positive_number("MANTA_STORE_TIMEOUT_S", _ANSWER_S)
        + len(arguments.get("Body", b"")) / _SLOWEST_UPLOAD
    )
    parameters = {name: value for name, value in arguments.items() if name != "verb"}
    response = file_system._call_s3(arguments["verb"], **parameters)
    call = asyncio.ensure_future(asyncio.wait_for(response, limit))
    while not (await asyncio.wait([call], timeout=_KEEP_ALIVE_S))[0]:
        keep_alive()  # this process waits and does not hang: an upload that is too slow ends at the limit
    return dict(call.result())


async def read_object(file_system: Any, arguments: dict[str, Any]) -> bytes:
    """Read an object. The transfer may take any time as long as bytes keep arriving.

    Raises:
        ConnectionResetError: fewer bytes arrived than the response announced.
    """
    answer = await call_api(file_system, {"verb": "get_object", **arguments})
    chunks = []
    async with answer["Body"] as stream:
        while chunk := await stream.read(_CHUNK):
            chunks.append(chunk)
            keep_alive()
    content = b"".join(chunks)
    if len(content) != answer["ContentLength"]:
        raise ConnectionResetError(f"received {len(content)} of {answer['ContentLength']} bytes")
    return content
