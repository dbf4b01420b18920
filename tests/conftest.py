"""Fixtures for all tests: an S3 server on loopback, and a proxy before it that fails on purpose."""

import os
from collections.abc import Iterator

import pytest

from tests.faults import FaultyProxy
from tests.server import s3_server


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """URI of a bucket on a server that speaks S3 over HTTP; endpoint and credentials are in the environment while it runs."""
    with s3_server("manta-tests") as (uri, _):
        yield uri


@pytest.fixture
def faulty(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy before the S3 server, without faults at first. Stores that this process opens go through it; set its `faults`."""
    with FaultyProxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy
