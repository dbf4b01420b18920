"""Retry storage operations after transient errors, with full jitter, until a deadline.

No other module retries: the S3 client makes each call once (pipeline.store.files.s3), so that the retries of
several layers do not multiply. Only the drivers of other clouds repeat calls by themselves. No option turns
that off, so a time limit ends these calls (pipeline.store.files.clouds).
"""

import errno
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from pipeline.errors import ConfigError, MissingFile, PipelineError, TransientError
from pipeline.keep_alive import keep_alive

T = TypeVar("T")

# A longer outage ends the run with an error; the next run resumes where this one stopped.
_DEADLINE_S = 120.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0

# Codes of answers that ask for another attempt, whatever their HTTP status; botocore retries most of these.
_TRANSIENT_CODES = {
    "BandwidthLimitExceeded",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "TooManyRequestsException",
    "TransactionInProgressException",
    "XAmzContentSHA256Mismatch",
}
_TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504}
# Errors of client libraries, as library.Class: lost connections, timeouts, and incomplete bodies.
_TRANSIENT_TYPES = {
    "aiohttp.ClientConnectionError",
    "aiohttp.ClientPayloadError",
    "azure.IncompleteReadError",
    "azure.ServiceRequestError",
    "azure.ServiceResponseError",
    "botocore.ChecksumError",
    "botocore.ConnectionError",
    "botocore.FlexibleChecksumError",
    "botocore.HTTPClientError",
    "botocore.IncompleteReadError",
    "botocore.ResponseParserError",
    "gcsfs.ChecksumError",
    "google.TransportError",
    "httpx.NetworkError",
    "httpx.ProxyError",
    "httpx.RemoteProtocolError",
    "httpx.TimeoutException",
    "requests.ChunkedEncodingError",
    "requests.ConnectionError",
    "requests.Timeout",
}
_CLIENTS = {kind.partition(".")[0] for kind in _TRANSIENT_TYPES}
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
# Errors of Arrow, and errors of the system without a number, have neither a code nor a class of their own.
_TRANSIENT_PHRASES = re.compile(
    r"slow.?down|reduce your request rate|throttl|too.?many.?requests|time.?out|timed out"
    r"|internal.?(error|failure)|service.?unavailable|temporarily unavailable|bad gateway"
    r"|network_connection|curlcode|broken pipe|connection (reset|aborted|closed|was closed)"
    r"|(could not|cannot) connect|server disconnected"
    r"|\b50[234]\b",  # a number by itself, not digits in the name of a file
    re.IGNORECASE,
)
_NEVER_TRANSIENT = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)

_CREDENTIALS = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the machine's role and its permissions"
_AZURE_CREDENTIALS = "check AZURE_STORAGE_CONNECTION_STRING and the permissions"
_GOOGLE_CREDENTIALS = "check GOOGLE_APPLICATION_CREDENTIALS and the permissions"
# Error code, or class of an error -> (expected, remedy) for errors that only the user can resolve.
_REFUSALS = {
    "AccessDenied": ("access", _CREDENTIALS),
    # Answers to HEAD have no body: their status is the code.
    "403": ("access", _CREDENTIALS),
    "301": ("the region of the bucket", "set AWS_DEFAULT_REGION"),
    "400": (
        "a request that the store accepts",
        "renew credentials that have expired, or set AWS_DEFAULT_REGION to the region of the bucket",
    ),
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
    # Azure
    "AccountIsDisabled": ("access", _AZURE_CREDENTIALS),
    "AuthenticationFailed": ("valid credentials in the environment", _AZURE_CREDENTIALS),
    "AuthorizationFailure": ("access", _AZURE_CREDENTIALS),
    "AuthorizationPermissionMismatch": ("access", _AZURE_CREDENTIALS),
    "InsufficientAccountPermissions": ("access", _AZURE_CREDENTIALS),
    "NoAuthenticationInformation": ("credentials in the environment", _AZURE_CREDENTIALS),
    "ContainerNotFound": ("a container that exists", "check its name, or create it"),
    "InvalidResourceName": ("the name of a container", "correct the URI"),
    # Google Cloud, whose driver keeps only the status
    "HttpError 403": ("access", _GOOGLE_CREDENTIALS),
    "HttpError 401": ("valid credentials in the environment", _GOOGLE_CREDENTIALS),
    "DefaultCredentialsError": ("credentials in the environment", _GOOGLE_CREDENTIALS),
    "RefreshError": ("valid credentials in the environment", _GOOGLE_CREDENTIALS),
    # Classes of botocore, raised before a request is sent.
    "NoCredentialsError": ("credentials in the environment", _CREDENTIALS),
    "PartialCredentialsError": ("credentials in the environment", _CREDENTIALS),
    "CredentialRetrievalError": ("credentials in the environment", _CREDENTIALS),
}

