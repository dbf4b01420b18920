"""Arrow schemas of stored units, and conversions between vector columns and matrices."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import SpaceMismatch
from pipeline.store.rows.arrays import one_chunk

SPACE_ID, DIM = b"manta.space_id", b"manta.dim"
KEY = pa.binary(16)
_RESERVED_NAMES = {"id", "text", "text_key", "file", "row"}
_PREFIX = "kept."  # prefix of the names of kept columns whose own name is reserved

QUARANTINE = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # -1: the file as a whole
        pa.field("id", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string()),
        pa.field("excerpt", pa.string()),  # at most 200 characters of the text
    ]
)


def stored_name(column: str) -> str:
    """Return the name of a kept column in corpus units: its name in the input, or kept.<name> if reserved."""
    return f"{_PREFIX}{column}" if column in _RESERVED_NAMES or column.startswith(_PREFIX) else column


def original_name(stored: str) -> str:
    """Return the name of a kept column in the input: the inverse of `stored_name`."""
    return stored.removeprefix(_PREFIX)


def corpus_schema(id_type: pa.DataType, kept: Sequence[pa.Field] = ()) -> pa.Schema:
    """Return the schema of corpus units.

    The columns are the id, the normalized text, the text's content key, the kept columns (named by
    `stored_name`), and the input file and row that the text came from.
    """
    return pa.schema(
        [
            pa.field("id", id_type, nullable=False),
            pa.field("text", pa.large_string(), nullable=False),
            pa.field("text_key", KEY, nullable=False),
            *(field.with_name(stored_name(field.name)) for field in kept),
            pa.field("file", pa.string(), nullable=False),
            pa.field("row", pa.int64(), nullable=False),
        ]
    )


def vectors_schema(
    id_field: pa.Field, kept: Sequence[pa.Field], dim: int, space_id: str, dtype: str = "float32"
) -> pa.Schema:
    """Return the schema of embedding units.

    The columns are the id (named as in the input), the text's content key, the raw vector (of `dim` elements,
    not nullable), and the kept columns.

    Args:
        id_field: name and type of the id column.
    """
    element = pa.field("element", pa.float16() if dtype == "float16" else pa.float32(), nullable=False)
    return pa.schema(
        [
            pa.field(id_field.name, id_field.type, nullable=False),
            pa.field("text_key", KEY, nullable=False),
            pa.field("vector", pa.list_(element, dim), nullable=False),
            *kept,
        ],
        metadata={SPACE_ID: space_id.encode(), DIM: str(dim).encode()},
    )


def vector_column(vectors: np.ndarray, field: pa.Field) -> pa.Array:
    """Return (n, dim) vectors as a FixedSizeList array of the field's type."""
    numbers = np.ascontiguousarray(vectors, dtype=field.type.value_type.to_pandas_dtype()).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers), type=field.type)


def vector_matrix(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return a FixedSizeList column as (n, dim), without a copy if it has one chunk."""
    array = one_chunk(column)
    return array.flatten().to_numpy(zero_copy_only=True).reshape(-1, array.type.list_size)


def vectors_at(source: pq.ParquetFile, rows: np.ndarray) -> np.ndarray:
    """Read vectors (n, d) float32 at ascending rows, with one row group in memory at a time."""
    vectors, start = [], 0
    for number in range(source.num_row_groups):
        end = start + source.metadata.row_group(number).num_rows
        wanted = rows[(rows >= start) & (rows < end)] - start
        if len(wanted):
            column = source.read_row_group(number, columns=["vector"])["vector"]
            vectors.append(vector_matrix(column)[wanted].astype(np.float32, copy=False))
        start = end
    return np.concatenate(vectors)


def writer_options(schema: pa.Schema) -> dict[str, object]:
    """Return the Parquet options for a schema. Vectors are not compressed: it would save no space."""
    return {
        "compression": "NONE" if "vector" in schema.names else "zstd",
        "use_dictionary": False,
        "write_statistics": False,
        "store_schema": True,
    }


def check_space(file: pq.ParquetFile, name: str, space_id: str) -> pq.ParquetFile:
    """Return `file`. Raises SpaceMismatch, naming `name`, if its vectors are of another space."""
    found = (file.schema_arrow.metadata or {}).get(SPACE_ID, b"none").decode()
    if found != space_id:
        raise SpaceMismatch(
            name,
            f"vectors of space {space_id}",
            f"space {found}",
            "vectors of two spaces cannot be compared: encode again",
        )
    return file
