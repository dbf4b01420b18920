"""Rows that delete files of Iceberg tables list, and damaged files."""

import json
import os
import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

from pipeline.errors import DataError
from pipeline.text.sources import delete_files
from pipeline.text.sources.delete_files import data_files_of, deleted_rows
from pipeline.text.sources.lake_file import DeleteFile
from tests.text.ingest.lake_tables import delete_by_positions, delete_by_puffin, rows
from tests.text.ingest.table_nights import IcebergNights, data_file


@pytest.mark.parametrize("damage", ["cut", "one bit", "no vector", "empty", "other columns"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_damaged_delete_file_is_an_error_that_names_it(tmp_path, damage, shared):
    nights = IcebergNights(tmp_path, rows(range(4)))
    nights.table.append(rows(range(4, 8)))
    first, second = data_file(nights, 0), data_file(nights, 4)
    deleted = {first.file_path: [1, 3]} | ({second.file_path: [0]} if shared else {})
    (delete_by_positions if damage == "other columns" else delete_by_puffin)(nights.table, deleted, first)
    (path,) = [*nights.root.rglob("*.puffin"), *nights.root.rglob("delete-*.parquet")]
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[content.find(b"PFA1", 4) - 6] ^= 1  # another row of the last vector, before its checksum
    if damage == "other columns":
        pq.write_table(pa.table({"row": [1]}), path)
    else:
        unnamed = content.replace(b"referenced-data-file", b"referenced-data-elif")
        damaged = {"cut": content[:-9], "one bit": bytes(flipped), "no vector": unnamed, "empty": b""}
        path.write_bytes(damaged[damage])
    with pytest.raises(DataError, match=r"expected a delete file of the table, found a damaged one") as error:
        nights.night()
    assert error.value.where == str(path)


@pytest.mark.parametrize("count", [0, 1, 5_000])
@pytest.mark.parametrize("limit", [-1, 1 << 20])
def test_positions_are_those_that_are_listed_for_a_data_file(tmp_path, monkeypatch, limit, count):
    monkeypatch.setattr(delete_files, "_MAX_CACHED_ROWS", limit)
    draw = np.random.default_rng(0)
    paths = [f"/data/{number}" for number in draw.integers(0, 20, count)]
    positions = draw.integers(0, 1 << 40, count)
    positions[count // 2 :] = positions[: count - count // 2]  # some twice
    path = tmp_path / "delete.parquet"
    pq.write_table(
        pa.table({"file_path": pa.array(paths, pa.string()), "pos": positions}), path, row_group_size=700
    )
    file = DeleteFile(str(path), path.stat().st_size, is_puffin=False)
    for location in [f"/data/{number}" for number in range(21)]:
        expected = sorted({int(row) for name, row in zip(paths, positions, strict=True) if name == location})
        assert deleted_rows(file, location, 1 << 40).tolist() == expected


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_a_data_file_without_rows_has_no_deleted_rows_and_each_position_a_data_file(
    tmp_path, monkeypatch, limit
):
    monkeypatch.setattr(delete_files, "_MAX_CACHED_ROWS", limit)
    files = []
    for name, path in (("whole", "/b"), ("null", None)):
        pq.write_table(pa.table({"file_path": ["/a", path], "pos": [3, 1]}), tmp_path / f"{name}.parquet")
        files.append(DeleteFile(str(tmp_path / f"{name}.parquet"), 9, is_puffin=False))
    assert deleted_rows(files[0], "/empty", 0).tolist() == []
    with pytest.raises(DataError, match="a file_path that is null"):
        deleted_rows(files[1], "/a", 4)
    with pytest.raises(DataError, match="a file_path that is null"):
        data_files_of(files[1])


def test_a_file_of_positions_is_read_once_for_several_data_files(tmp_path):
    path = tmp_path / "delete.parquet"
    pq.write_table(pa.table({"file_path": ["/a", "/b", "/a"], "pos": [3, 1, 2]}), path)
    file = DeleteFile(str(path), path.stat().st_size, is_puffin=False)
    assert deleted_rows(file, "/a", 4).tolist() == [2, 3]
    path.unlink()
    assert deleted_rows(file, "/b", 4).tolist() == [1]


def test_a_damaged_vector_of_another_data_file_is_not_decoded(tmp_path):
    nights = IcebergNights(tmp_path, rows(range(4)))
    file = data_file(nights, 0)
    delete_by_puffin(nights.table, {file.file_path: [1, 3], "file:///zz": [5]}, file)
    (path,) = nights.root.rglob("*.puffin")
    content = bytearray(path.read_bytes())
    content[content.find(b"PFA1", 4) - 6] ^= 1  # in the last vector
    path.write_bytes(content)
    assert nights.checked().rows == 2


def test_a_vector_of_runs_is_not_unpacked_beyond_the_rows_of_its_data_file(tmp_path):
    nights = IcebergNights(tmp_path, rows(range(4)))
    file = data_file(nights, 0)
    delete_by_puffin(nights.table, {file.file_path: range(3, 2**32)}, file)
    (path,) = nights.root.rglob("*.puffin")
    with pytest.raises(DataError, match=r"row 4,294,967,295 of a data file of 4 rows") as caught:
        nights.night()
    assert caught.value.where == str(path)


@pytest.mark.parametrize("rows_before", [0, 1])
def test_a_deletion_vector_of_a_huge_row_is_refused_before_it_is_unpacked(tmp_path, rows_before):
    key = struct.pack("<i", 2**31 - 1)
    bitmaps = [struct.pack("<i", 0) + BitMap([7]).serialize()] * rows_before + [key + BitMap([1]).serialize()]
    body = struct.pack("<iq", 1_681_511_377, len(bitmaps)) + b"".join(bitmaps)
    blob = struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    properties = {"referenced-data-file": "/a", "cardinality": "1"}
    place = {"offset": 4, "length": len(blob), "properties": properties}
    footer = json.dumps(
        {
            "blobs": [
                {"type": "deletion-vector-v1", "fields": [], "snapshot-id": 1, "sequence-number": 1} | place
            ]
        }
    ).encode()
    path = tmp_path / "vectors.puffin"
    path.write_bytes(
        b"PFA1" + blob + b"PFA1" + footer + struct.pack("<i", len(footer)) + b"\0\0\0\0" + b"PFA1"
    )
    with pytest.raises(DataError, match=r"row 9,223,372,032,559,808,513 of a data file"):
        deleted_rows(DeleteFile(str(path), path.stat().st_size, is_puffin=True), "/a", 1 << 36)


def test_a_pipe_in_place_of_a_delete_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "delete.parquet")
    with pytest.raises(DataError, match="a pipe, a device or a socket"):
        deleted_rows(DeleteFile(str(tmp_path / "delete.parquet"), 9, is_puffin=False), "/a", 4)
