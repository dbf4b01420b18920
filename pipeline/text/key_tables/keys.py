"""Schemas, hashes and buckets of a corpus's two tables: its rows by id, and the rows of its units by text."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.store.files.base import Store, sha256_of
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.rows.arrays import one_chunk, python_values
from pipeline.store.rows.nested import map_values
from pipeline.store.rows.schema import KEY, writer_options
from pipeline.text.key_tables.line_numbers import are_first, parents_of
from pipeline.text.normalize import blake2b_digests, is_utf8

BUCKET_ROWS = 1 << 18  # largest average number of rows of a bucket: some 25 MB with short string ids

_ROW_BITS = 40  # lower bits of a line's identity, for the row; the file's index has the upper bits
_TEXT_KEY = pa.field("text_key", KEY, nullable=False)
TEXTS = pa.schema([_TEXT_KEY, pa.field("address", pa.int64(), nullable=False)])
"""Schema of the rows of units by text."""
COPIES = pa.schema(
    [pa.field("row", pa.int32(), nullable=False), pa.field("source", pa.int64(), nullable=False)]
)
"""Schema of a new unit's rows whose text was encoded before, each with the address of that earlier row."""


def keys_schema(id_type: pa.DataType) -> pa.Schema:
    """Return the schema of the rows by id, sorted by (id, file, row) within a bucket.

    Column `carried` is a digest of the kept columns. `address` is the row's address in a unit; it is null if
    an earlier row has the same id. `row` is the number of a line; see `line_numbers`.
    """
    return pa.schema(
        [
            pa.field("id", id_type, nullable=False),
            _TEXT_KEY,
            pa.field("carried", KEY),
            pa.field("file", pa.string(), nullable=False),
            pa.field("row", pa.int64(), nullable=False),
            pa.field("address", pa.int64()),
        ]
    )


def line_identities(files: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return (n,) int64: one number for each pair of a file's index and a row.

    The numbers are in the order of the pairs (file, row). A negative index gives a negative number.

    >>> line_identities(np.array([0, 1]), np.array([5, 0])).tolist()
    [5, 1099511627776]
    """
    return files.astype(np.int64) << _ROW_BITS | rows


def document_ids(lines: pa.Table) -> pa.Array:
    """Return the id of each input row as a string, only once for a row that is cut into chunks."""
    numbers = lines["row"].to_numpy()
    first = lines.filter(pa.array(are_first(numbers)))
    return one_chunk(parents_of(first["id"], first["row"].to_numpy()).cast(pa.string()))


def id_hashes(lines: pa.Table) -> np.ndarray:
    """Return (n,) uint64: blake2b-64 of each id as a string; for a chunk, of the id of its row.

    Args:
        lines: lines with the columns id and row.
    """
    ids = parents_of(lines["id"], lines["row"].to_numpy())
    digests = blake2b_digests(one_chunk(ids).cast(pa.string()), 8)
    return np.frombuffer(digests.buffers()[1], dtype=">u8", count=len(digests)).astype(np.uint64)


def text_hashes(lines: pa.Table) -> np.ndarray:
    """Return (n,) uint64: the first half of each text key, which is itself a hash."""
    keys = one_chunk(lines["text_key"])
    words = np.frombuffer(keys.buffers()[1], dtype=">u8", count=2 * len(keys), offset=16 * keys.offset)
    return words[::2].astype(np.uint64)


def carried_keys(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """Return the blake2b-128 of each row's kept columns, which shows whether they have changed.

    All values are null if there are no kept columns.

    >>> rows = pa.table({"price": [1, None, 1], "lang": ["de", "de", "de"]})
    >>> keys = carried_keys(rows, ["price", "lang"])
    >>> keys[0] == keys[2], keys[0] == keys[1]
    (True, False)
    """
    if not names:
        return pa.nulls(rows.num_rows, KEY)
    parts: list[pa.ChunkedArray] = []
    for name in names:  # each value after its length, so that different rows never give equal strings
        value = _as_text(rows[name])
        length = pc.binary_length(value).cast(pa.large_string())
        parts += [pc.fill_null(length, "null"), pc.fill_null(value, "")]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(":", pa.large_string()))
    return blake2b_digests(one_chunk(joined), 16)


def bucket_count(rows: int) -> int:
    """Return the number of buckets for `rows` rows: a bucket has at most BUCKET_ROWS rows on average.

    It is a power of two, so that every bucket lies within one earlier bucket after the number has grown.

    >>> [bucket_count(rows) for rows in (0, BUCKET_ROWS, BUCKET_ROWS + 1, 5 * BUCKET_ROWS)]
    [1, 1, 2, 8]
    """
    return 1 << max(0, (max(rows, 1) - 1) // BUCKET_ROWS).bit_length()


def store_table(store: Store, scratch: Path, table: pa.Table, path: str) -> FileRef:
    """Store a table as a Parquet file at `path`; `scratch` is a local folder."""
    file = scratch / "table.parquet"
    pq.write_table(table.combine_chunks(), file, **writer_options(table.schema))
    reference = FileRef(path=path, sha256=sha256_of(file), rows=table.num_rows, bytes=file.stat().st_size)
    store.put(file, path)
    return reference


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert values to strings: by Arrow, or by `repr` if Arrow cannot.

    The string of a value depends neither on other values of the column nor on its time zone, which may be
    unknown to this machine.
    """
    if pa.types.is_timestamp(column.type) and column.type.tz:
        instants = column.cast(pa.timestamp(column.type.unit)).cast(pa.large_string())
        return pc.binary_join_element_wise(
            instants, *(pa.scalar(each, pa.large_string()) for each in ("Z", ""))
        )
    convert: Callable[[object], str] = repr
    try:
        if not isinstance(column.type, pa.UuidType):  # Arrow casts its bytes to a string if all are UTF-8
            return column.cast(pa.large_string())
    except pa.ArrowNotImplementedError:  # nested values
        pass
    except pa.ArrowInvalid:  # bytes that are not all UTF-8
        convert = _utf8_or_repr
    chunks = [map_values(chunk, _represented_leaf) for chunk in column.chunks]
    values = (value for chunk in chunks for value in python_values(chunk))
    texts = [None if value is None else convert(value) for value in values]
    return pa.chunked_array([pa.array(texts, pa.large_string())])


def _represented_leaf(leaf: pa.Array) -> pa.Array:
    """Return an array of a type for which Python has one representation, with or without pandas."""
    kind = leaf.type
    if isinstance(leaf, pa.ExtensionArray) and not isinstance(kind, pa.UuidType):
        return map_values(leaf.storage, _represented_leaf)
    if pa.types.is_timestamp(kind) and kind.tz:
        return _represented_leaf(leaf.cast(pa.timestamp(kind.unit)))
    return leaf.cast(pa.int64()) if pa.types.is_temporal(kind) and getattr(kind, "unit", "") == "ns" else leaf


def _utf8_or_repr(value: object) -> str:
    return value.decode() if isinstance(value, bytes) and is_utf8(value) else repr(value)
