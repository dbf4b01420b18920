"""Throttling is tried again, by the code or class of each client library; a missing file is not."""

import errno
import pickle
from types import SimpleNamespace
from typing import Any

import aiohttp
import azure.core.exceptions
import botocore.exceptions
import botocore.parsers
import gcsfs.retry
import google.auth.exceptions
import httpx
import huggingface_hub.errors
import pyarrow as pa
import pytest
import requests

from pipeline.errors import ConfigError, DataError, MissingFile, TransientError
from pipeline.store.files.retry import StoreRefusal, answer_of, is_transient, retrying
from pipeline.text.sources.storage_errors import storage_errors


def s3_answer(code: str, status: int) -> Exception:
    response: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(response, "PutObject")


def azure_answer(status: int, code: str = "") -> Exception:
    error = azure.core.exceptions.HttpResponseError("an answer")
    error.status_code = status
    error.error_code = code  # type: ignore[attr-defined]
    return error


def aiohttp_answer(status: int) -> Exception:
    request: Any = SimpleNamespace(real_url="http://x")
    return aiohttp.ClientResponseError(request, (), status=status)


def hub_answer(status: int) -> Exception:
    response = httpx.Response(status, request=httpx.Request("GET", "http://x"))
    return huggingface_hub.errors.HfHubHTTPError("an answer", response=response)


def translated(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


SLOW = botocore.exceptions.ClientError(
    {"Error": {"Code": "SlowDown", "Message": "Please reduce your request rate."}}, "PutObject"
)
DENIED = botocore.exceptions.ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject")


@pytest.mark.parametrize(
    "error",
    [
        SLOW,
        OSError("When reading information for key 'x': AWS Error SLOW_DOWN during HeadObject operation"),
        ConnectionResetError(),
        TimeoutError(),
        botocore.exceptions.EndpointConnectionError(endpoint_url="http://x"),
        OSError(16, "Please reduce your request rate."),
        OSError("An error occurred (503) when calling the PutObject operation"),
        s3_answer("SlowDown", 400),
        s3_answer("", 503),
        translated(OSError(22, "a body that ended early"), s3_answer("IncompleteBody", 400)),
        azure_answer(503, "ServerBusy"),
        azure_answer(500, "OperationTimedOut"),
        gcsfs.retry.HttpError({"code": 429, "message": "rateLimitExceeded"}),
        aiohttp_answer(502),
        hub_answer(504),
        botocore.exceptions.ReadTimeoutError(endpoint_url="http://x"),
        botocore.exceptions.ConnectionClosedError(endpoint_url="http://x"),
        botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
        botocore.parsers.ResponseParserError("half a page"),
        aiohttp.ServerDisconnectedError(),
        translated(aiohttp.ClientPayloadError("a body that ended early"), aiohttp_answer(400)),
        azure.core.exceptions.ServiceRequestError("no connection"),
        azure.core.exceptions.ServiceResponseError("no answer"),
        azure.core.exceptions.IncompleteReadError("half a body"),
        gcsfs.retry.ChecksumError(),
        google.auth.exceptions.TransportError("no connection"),
        requests.exceptions.ProxyError(),  # gcsfs raises it for the status 502
        requests.exceptions.ReadTimeout(),
        httpx.ConnectError("no connection"),
        httpx.ReadTimeout("no answer"),
        pa.ArrowException("AWS Error NETWORK_CONNECTION during GetObject operation"),
    ],
    ids=repr,
)
def test_temporary_errors_are_transient(error: Exception):
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        DENIED,
        FileNotFoundError("timeout.parquet"),
        PermissionError("503"),
        KeyError("x"),
        OSError(28, "No space left on device"),
        OSError(28, "No space left on device", "units/vectors/8a503f.parquet"),
        OSError(28, "No space left on device", "timeout.parquet"),
        OSError(28, "No space left on device", "503"),
        s3_answer("InvalidRequest", 400),
        translated(OSError(5, "timeout is no parameter of this call"), s3_answer("InvalidArgument", 400)),
        azure_answer(403, "AuthorizationFailure"),
        OSError("Forbidden: bucket/timeouts/a.parquet\nno access"),  # gcsfs raises it for the status 403
        gcsfs.retry.HttpError({"code": 401, "message": "a timeout in the words of a refusal"}),
        aiohttp_answer(404),
        hub_answer(401),
        ValueError("timeout must be positive"),
        RuntimeError("cannot connect two graphs"),
    ],
    ids=repr,
)
def test_permanent_errors_are_final(error: Exception):
    assert not is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        s3_answer("QuotaExceeded", 403),
        s3_answer("XMinioStorageFull", 507),
        translated(OSError(5, "Insufficient Storage"), s3_answer("507", 507)),
    ],
    ids=repr,
)
def test_a_full_store_is_not_a_fault_of_the_settings(error: Exception):
    def call() -> None:
        raise error

    with pytest.raises(TransientError, match=r"expected space for a new object, .*run again"):
        retrying(call, "s3://bucket/key")
    assert not is_transient(error), "it is not repeated for two minutes"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (
            translated(PermissionError(1, "not allowed"), s3_answer("MethodNotAllowed", 405)),
            "MethodNotAllowed",
        ),
        (translated(OSError(22, "bad"), s3_answer("BadDigest", 400)), "BadDigest"),
        (azure_answer(400, "InvalidHeaderValue"), "InvalidHeaderValue"),
        (aiohttp_answer(411), "411"),
        (translated(PermissionError(1, "state"), s3_answer("InvalidBucketState", 409)), "InvalidBucketState"),
    ],
    ids=repr,
)
def test_an_unknown_refusal_names_the_request_and_its_code(error: Exception, code: str):
    """It would seem to be an error of a disk, or a defect, far from the request."""

    def call() -> None:
        raise error

    with pytest.raises(
        ConfigError, match=f"s3://b/k: expected a request that the store accepts, found {code}: "
    ):
        retrying(call, "s3://b/k")
    with (
        pytest.raises(DataError, match=f"s3://b/k: expected a readable file, found {code}: "),
        storage_errors("s3://b/k"),
    ):
        retrying(call, "s3://b/k")


