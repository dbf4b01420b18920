"""Delete files of Iceberg tables that are damaged."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from tests.text.corpus.lake_tables import delete_by_positions, delete_by_puffin, rows
from tests.text.corpus.table_nights import IcebergNights, data_file


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
