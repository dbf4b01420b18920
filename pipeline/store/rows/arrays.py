"""Conversions between Arrow arrays, numpy arrays and texts.

They do not import pandas, as `pa.array` and `to_numpy` do if it is installed: the import takes a tenth of the
time of `manta search`.
"""

import functools
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.store.rows.nested import map_type, map_values


def arrow_of(values: np.ndarray) -> pa.Array:
    """Return (n,) numbers as an Arrow array without nulls that shares their memory."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def numpy_of(numbers: pa.Array) -> np.ndarray:
    """Return Arrow numbers without nulls as a read-only numpy array that shares their memory."""
    return np.from_dlpack(numbers)


def one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array; it is copied only if it has several chunks."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def plain_type(encoded: pa.DataType) -> pa.DataType:
    """Return the type without encodings, at all levels, so that Arrow can select, join and store rows.

    Dictionaries and runs become their values, views become strings, binaries and lists, and an extension of
    such a type becomes its plain storage type. Times in a zone that this machine does not know are in UTC:
    they are the same instants.
    """
    return map_type(encoded, _plain_leaf)


def _plain_leaf(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind) and kind.tz and not _is_known_zone(kind.tz):
        return pa.timestamp(kind.unit, "UTC")
    if isinstance(kind, pa.BaseExtensionType):
        storage = plain_type(kind.storage_type)
        return kind if storage == kind.storage_type else storage
    return kind


@functools.lru_cache
def _is_known_zone(name: str) -> bool:
    """Return whether Arrow and Python know a time zone."""
    time = pa.scalar(0, pa.timestamp("s", name))
    try:
        return time.as_py() is not None and time.cast(pa.string()).is_valid
    except (pa.ArrowInvalid, LookupError):
        return False


def plain_values(array: pa.Array) -> pa.Array:
    """Return the values as an array of their `plain_type`."""
    return array if plain_type(array.type) == array.type else map_values(array, _plain_leaves)


def _plain_leaves(leaf: pa.Array) -> pa.Array:
    kind = plain_type(leaf.type)
    if kind == leaf.type:
        return leaf
    if pa.types.is_dictionary(leaf.type):
        return plain_values(leaf.dictionary_decode())
    if pa.types.is_run_end_encoded(leaf.type):
        import pyarrow.compute as pc  # takes a tenth of the time of `manta --help`

        return plain_values(pc.run_end_decode(leaf))
    return plain_values(leaf.storage) if isinstance(leaf, pa.ExtensionArray) else leaf.cast(kind)


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return Python values as an array; `pa.array` fails for lists and structs of extensions."""
    storage = map_type(kind, lambda leaf: getattr(leaf, "storage_type", leaf))
    return pa.array(values, storage).cast(kind)


def plain_table(table: pa.Table) -> pa.Table:
    """Return a table whose columns have their `plain_type`."""
    columns = [
        pa.chunked_array(map(plain_values, each.chunks), plain_type(each.type)) for each in table.columns
    ]
    return pa.table(columns, names=table.column_names)


def is_text(encoded: pa.DataType) -> bool:
    """Return whether the values of a type are strings, in any encoding."""
    plain = plain_type(encoded)
    return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain))


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table without rows; `schema.empty_table()` fails for lists and structs of extensions."""
    return pa.Table.from_batches([], schema)


def python_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Return the values of a column in Python; times outside the years 1 to 9999 become Arrow's text.

    Times in a zone that this machine does not know are in UTC.
    """
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [_python_value(each) for each in column]


def _python_value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if isinstance(scalar, pa.MapScalar):
            return [tuple(map(_python_value, entry.values())) for entry in scalar.values]
        if isinstance(scalar, pa.ListScalar):
            return [_python_value(each) for each in scalar.values]
        if isinstance(scalar, pa.StructScalar):
            return {name: _python_value(each) for name, each in scalar.items()}
        if pa.types.is_timestamp(scalar.type) and scalar.type.tz and not _is_known_zone(scalar.type.tz):
            instant = _python_value(scalar.cast(pa.timestamp(scalar.type.unit)))
            return f"{instant}Z" if isinstance(instant, str) else instant.replace(tzinfo=UTC)
        return scalar.cast(pa.string()).as_py().replace(" ", "T")


def strings_of(texts: Sequence[str]) -> pa.Array:
    """Return texts as a large_string array. They must not contain lone surrogates."""
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    data = pa.py_buffer(b"".join(encoded))
    return pa.LargeStringArray.from_buffers(len(encoded), pa.py_buffer(offsets), data)


def join_tables(tables: list[pa.Table]) -> pa.Table:
    """Return all rows in one chunk, and empty the list, so that only the caller holds the rows."""
    joined = pa.concat_tables(tables).combine_chunks()
    tables.clear()
    return joined
