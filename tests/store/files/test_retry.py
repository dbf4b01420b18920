"""Throttling is tried again, in the words of every client library; a missing file is not."""

import botocore.exceptions
import pytest

from pipeline.errors import TransientError
from pipeline.store.files.retry import is_transient, retrying

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
    ],
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
    ],
)
def test_permanent_errors_are_final(error: Exception):
    assert not is_transient(error)


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
