"""The digest of a row's kept columns depends on the values of this row alone."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from pipeline.text.key_tables.keys import carried_keys

UUIDS = pa.array([bytes(16), 16 * b"\xff", None, 16 * b"a"], pa.binary(16)).cast(pa.uuid())


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"text", b"\xff\x00", None, b""]),
        pa.array([b"text", b"\xff\x00", None, b""], pa.large_binary()),
        pa.array([b"four", b"\xff\x00ab", None], pa.binary(4)),
        UUIDS,
        pa.ListArray.from_arrays(pa.array(range(5), pa.int32()), UUIDS),
        pa.array([1.5, -0.0, 0.0, float("nan"), None]),
        pa.array([{"a": 1}, {"a": None}, None]),
        pa.array([["x"], [], [None], None], pa.list_(pa.string())),
        pa.array([[0], [10**7], [10**7, 0], [10**7 + 1], None], pa.list_(pa.date32())),  # beyond year 9999
    ],
)
def test_the_digest_of_a_row_does_not_depend_on_other_rows(column: pa.Array):
    rows = pa.table({"kept": column})
    together = carried_keys(rows, ["kept"]).to_pylist()
    alone = [carried_keys(rows.slice(number, 1), ["kept"])[0].as_py() for number in range(len(column))]
    assert together == alone
    assert len(set(together)) == len(column)


@pytest.mark.parametrize(
    "shape", [lambda times: times, lambda times: pa.StructArray.from_arrays([times], ["at"])]
)
@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_the_digest_of_a_time_does_not_depend_on_its_zone(shape: Callable[[pa.Array], pa.Array], unit: str):
    instants = pa.array([0, 1, -(10**14), None], pa.int64())
    digests = [
        carried_keys(pa.table({"kept": shape(instants.cast(pa.timestamp(unit, zone)))}), ["kept"]).to_pylist()
        for zone in ("UTC", "utc", "Europe/Berlin", "UTC+01:00", "Nowhere/At all")
    ]
    assert digests == 5 * digests[:1]
    assert len(set(digests[0])) == 4
