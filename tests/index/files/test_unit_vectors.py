"""Raw vectors are found by address, although units leave out rows without a vector."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.index.files.unit_vectors import UnitVectors
from pipeline.store.files.base import sha256_of
from pipeline.store.files.open_store import open_store
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.rows.schema import vector_column, vectors_schema, writer_options

ROWS, DIM = 40, 6
DROPPED = {2: (0, 7, 8), 5: (39,)}
VECTORS = np.random.default_rng(0).normal(size=(8, ROWS, DIM)).astype(np.float32)


@pytest.fixture
def units(tmp_path: Path) -> list[VectorUnit]:
    """Two units whose vectors are in row groups of eight rows."""
    (tmp_path / "units").mkdir()
    schema = vectors_schema(pa.field("id", pa.int64()), (), DIM, "space", "float32")
    stored = []
    for ordinal, dropped in DROPPED.items():
        rows = np.delete(np.arange(ROWS), dropped)
        columns = [
            rows,
            [b"0" * 16] * len(rows),
            vector_column(VECTORS[ordinal, rows], schema.field("vector")),
        ]
        table = pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)
        file = tmp_path / "units" / f"{ordinal}.parquet"
        pq.write_table(table, file, row_group_size=8, **writer_options(schema))
        stored.append(
            VectorUnit(
                ordinal=ordinal,
                path=f"units/{ordinal}.parquet",
                rows=len(rows),
                bytes=file.stat().st_size,
                sha256=sha256_of(file),
                space_id="space",
                numerics_id="",
                corpus=FileRef(path="", sha256=""),
                dropped=dropped,
                record="",
            )
        )
    return stored


def test_vectors_are_those_of_the_addresses(units, tmp_path):
    table = UnitVectors(open_store(tmp_path), units)
    for rows in ({2: [1, 6, 9, 38], 5: [0, 38]}, {5: [20]}, {2: [39]}):
        addresses = [ordinal << 32 | row for ordinal, numbers in rows.items() for row in numbers]
        expected = np.concatenate([VECTORS[ordinal, numbers] for ordinal, numbers in rows.items()])
        np.testing.assert_array_equal(table.take(np.array(addresses)), expected)
        assert table.read_bytes(np.array(addresses)) == sum(
            Path(tmp_path, f"units/{ordinal}.parquet").stat().st_size for ordinal in rows
        )


def test_a_unit_that_is_missing_or_damaged_is_named(units, tmp_path):
    table = UnitVectors(open_store(tmp_path), units)
    assert table.read_bytes(np.array([3 << 32])) is None
    file = tmp_path / "units" / "2.parquet"
    file.write_bytes(file.read_bytes()[:-9] + b"123456789")
    with pytest.raises(DataError, match=r"2\.parquet"):
        table.take(np.array([2 << 32 | 1]))
    file.unlink()
    with pytest.raises(DataError, match=r"2\.parquet: expected a unit of the release, found no such file"):
        table.take(np.array([2 << 32 | 1]))
