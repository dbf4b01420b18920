"""The ids of addresses are the ids that were written with them."""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import DataError
from pipeline.index.files.ids import Ids, write_ids


def unit(ordinal: int, rows: np.ndarray, id_type: pa.DataType) -> pa.Table:
    """Make the ids table of a unit."""
    names = (
        pa.array([ordinal * 1_000 + row for row in rows.tolist()])
        if pa.types.is_integer(id_type)
        else pa.array([f"{ordinal}/{row}" for row in rows.tolist()])
    )
    return pa.table({"address": pa.array((ordinal << 32) | rows), "id": names, "twice": pa.array(2 * rows)})


@pytest.mark.parametrize("id_type", [pa.int64(), pa.string()])
def test_rows_are_returned_in_the_requested_order(id_type, tmp_path):
    rng = np.random.default_rng(0)
    units = [
        unit(ordinal, np.sort(rng.choice(1_000, size=int(rng.integers(1, 300)), replace=False)), id_type)
        for ordinal in (0, 1, 5, 6, 40)
    ]
    write_ids(tmp_path / "b.arrow", units[3:])
    write_ids(tmp_path / "a.arrow", units[:3])
    written = Ids([tmp_path / "b.arrow", tmp_path / "a.arrow"])  # files in any order
    everything = pa.concat_tables(units)
    assert len(written) == len(everything)
    for rows in (rng.integers(0, len(everything), 500), np.array([], dtype=np.int64), np.array([3, 3])):
        expected = everything.take(pa.array(rows))
        found = written.take(expected["address"].to_numpy())
        assert found.column_names == ["id", "twice"]
        assert found.to_pylist() == expected.drop_columns(["address"]).to_pylist()


@pytest.mark.parametrize("address", [-1, 3, 1 << 32, 10**18])
def test_an_unknown_address_is_named(address, tmp_path):
    write_ids(tmp_path / "a.arrow", [unit(0, np.array([1, 2, 4]), pa.string())])
    with pytest.raises(DataError, match="the id of unit"):
        Ids([tmp_path / "a.arrow"]).take(np.array([2, address]))


def test_a_plain_reader_sees_ascending_addresses(tmp_path):
    write_ids(
        tmp_path / "a.arrow", [unit(2, np.array([0, 7]), pa.string()), unit(9, np.array([1]), pa.string())]
    )
    table = pa.ipc.open_file(tmp_path / "a.arrow").read_all()
    assert table["address"].to_pylist() == [2 << 32, (2 << 32) + 7, (9 << 32) + 1]


@pytest.mark.parametrize(
    "units",
    [
        [unit(1, np.array([0]), pa.string()), unit(0, np.array([0]), pa.string())],
        [unit(0, np.array([3, 3]), pa.string())],
        [unit(0, np.array([1]), pa.string()), unit(1, np.array([1]), pa.int64())],
        [],
    ],
)
def test_invalid_ids_are_not_written(units, tmp_path):
    with pytest.raises(DataError, match=r"a\.arrow"):
        write_ids(tmp_path / "a.arrow", units)


@pytest.mark.parametrize("content", [b"", b"ARROW1\0\0 and then nothing"])
def test_a_file_without_ids_is_named(content, tmp_path):
    (tmp_path / "bad.arrow").write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.arrow"):
        Ids([tmp_path / "bad.arrow"])
    with pa.ipc.new_file(tmp_path / "other.arrow", pa.schema([("x", pa.int64())])):
        pass
    with pytest.raises(DataError, match="columns address"):
        Ids([tmp_path / "other.arrow"])


def test_a_full_check_refuses_offsets_outside_the_file(tmp_path: Path):
    """Craft a file with a valid sha256, from which taking a row would read memory outside the file."""
    data, lengths = pa.py_buffer(b"abc"), np.array([0, 1, 1_000_000, 3], dtype=np.int32)
    ids = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(lengths), data])
    table = pa.table({"address": pa.array([1, 2, 3]), "id": ids})
    with pa.ipc.new_file(str(tmp_path / "crafted.arrow"), table.schema) as writer:
        writer.write_batch(table.to_batches()[0])
    ids_of_file = Ids([tmp_path / "crafted.arrow"])
    with pytest.raises(DataError, match="expected an Arrow IPC file"):
        ids_of_file.validate()


def test_a_row_without_an_address_is_refused(tmp_path: Path):
    table = pa.table({"address": pa.array([1, None, 3], pa.int64()), "id": ["a", "b", "c"]})
    with pa.ipc.new_file(str(tmp_path / "null.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="a row without an address"):
        Ids([tmp_path / "null.arrow"])


class _Counted:
    """A condition that is true for even ids; counts the rows of its evaluations."""

    def __init__(self, seconds_per_row: float = 0.0, seconds: float = 0.0) -> None:
        self.rows: list[int] = []
        self._seconds_per_row, self._seconds = seconds_per_row, seconds

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        self.rows.append(len(rows))
        time.sleep(self._seconds + self._seconds_per_row * len(rows))
        return pa.array([int(each.as_py().removeprefix("row-")) % 2 == 0 for each in rows["id"]])


def test_a_condition_is_evaluated_in_slices_that_grow_and_can_be_ended_between_them(tmp_path: Path):
    tables = [
        pa.table({"address": (number << 32) + np.arange(500), "id": [f"row-{row}" for row in range(500)]})
        for number in range(3)
    ]
    write_ids(tmp_path / "ids.arrow", tables)
    ids, condition = Ids([tmp_path / "ids.arrow"]), _Counted()
    found = np.concatenate(list(ids.matching(condition)))
    expected = [(number << 32) + row for number in range(3) for row in range(0, 500, 2)]
    assert found.tolist() == expected
    assert (sum(condition.rows), condition.rows[0]) == (1_500, 1)
    long = _Counted(seconds=0.03)
    assert np.concatenate(list(ids.matching(long))).tolist() == expected
    assert len(long.rows) < 20, "the time that a condition takes without any row does not count"
    slow, calls = _Counted(seconds_per_row=0.03), []

    def proceed() -> None:
        calls.append(None)
        if len(calls) == 6:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        list(ids.matching(slow, proceed))
    assert sum(slow.rows) < 30, "a row that takes long is evaluated nearly alone"


def test_a_full_check_refuses_an_address_of_two_rows(tmp_path: Path):
    for name in ("a.arrow", "b.arrow"):
        write_ids(tmp_path / name, [unit(1, np.array([3, 4]), pa.string())])
    ids_of_files = Ids([tmp_path / "a.arrow", tmp_path / "b.arrow"])
    with pytest.raises(DataError, match="expected each address once, ascending"):
        ids_of_files.validate()
