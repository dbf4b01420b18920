"""The sample of a unit: some of its rows with ids and vectors, in one small file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.write_once import store_table_by_content
from pipeline.store.rows.schema import (
    check_space,
    vector_column,
    vector_matrix,
    vectors_at,
    writer_options,
)

_SIZES = b"manta.sample_sizes"


@dataclass(frozen=True, eq=False)
class UnitSample:
    """Rows of a unit, chosen by hash of id."""

    sizes: Mapping[str, int]
    """salt of the hash -> number of rows chosen with it; the sample holds the rows of all salts together"""
    rows: np.ndarray
    """(n,) int64, numbers of the rows in the unit, ascending"""
    ids: pa.ChunkedArray
    """(n,), their ids"""
    vectors: np.ndarray
    """(n, d) float32"""

    @classmethod
    def load(cls, store: Store, reference: FileRef, space_id: str) -> "UnitSample":
        """Load the sample that `store_sample` stored, with one request.

        Raises:
            DataError: the file was changed.
            SpaceMismatch: its vectors are of another space.
        """
        file = pq.ParquetFile(pa.BufferReader(reference.read(store)))
        table = check_space(file, reference.path, space_id).read()
        vectors = vector_matrix(table["vector"]).astype(np.float32, copy=False)
        sizes = json.loads(file.schema_arrow.metadata[_SIZES])
        return cls(sizes, table["row"].to_numpy(), table["id"], vectors)


def store_sample(
    store: Store, unit: pq.ParquetFile, rows: np.ndarray, sizes: Mapping[str, int], stem: str
) -> FileRef:
    """Store rows of a unit as its sample, in a file named `stem`-<digest>.

    Args:
        unit: the unit, whose first column is the id.
        rows: numbers of the rows (n,), ascending, n > 0.
        sizes: number of rows chosen with each salt.
    """
    schema = unit.schema_arrow
    id_field, vector_field = schema.field(0), schema.field("vector")
    ids = unit.read(columns=[id_field.name])[id_field.name].take(pa.array(rows))
    metadata = {**(schema.metadata or {}), _SIZES: json.dumps(sizes, sort_keys=True).encode()}
    fields = [id_field.with_name("id"), pa.field("row", pa.int64(), nullable=False), vector_field]
    columns = [ids, pa.array(rows, pa.int64()), vector_column(vectors_at(unit, rows), vector_field)]
    table = pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=metadata))
    return store_table_by_content(store, table, stem, **writer_options(table.schema))
