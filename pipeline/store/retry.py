"""Transient storage errors are tried again with full jitter until a deadline; everything else goes up at once, in words where words are known.

This is the only place that tries again: the S3 client is set to make each call once (pipeline.store.s3), so the times of several layers do not multiply.
"""

import errno
import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from pipeline.errors import ConfigError, TransientError
from pipeline.headway import headway

T = TypeVar("T")

_DEADLINE_S = 120.0  # an outage longer than this is the operator's to see; the run resumes where it stopped
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0

# botocore's codes and pyarrow's, aiohttp's and s3fs's sentences for the same events
_WORDS = (
    *(
        "slowdown",
        "slow_down",
        "reduce your request rate",
        "throttl",
        "requestlimitexceeded",
        "requesttimeout",
        "request timeout",
        "timed out",
        "timeout",
    ),
    *(
        "toomanyrequests",
        "too many requests",
        "bandwidthlimitexceeded",
        "transactioninprogress",
        "conditionalrequestconflict",
        "operationaborted",
    ),
    *(
        "internalerror",
        "internal_failure",
        "internal error",
        "serviceunavailable",
        "service unavailable",
        "service_unavailable",
    ),
    *("502", "503", "504", "bad gateway"),
    *(
        "connection reset",
        "connection aborted",
        "connection was closed",
        "connection closed",
        "could not connect",
        "cannot connect",
        "network_connection",
    ),
    *(
        "broken pipe",
        "incompleteread",
        "incompletebody",
        "server disconnected",
        "serverdisconnected",
        "payload is not completed",
        "contentlengtherror",
    ),
    *(
        "clientpayloaderror",
        "httpclienterror",
        "responsestreamingerror",
        "responseparsererror",
        "contentsha256mismatch",
        "checksumerror",
    ),
    *("temporarily unavailable", "curlcode", "connectionclosederror", "endpointconnectionerror"),
)
_NUMBERS = {
    *(
        errno.EAGAIN,
        errno.EBUSY,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ETIMEDOUT,
        errno.EPIPE,
    ),
    *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ESTALE),
}
_LIBRARIES = ("botocore", "aiobotocore", "aiohttp", "pyarrow", "builtins")
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
_AGAIN = {408, 425, 429, 500, 502, 503, 504}

_CREDENTIALS = (
    "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the machine's role, and what it is allowed"
)
_REFUSALS = {
    "AccessDenied": ("access", _CREDENTIALS),
    "403": ("access", _CREDENTIALS),
    "AllAccessDisabled": ("access", _CREDENTIALS),
    "InvalidAccessKeyId": ("valid credentials in the environment", _CREDENTIALS),
    "SignatureDoesNotMatch": ("valid credentials in the environment", _CREDENTIALS),
    "ExpiredToken": ("credentials that have not expired", "renew them, then run again"),
    "InvalidToken": ("a valid session token", "renew AWS_SESSION_TOKEN"),
    "RequestTimeTooSkewed": ("a clock that agrees with the store's", "set this machine's clock"),
    "NoSuchBucket": ("a bucket that exists", "check its name, or create it"),
    "InvalidBucketName": ("the name of a bucket", "correct the URI"),
    "PermanentRedirect": ("the region of the bucket", "set AWS_DEFAULT_REGION"),
    "AuthorizationHeaderMalformed": ("the region of the bucket", "set AWS_DEFAULT_REGION"),
}


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: throttling, time-outs, lost connections, server errors."""
    if isinstance(error, _FINAL):
        return False
    code, status = answer_of(error)
    if status in _AGAIN:
        return True
    if isinstance(error, (ConnectionError, TimeoutError)) or (
        isinstance(error, OSError) and error.errno in _NUMBERS
    ):
        return True
    text = f"{type(error).__name__} {code} {error}".lower()
    return type(error).__module__.split(".")[0] in _LIBRARIES and any(word in text for word in _WORDS)


def answer_of(error: BaseException) -> tuple[str, int]:
    """(the S3 server's code, the HTTP status) behind an error; empty and 0 where it does not come from an answer."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict) and "Error" in response:
            return str(response["Error"].get("Code", "")), int(
                response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            )
    return "", 0


def retrying(call: Callable[[], T], where: str, *, deadline_s: float | None = None) -> T:
    """What `call` returns. A transient error repeats it after a pause drawn from [0, doubling ceiling]; past the deadline it is a TransientError.

    The deadline is MANTA_STORE_DEADLINE_S (120). ConfigError where the store refuses the credentials or has no such bucket.
    """
    start, ceiling = time.monotonic(), _FIRST_PAUSE_S
    limit = seconds("MANTA_STORE_DEADLINE_S", _DEADLINE_S) if deadline_s is None else deadline_s
    while True:
        try:
            answer = call()
            headway()
            return answer
        except Exception as error:
            if not is_transient(error):
                if refusal := _refusal(error, where):
                    raise refusal from None
                raise
            pause = random.uniform(0, ceiling)
            if time.monotonic() + pause - start > limit:
                found, remedy = (
                    f"{type(error).__name__}: {error}",
                    "check the store and run again: finished work is kept",
                )
                raise TransientError(where, f"an answer within {limit:g} s", found, remedy) from error
            headway()  # the deadline bounds how often
            time.sleep(pause)
            ceiling = min(2 * ceiling, _LONGEST_PAUSE_S)


def seconds(variable: str, usual: float) -> float:
    """The environment's figure, or the usual one; ConfigError for one that is no positive number."""
    given = os.environ.get(variable)
    try:
        value = float(given) if given else usual
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(
            variable, "a positive number", repr(given), "correct the environment variable, or unset it"
        )
    return value


def _refusal(error: Exception, where: str) -> ConfigError | None:
    """What an operator can mend, in words."""
    code, _ = answer_of(error)
    if code in _REFUSALS:
        expected, remedy = _REFUSALS[code]
        return ConfigError(where, expected, f"{code}: {error}", remedy)
    if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        return ConfigError(
            where, "credentials in the environment", f"{type(error).__name__}: {error}", _CREDENTIALS
        )
    return None