# Codes of MinIO, Ceph and others for a full store or bucket; 507 is the code of answers without a body.
_FULL = {"QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507"}


@dataclass(eq=False)
class StoreRefusal(ConfigError):
    """Raised if a store refuses a request for a reason that this module does not know."""

    status: int = 0
    """HTTP status of the answer, for callers that understand some: 412 for a condition that is not met"""


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed, as after throttling, timeouts, lost connections, server errors.

    The first of the following that the error has decides: the answer of a store, a known class, an error
    number, the words of a refusal in the message, other known words in it.
    """
    if isinstance(error, _NEVER_TRANSIENT):
        return False
    code, status = answer_of(error)
    if code or status:
        return code in _TRANSIENT_CODES or status in _TRANSIENT_STATUSES
    if isinstance(error, (ConnectionError, TimeoutError)) or _TRANSIENT_TYPES & _classes_of(error):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _TRANSIENT_ERRNOS
    has_words_only = type(error) is OSError or type(error).__module__.startswith("pyarrow")
    return has_words_only and not refusal(error, "") and bool(_TRANSIENT_PHRASES.search(str(error)))


def answer_of(error: BaseException) -> tuple[str, int]:
    """Return the error code and the HTTP status of the answer that caused an error; ("", 0) if none did."""
    for answered in (error, error.__cause__):  # s3fs raises Python's errors; their cause is botocore's
        response = getattr(answered, "response", None)
        if isinstance(response, dict) and "Error" in response:
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return str(response["Error"].get("Code", "")), int(status)
    response = getattr(error, "response", None)
    owners = {"status_code": (error, response), "status": (error,), "code": (error,)}
    for name, holders in owners.items():  # azure, requests and httpx; aiohttp; gcsfs
        for holder in holders:
            status = getattr(holder, name, None)
            if isinstance(status, int) and 400 <= status < 600:
                code = getattr(error, "error_code", None) or ""
                return str(getattr(code, "value", code)), status
    return "", 0


def is_of_client(error: BaseException) -> bool:
    """Return whether a client of a store, or a library that it uses, defines the class of an error."""
    return any(kind.partition(".")[0] in _CLIENTS for kind in _classes_of(error))


def _classes_of(error: BaseException) -> set[str]:
    """Return the classes of an error as library.Class, without importing the libraries."""
    return {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}


def retrying(call: Callable[[], T], where: str) -> T:
    """Return the result of `call`, repeating it after transient errors until the deadline.

    The deadline is MANTA_STORE_DEADLINE_S seconds after the first attempt (default 120). The pause before
    each retry is drawn uniformly between 0 and a ceiling that doubles each time ("full jitter", M. Brooker,
    AWS Architecture Blog 2015), so that workers that fail together do not retry together.

    Args:
        call: the storage operation.
        where: URI or path for error messages.

    Raises:
        TransientError: the operation still fails at the deadline, or the store is full.
        MissingFile: there is no such object.
        ConfigError: the store refuses the credentials or the request, or the bucket does not exist.
    """
    start, ceiling = time.monotonic(), _FIRST_PAUSE_S
    limit = positive_number("MANTA_STORE_DEADLINE_S", _DEADLINE_S)
    while True:
        try:
            answer = call()
            keep_alive()
            return answer
        except PipelineError:
            raise
        except Exception as error:
            if not is_transient(error):
                if refused := refusal(error, where) or _unknown_refusal(error, where):
                    raise refused from None
                if isinstance(error, FileNotFoundError) or answer_of(error)[1] == HTTPStatus.NOT_FOUND:
                    raise MissingFile.at(where) from error
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


def refusal(error: BaseException, where: str) -> ConfigError | TransientError | None:
    """Return the error for a refusal that the user can resolve; None for any other error."""
    code, status = answer_of(error)
    if code in _FULL or status == HTTPStatus.INSUFFICIENT_STORAGE:
        return TransientError(
            where,
            "space for a new object",
            f"{code or status}: {error}",
            "free space in the store (manta releases prune), or raise its quota, and run again: finished "
            "work is kept",
        )
    code = code or (f"{type(error).__name__} {status}" if status else type(error).__name__)
    if str(error).startswith("Forbidden: "):  # gcsfs, for the status 403
        code = "HttpError 403"
    if code not in _REFUSALS:
        return None
    expected, remedy = _REFUSALS[code]
    return ConfigError(where, expected, f"{code}: {error}", remedy)


def _unknown_refusal(error: BaseException, where: str) -> StoreRefusal | None:
    """Return the error for another answer that no retry changes; None for a missing object."""
    code, status = answer_of(error)
    if status in (0, HTTPStatus.NOT_FOUND) or isinstance(error, FileExistsError):
        return None
    found = f"{code or status}: {error}"
    return StoreRefusal(
        where,
        "a request that the store accepts",
        found,
        "check the permissions and the store's settings",
        status,
    )
