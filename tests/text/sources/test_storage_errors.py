"""An error of a store's own client ends with a sentence and the exit code of its kind, whatever the cloud."""

from typing import Any

import azure.core.exceptions
import botocore.exceptions
import gcsfs.retry
import google.auth.exceptions
import pytest
from s3fs.errors import translate_boto_error

from pipeline.errors import PipelineError
from pipeline.text.sources.storage_errors import storage_errors

URI = "az://corpus/a.parquet"


def azure_error(kind: type[Any], status: int, code: str) -> Exception:
    error = kind("an answer")
    error.status_code, error.error_code = status, code
    return error  # type: ignore[no-any-return]


def s3_error(code: str, status: int) -> OSError:
    """Return the error that s3fs makes of an answer."""
    response: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    cause = botocore.exceptions.ClientError(response, "GetObject")
    error = translate_boto_error(cause)
    error.__cause__ = cause
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (s3_error("AccessDenied", 403), 2),
        (s3_error("ExpiredToken", 400), 2),
        (s3_error("AuthorizationHeaderMalformed", 400), 2),
        (s3_error("301", 301), 2),  # to HEAD
        (s3_error("400", 400), 2),
        (s3_error("SlowDown", 503), 75),
        (PermissionError(13, "a file of this machine"), 3),
        (azure_error(azure.core.exceptions.ClientAuthenticationError, 403, "AuthenticationFailed"), 2),
        (azure_error(azure.core.exceptions.HttpResponseError, 404, "ContainerNotFound"), 2),
        (azure_error(azure.core.exceptions.HttpResponseError, 409, "BlobArchived"), 3),
        (azure_error(azure.core.exceptions.HttpResponseError, 503, "ServerBusy"), 75),
        (azure.core.exceptions.ServiceRequestError("no connection"), 75),
        (gcsfs.retry.HttpError({"code": 401, "message": "Invalid Credentials"}), 2),
        (gcsfs.retry.HttpError({"code": 400, "message": "User project missing"}), 3),
        (gcsfs.retry.ChecksumError("half an object"), 75),
        (google.auth.exceptions.DefaultCredentialsError("none"), 2),
        (google.auth.exceptions.RefreshError("expired"), 2),
        (google.auth.exceptions.TransportError("no connection"), 75),
        (botocore.exceptions.NoCredentialsError(), 2),
    ],
    ids=repr,
)
def test_errors_of_clients_have_a_sentence_and_an_exit_code(error: Exception, code: int):
    with pytest.raises(PipelineError, match=r"az://corpus/a\.parquet") as caught, storage_errors(URI):
        raise error
    assert caught.value.exit_code == code


def test_a_defect_is_not_an_error_of_storage():
    with pytest.raises(ZeroDivisionError), storage_errors(URI):
        raise ZeroDivisionError
