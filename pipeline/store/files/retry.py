"""Retry storage operations after transient errors, with full jitter, until a deadline.

No other module retries: the S3 client makes each call once (pipeline.store.files.s3), so that the retries of
several layers do not multiply.
"""

import errno
import os
import random
import re
import time
from collections.abc import Callable
from typing import TypeVar

from pipeline.errors import ConfigError, TransientError
from pipeline.keep_alive import keep_alive

T = TypeVar("T")

# A longer outage ends the run with an error; the next run resumes where this one stopped.
_DEADLINE_S = 120.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0

# Error codes and class names of botocore, and parts of messages of pyarrow, aiohttp and s3fs, in lower case.
_TRANSIENT_PHRASES = (
    "slowdown",
    "slow_down",
    "reduce your request rate",
    "throttl",
    "requestlimitexceeded",
    "requesttimeout",
    "request timeout",
    "timed out",
    "timeout",
    "toomanyrequests",
    "too many requests",
    "bandwidthlimitexceeded",
    "transactioninprogress",
    "conditionalrequestconflict",
    "operationaborted",
    "internalerror",
    "internal_failure",
    "internal error",
    "serviceunavailable",
    "service unavailable",
    "service_unavailable",
    "bad gateway",
    "connection reset",
    "connection aborted",
    "connection was closed",
    "connection closed",
    "could not connect",
    "cannot connect",
    "network_connection",
    "broken pipe",
    "incompleteread",
    "incompletebody",
    "server disconnected",
    "serverdisconnected",
    "payload is not completed",
    "contentlengtherror",
    "clientpayloaderror",
    "httpclienterror",
    "responsestreamingerror",
    "responseparsererror",
    "contentsha256mismatch",
    "checksumerror",
    "temporarily unavailable",
    "curlcode",
    "connectionclosederror",
    "endpointconnectionerror",
)
_TRANSIENT_STATUS_WORD = re.compile(r"\b50[234]\b")  # a number by itself, not digits in the name of a file
_TRANSIENT_ERRNOS = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.ETIMEDOUT,
    errno.EPIPE,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ESTALE,
}
# Only errors of these libraries are recognized by phrases; s3fs raises built-in errors.
_LIBRARIES = ("botocore", "aiobotocore", "aiohttp", "pyarrow", "builtins")
_NEVER_TRANSIENT = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)
_TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504}

_CREDENTIALS = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the machine's role and its permissions"
# Error code, or class of an error -> (expected, remedy) for errors that only the user can resolve.
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
    # Classes of botocore, raised before a request is sent.
    "NoCredentialsError": ("credentials in the environment", _CREDENTIALS),
    "PartialCredentialsError": ("credentials in the environment", _CREDENTIALS),
    "CredentialRetrievalError": ("credentials in the environment", _CREDENTIALS),
}


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed: throttling, timeouts, lost connections, server errors."""
    if isinstance(error, _NEVER_TRANSIENT):
        return False
    code, status = s3_error(error)
    if (
        status in _TRANSIENT_STATUSES
        or isinstance(error, (ConnectionError, TimeoutError))
        or (isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS)
    ):
        return True
    if type(error).__module__.split(".")[0] not in _LIBRARIES:
        return False
    text = f"{type(error).__name__} {code} {error}".lower()
    return any(phrase in text for phrase in _TRANSIENT_PHRASES) or bool(_TRANSIENT_STATUS_WORD.search(text))


def s3_error(error: BaseException) -> tuple[str, int]:
    """Return the S3 error code and the HTTP status of an error; ("", 0) if no response caused it."""
    for candidate in (error, error.__cause__):
        response = getattr(candidate, "response", None)
        if isinstance(response, dict) and "Error" in response:
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return str(response["Error"].get("Code", "")), int(status)
    return "", 0


def retrying(call: Callable[[], T], where: str) -> T:
    """Return the result of `call`, repeating it after transient errors until the deadline.

    The deadline is MANTA_STORE_DEADLINE_S seconds after the first attempt (default 120). The pause before
    each retry is drawn uniformly between 0 and a ceiling that doubles each time ("full jitter", M. Brooker,
    AWS Architecture Blog 2015), so that workers that fail together do not return together.

    Args:
        call: the storage operation.
        where: URI or path for error messages.

    Raises:
        TransientError: the operation still fails at the deadline.
        ConfigError: the store refuses the credentials, or the bucket does not exist.
    """
    start, ceiling = time.monotonic(), _FIRST_PAUSE_S
    limit = positive_number("MANTA_STORE_DEADLINE_S", _DEADLINE_S)
    while True:
        try:
            answer = call()
            keep_alive()
            return answer
        except Exception as error:
            if not is_transient(error):
                if refusal := _refusal(error, where):
                    raise refusal from None
                raise
            pause = random.uniform(0, ceiling)
            if time.monotonic() + pause - start > limit:
                raise TransientError(
                    where,
                    f"an answer within {limit:g} s",
                    f"{type(error).__name__}: {error}",
                    "check the store and run again: finished work is kept",
                ) from error
            keep_alive()  # a process that retries does not hang: the deadline limits the retries
            time.sleep(pause)
            ceiling = min(2 * ceiling, _LONGEST_PAUSE_S)


def positive_number(variable: str, default: float) -> float:
    """Return the number in an environment variable, or `default` if it is not set.

    Raises:
        ConfigError: the value is not a positive number.
    """
    setting = os.environ.get(variable)
    try:
        value = float(setting) if setting else default
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(
            variable, "a positive number", repr(setting), "correct the environment variable, or unset it"
        )
    return value


def _refusal(error: Exception, where: str) -> ConfigError | None:
    """Return the error for a refusal that the user can resolve; None for any other error."""
    code = s3_error(error)[0] or type(error).__name__
    if code not in _REFUSALS:
        return None
    expected, remedy = _REFUSALS[code]
    return ConfigError(where, expected, f"{code}: {error}", remedy)
