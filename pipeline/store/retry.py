"""Transient storage errors are tried again with full jitter until a deadline; everything else goes up at once."""

import errno
import random
import time
from collections.abc import Callable
from typing import TypeVar

from pipeline.errors import TransientError

T = TypeVar("T")

_DEADLINE_S = 120.0             # an outage longer than this is the operator's to see; the run resumes where it stopped
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0

# botocore's codes and pyarrow's and s3fs's sentences for the same events
_WORDS = (
    *("slowdown", "slow_down", "reduce your request rate", "throttl", "requestlimitexceeded", "requesttimeout", "request timeout", "timed out", "timeout"),
    *("internalerror", "internal_failure", "internal error", "serviceunavailable", "service unavailable", "service_unavailable"),
    *("502", "503", "504", "bad gateway"),
    *("connection reset", "connection aborted", "connection was closed", "could not connect", "network_connection", "broken pipe", "incompleteread"),
    *("temporarily unavailable", "curlcode"),
)
_NUMBERS = {
    *(errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EPIPE),
    *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ESTALE),
}
_LIBRARIES = ("botocore", "aiobotocore", "aiohttp", "pyarrow", "builtins")
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: throttling, time-outs, lost connections, server errors."""
    if isinstance(error, _FINAL):
        return False
    if isinstance(error, (ConnectionError, TimeoutError)) or (isinstance(error, OSError) and error.errno in _NUMBERS):
        return True
    text = f"{type(error).__name__} {error}".lower()
    return type(error).__module__.split(".")[0] in _LIBRARIES and any(word in text for word in _WORDS)


def retrying(call: Callable[[], T], where: str, *, deadline_s: float = _DEADLINE_S) -> T:
    """What `call` returns. A transient error repeats it after a pause drawn from [0, doubling ceiling]; past the deadline it is a TransientError."""
    start, ceiling = time.monotonic(), _FIRST_PAUSE_S
    while True:
        try:
            return call()
        except Exception as error:
            if not is_transient(error):
                raise
            pause = random.uniform(0, ceiling)
            if time.monotonic() + pause - start > deadline_s:
                found, remedy = f"{type(error).__name__}: {error}", "check the store and run again: finished work is kept"
                raise TransientError(where, f"an answer within {deadline_s:.0f} s", found, remedy) from error
            time.sleep(pause)
            ceiling = min(2 * ceiling, _LONGEST_PAUSE_S)
