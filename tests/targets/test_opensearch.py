"""The real clients of OpenSearch and Elasticsearch, with a server that refuses what does not fit a field."""

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from pipeline.errors import ConfigError, DataError, TransientError
from pipeline.targets.target import TARGETS, Target
from tests.targets.search_server import SearchServer, running
from tests.targets.tables import DIM, beginning, table_of

NAMES = ["2026-01-01", "no date", None]  # the first one looks like a date
STRUCT = pa.struct([("day", pa.string()), ("size", pa.float64())])
COLUMNS = {
    "name": (pa.string(), NAMES, "text"),
    "names": (pa.list_(pa.string()), [["2026-01-01"], ["no date"], None], "text"),
    "large": (pa.large_string(), NAMES, "text"),
    "price": (pa.float64(), [1.5, 1e300, float("nan")], "double"),
    "size": (pa.float32(), [1.5, 2.5, None], "float"),
    "count": (pa.int64(), [1, -(2**63), None], "long"),
    "key": (pa.uint64(), [1, 2**64 - 1, None], "unsigned_long"),
    "is_new": (pa.bool_(), [True, False, None], "boolean"),
    "seen": (pa.timestamp("ns", "UTC"), [datetime(2026, 1, 1, tzinfo=UTC), None, None], "date"),
    "day": (pa.date32(), [date(2026, 1, 1), None, None], "date"),
    "hour": (pa.time64("us"), [time(1, 2, 3), None, None], "keyword"),
    "length": (pa.duration("s"), [timedelta(seconds=90), None, None], "double"),
    "amount": (pa.decimal128(20, 2), [Decimal("1.10"), Decimal("2026"), None], "keyword"),
    "content": (pa.binary(), [b"\xff", b"", None], "binary"),
    "pair": (STRUCT, [{"day": "2026-01-01", "size": 1.0}, {"day": "x", "size": 1e300}, None], "object"),
    "words": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], None], "object"),
}


@pytest.fixture(params=["opensearch", "elasticsearch"])
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of target whose client is installed."""
    pytest.importorskip({"opensearch": "opensearchpy"}.get(request.param, request.param))
    return str(request.param)


@pytest.fixture
def server() -> Iterator[SearchServer]:
    """A server without indices."""
    with running() as started:
        yield started


@pytest.fixture
def target(kind: str, server: SearchServer) -> Iterator[Target]:
    """The target `rows` of the server."""
    with contextlib.closing(TARGETS[kind](server.uri, "rows")) as opened:
        yield opened


def test_fields_have_the_types_of_the_columns(target: Target, server: SearchServer):
    kept = {name: pa.array(values, type=kind) for name, (kind, values, _) in COLUMNS.items()}
    rows = table_of(["2026-01-01", "b", "c"], **kept)
    target.create(rows.schema, beginning(rows))
    target.upsert(rows)
    index = server.indices["rows"]
    assert index.mappings["dynamic"] == "strict"
    types = {name: field["type"] for name, field in index.mappings["properties"].items()}
    vector = types.pop("vector")
    assert vector in ("knn_vector", "dense_vector")
    assert types == {"id": "keyword", **{name: field for name, (_, _, field) in COLUMNS.items()}}
    assert index.mappings["properties"]["pair"]["properties"]["size"] == {"type": "double"}
    assert [document["name"] for document in index.documents.values()] == NAMES
    assert [document["price"] for document in index.documents.values()] == [1.5, 1e300, None]
    assert index.documents["b"]["key"] == 2**64 - 1
    assert len(index.documents["b"]["vector"]) == DIM


def test_a_row_that_the_index_refuses_is_named(target: Target, server: SearchServer):
    rows = table_of(["a", "b"], count=pa.array([1, 2]))
    target.create(rows.schema, beginning(rows))
    with pytest.raises(DataError, match=r"a row that the index can store, b.*strict_dynamic_mapping"):
        target.upsert(table_of(["b"], other=pa.array([1])))


def test_an_index_that_another_program_deletes_is_noticed(target: Target, server: SearchServer):
    rows = table_of(["a", "b"])
    target.create(rows.schema, beginning(rows))
    target.upsert(rows)
    target.delete(pa.array(["a", "not there"]))
    assert target.count() == 1
    del server.indices["rows"]
    for call in (lambda: target.upsert(rows), lambda: target.delete(pa.array(["b"]))):
        with pytest.raises(TransientError, match="index_not_found"):
            call()


def test_an_alias_is_refused(target: Target, server: SearchServer):
    rows = table_of(["a"])
    target.create(rows.schema, beginning(rows))
    server.aliases["rows"] = "docs-1"
    server.indices["docs-1"] = server.indices.pop("rows")
    with pytest.raises(ConfigError, match="expected an index, found an alias of docs-1"):
        target.position()


def test_the_position_outlives_the_client(kind: str, target: Target, server: SearchServer):
    rows, position = table_of(["a"]), beginning(table_of(["a"]))
    assert target.position() is None
    target.create(rows.schema, position)
    after = position.model_copy(update={"steps": 2})
    target.store_position(after)
    with contextlib.closing(TARGETS[kind](server.uri, "rows")) as opened:
        assert opened.position() == after
    assert json.loads(server.indices["rows"].mappings["_meta"]["manta"])["steps"] == 2
    server.indices["rows"].mappings["_meta"] = {}
    with pytest.raises(DataError, match="index of another program"):
        target.position()
