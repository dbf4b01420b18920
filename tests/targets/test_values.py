"""Values of kept columns become values of JSON; none becomes the text of a Python object."""

import base64
import json
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest

from pipeline.targets.values import json_rows

UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1.5, float("nan"), float("-inf"), None]), [1.5, None, None, None]),
        (pa.array([True, False, None]), [True, False, None]),
        (pa.array([2**62, -1, None]), [2**62, -1, None]),
        (pa.array([b"\x00\xff", b"", None]), ["AP8=", "", None]),
        (pa.array([[b"a"], None]), [["YQ=="], None]),
        (
            pa.array([[("a", 1), ("b", None)], []], pa.map_(pa.string(), pa.int32())),
            [[["a", 1], ["b", None]], []],
        ),
        (pa.array([{"a": [float("nan")], "b": b"x"}]), [{"a": [None], "b": "eA=="}]),
        (pa.array([UUID.bytes, None], pa.uuid()), [str(UUID), None]),
        (pa.array([0, 1, None], pa.date32()), ["1970-01-01", "1970-01-02", None]),
        (pa.array([1_500], pa.timestamp("ms", "UTC")), ["1970-01-01T00:00:01.500000+00:00"]),
        (pa.array([1_000_000_001], pa.timestamp("ns")), ["1970-01-01T00:00:01"]),
        (pa.array([[1_001], None], pa.list_(pa.timestamp("ns"))), [["1970-01-01T00:00:00.000001"], None]),
        (pa.array([{"at": 1_001}], pa.struct([("at", pa.time64("ns"))])), [{"at": "00:00:00.000001"}]),
        (pa.array([[1_001]], pa.list_(pa.duration("ns"))), [[1e-6]]),
        (
            pa.array([1, 253_402_300_800], pa.timestamp("s", "Nowhere/At all")),
            ["1970-01-01T00:00:01+00:00", "10000-01-01T00:00:00Z"],
        ),
        (
            pa.array([253_402_300_800, 0, None], pa.timestamp("s")),
            ["10000-01-01T00:00:00", "1970-01-01T00:00:00", None],
        ),
        (pa.array([253_402_300_799], pa.timestamp("s", "Europe/Berlin")), ["10000-01-01T00:59:59+0100"]),
        (pa.array([10**7], pa.date32()), ["29349-01-26"]),
        (pa.array([[10**7, 0], None], pa.list_(pa.date32())), [["29349-01-26", "1970-01-01"], None]),
        (
            pa.array([{"a": 10**7, "b": 1}], pa.struct({"a": pa.date32(), "b": pa.int8()})),
            [{"a": "29349-01-26", "b": 1}],
        ),
        (pa.array([61], pa.time32("s")), ["00:01:01"]),
        (pa.array([1_500], pa.duration("ms")), [1.5]),
        (pa.array([Decimal("1.10")], pa.decimal128(5, 2)), ["1.10"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_values_become_those_of_json(column: pa.Array, expected: list):
    rows = list(json_rows(pa.table({"id": range(len(column)), "kept": column})))
    assert json.loads(json.dumps(rows, allow_nan=False)) == [
        {"id": number, "kept": value} for number, value in enumerate(expected)
    ]


def test_bytes_come_back_from_base64():
    [row] = json_rows(pa.table({"kept": [bytes(range(256))]}))
    assert base64.b64decode(row["kept"], validate=True) == bytes(range(256))
