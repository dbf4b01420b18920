"""Requests to databases hold rows up to a size, whatever part of a row is large."""

import contextlib
import errno
import itertools
import json
import resource
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, TransientError
from pipeline.targets.requests import in_requests, is_refusal
from pipeline.targets.target import TARGETS, Target
from tests.targets.search_server import running
from tests.targets.tables import beginning, table_of

LIMIT = 8 << 20
TEXT = "\u6587" * 5_000  # 15 kB


@pytest.mark.hypothesis
@given(
    st.lists(st.integers(0, LIMIT + 5) | st.sampled_from([LIMIT // 2, LIMIT]), max_size=30), st.integers(1, 6)
)
def test_a_request_has_as_many_items_as_fit(sizes: list[int], most: int):
    items = list(enumerate(sizes))
    requests = list(in_requests(items, lambda item: item[1], most=most))
    assert [item for request in requests for item in request] == items
    for request, following in itertools.zip_longest(requests, requests[1:]):
        total = sum(size for _, size in request)
        assert len(request) == 1 or (len(request) <= most and total <= LIMIT)
        assert following is None or len(request) == most or total + following[0][1] > LIMIT


class Request(NamedTuple):
    """Keys of the rows of one request, and the bytes of its longest part."""

    rows: int
    part_bytes: int


def _request(points: Any = None, data: Any = None, points_selector: Any = None, **others: Any) -> Request:
    if points is not None:
        return Request(len(points.ids), sum(len(row["words"].encode()) for row in points.payloads))
    if data is not None:
        return Request(len(data), sum(len(row["words"].encode()) for row in data))
    if points_selector is not None:
        return Request(len(points_selector.points), sum(map(len, points_selector.points)))
    return Request(len(json.loads(others["filter"].removeprefix("id in "))), len(others["filter"]))


@pytest.fixture(params=["qdrant", "milvus"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Target, list[Request]]]:
    """A target whose client sends nothing, and the list of the requests it was given."""
    pytest.importorskip({"qdrant": "qdrant_client", "milvus": "milvus_lite"}[request.param])
    target: Any = TARGETS[request.param](str(tmp_path / "rows.db"), "rows")
    requests: list[Request] = []
    for method in ("upsert", "delete"):
        setattr(target._client, method, lambda _, **sent: requests.append(_request(**sent)))
    with contextlib.closing(target):
        yield target, requests


def test_long_kept_texts_make_more_requests(recorded: tuple[Target, list[Request]]):
    target, requests = recorded
    target.upsert(table_of(list(range(1_400)), words=pa.array(1_400 * [TEXT])))  # 21 MB
    assert sum(request.rows for request in requests) == 1_400
    assert max(request.part_bytes for request in requests) <= LIMIT
    assert len(requests) < 8


@pytest.mark.parametrize(
    "ids",
    [[f"row-{number}" for number in range(20_000)], [f"{number:040000}" for number in range(500)]],
    ids=["many", "long"],
)
def test_ids_are_deleted_in_several_requests(recorded: tuple[Target, list[Request]], ids: list[str]):
    target, requests = recorded
    target.delete(pa.array(ids))
    assert sum(request.rows for request in requests) == len(ids)
    assert max(request.rows for request in requests) <= 8_192
    assert max(request.part_bytes for request in requests) <= 1.01 * LIMIT  # the filter has a few more


@pytest.mark.parametrize(
    ("kind", "module"), [("opensearch", "opensearchpy"), ("elasticsearch", "elasticsearch")]
)
def test_bulk_requests_are_cut_by_bytes(kind: str, module: str):
    pytest.importorskip(module)
    rows = table_of(list(range(600)), words=pa.array(600 * [TEXT]))  # 18 MB as JSON, in ASCII
    with running() as server, contextlib.closing(TARGETS[kind](server.uri, "rows")) as target:
        target.create(rows.schema, beginning(rows))
        target.upsert(rows)
        assert target.count() == 600
        assert len(server.bulk_bytes) == 3
        assert max(server.bulk_bytes) <= LIMIT


def test_a_refusal_is_an_answer_that_does_not_change_when_the_request_is_repeated():
    statuses = [None, *range(100, 600)]
    try_again = {408, 425, 429}  # RFC 9110, 8470, 6585
    assert [each for each in statuses if is_refusal(each)] == [
        each for each in range(400, 500) if each not in try_again
    ]


def test_codes_of_errors_decide_whether_an_export_is_worth_repeating(tmp_path: Path):
    exceptions = pytest.importorskip("pymilvus").exceptions
    with contextlib.closing(TARGETS["milvus"](str(tmp_path / "rows.db"), "rows")) as target:
        for error, expected in (
            (exceptions.MilvusException(1100, "invalid parameter"), ConfigError),
            (exceptions.MilvusException(1, "failed", is_input_error=True), ConfigError),
            (exceptions.ParamError(message="a wrong type"), ConfigError),
            (exceptions.MilvusException(8, "rate limit"), TransientError),
            (exceptions.ConnectError(message="no route"), TransientError),
        ):
            assert isinstance(target.explain(error), expected), error
        assert target.explain(KeyError("a defect")) is None


def test_storage_that_refuses_lancedb_is_not_asked_again(tmp_path: Path):
    pytest.importorskip("lancedb")
    target = TARGETS["lancedb"](str(tmp_path), "rows")
    for text in ("Generic S3 error: 403 Forbidden", "AccessDenied", "Permission denied (os error 13)"):
        assert isinstance(target.explain(OSError(text)), ConfigError)
        assert isinstance(target.explain(RuntimeError(text)), ConfigError)
    assert isinstance(target.explain(ValueError("columns do not match")), ConfigError)
    assert isinstance(target.explain(OSError("connection reset by peer")), TransientError)


@pytest.mark.parametrize("kind", ["lancedb", "parquet", "qdrant"])
def test_a_target_that_is_or_leads_through_a_file_is_refused(kind: str, tmp_path: Path):
    pytest.importorskip({"lancedb": "lancedb", "parquet": "pyarrow", "qdrant": "qdrant_client"}[kind])
    (tmp_path / "file").write_text("a file")
    for uri in ("file", "file/below"):
        with pytest.raises(ConfigError, match=f"{tmp_path}/{uri}: expected a (directory|writable folder)"):
            TARGETS[kind](str(tmp_path / uri), "rows")


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), TransientError, "space for a new file"),
        (OSError(errno.EFBIG, "File too large"), TransientError, "space for a new file"),
        (
            RuntimeError("lance error: No space left on device (os error 28)"),
            TransientError,
            "space for a new",
        ),
        (OSError(errno.EROFS, "Read-only file system"), ConfigError, "a writable folder"),
        (sqlite3.OperationalError("database or disk is full"), TransientError, "disk is full"),
    ],
)
def test_errors_of_a_disk_say_so(tmp_path: Path, error: Exception, expected: type[Exception], words: str):
    pytest.importorskip("qdrant_client")
    target = TARGETS["qdrant"](str(tmp_path), "rows")
    with contextlib.closing(target), pytest.raises(expected, match=words), target.explained():
        raise error


def test_a_step_that_cannot_be_written_does_not_hide_why(tmp_path: Path):
    target = TARGETS["parquet"](str(tmp_path), "rows")
    target.create(pa.schema([("id", pa.int64())]), beginning(table_of([0])))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    words = pa.array(np.random.default_rng(0).bytes(1 << 20 - 1) for _ in range(4))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(TransientError, match="space for a new file"), target.explained():
            target.upsert(pa.table({"id": words}))
        target.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.rglob("*.parquet"))