@pytest.mark.parametrize("status", [412, 416, 501, 505])
def test_a_refusal_has_its_status_for_callers_that_understand_it(status: int):
    answer = translated(OSError(22, "no"), s3_answer("Code", status))

    def call() -> None:
        raise answer

    with pytest.raises(StoreRefusal, match="s3://b/k: expected a request that the store accepts") as caught:
        retrying(call, "s3://b/k")
    assert caught.value.status == status
    assert (caught.value.exit_code, answer_of(caught.value)) == (2, ("", status))


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("k"),
        translated(FileNotFoundError("no such key"), s3_answer("NoSuchKey", 404)),
        azure_answer(404, "BlobNotFound"),
        aiohttp_answer(404),
    ],
    ids=repr,
)
def test_a_missing_object_is_named_for_callers_that_do_not_expect_it(error: Exception):
    """Most callers expect it, and catch FileNotFoundError."""

    def call() -> None:
        raise error

    with pytest.raises(FileNotFoundError) as caught:
        retrying(lambda: retrying(call, "s3://b/k"), "s3://b")
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, MissingFile)
    assert (
        str(again)
        == "s3://b/k: expected a stored file, found no such file; see what removes files there, and run again"
    )
    assert (again.exit_code, again.errno, again.filename) == (75, errno.ENOENT, "s3://b/k")


def test_the_code_and_the_status_of_an_answer_are_those_of_its_library():
    assert answer_of(s3_answer("SlowDown", 503)) == ("SlowDown", 503)
    assert answer_of(translated(OSError(16, "words"), s3_answer("SlowDown", 503))) == ("SlowDown", 503)
    assert answer_of(azure_answer(503, "ServerBusy")) == ("ServerBusy", 503)
    assert answer_of(gcsfs.retry.HttpError({"code": 429})) == ("", 429)
    assert answer_of(aiohttp_answer(502)) == answer_of(hub_answer(502)) == ("", 502)
    assert answer_of(TimeoutError()) == answer_of(SystemExit(2)) == ("", 0)


def test_a_failing_call_is_repeated_until_it_succeeds():
    answers = iter([SLOW, ConnectionResetError(), "there"])

    def call() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert retrying(call, "s3://bucket/x") == "there"


def test_after_the_deadline_the_error_names_store_and_last_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MANTA_STORE_DEADLINE_S", "0.3")

    def call() -> None:
        raise SLOW

    with pytest.raises(TransientError, match=r"s3://bucket/x.*SlowDown") as caught:
        retrying(call, "s3://bucket/x")
    assert caught.value.exit_code == 75
