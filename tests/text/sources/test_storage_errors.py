"""An error of a store's own client ends with a sentence and the exit code of its kind, whatever the cloud."""

from typing import Any

import azure.core.exceptions
import botocore.exceptions
import gcsfs.retry
import google.auth.exceptions
import pytest

from pipeline.errors import PipelineError
from pipeline.text.sources.storage_errors import storage_errors

URI = "az://corpus/a.parquet"


def azure_error(kind: type[Any], status: int, code: str) -> Exception:
    error = kind("an answer")
    error.status_code, error.error_code = status, code
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("error", "code"),
    [
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
