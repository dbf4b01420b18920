"""Conversions between Arrow arrays, numpy arrays and texts.

They do not import pandas, as `pa.array` and `to_numpy` do if it is installed: the import takes a tenth of the
time of `manta search`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


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
    """Return the type without its encoding: a dictionary's type of values, string for a string view.

    Of nested types, views are replaced at all levels, since Arrow cannot select their rows.
    """
    plain = encoded.value_type if pa.types.is_dictionary(encoded) else encoded
    if pa.types.is_string_view(plain):
        return pa.string()
    if pa.types.is_binary_view(plain):
        return pa.binary()
    return _without_views(plain) if pa.types.is_nested(plain) else plain


def _without_views(nested: pa.DataType) -> pa.DataType:
    """Return a nested type with plain types of its values; a list view stays one."""
    types = pa.types
    if types.is_struct(nested):
        return pa.struct([_plain_field(field) for field in nested])
    if types.is_map(nested):
        return pa.map_(_plain_field(nested.key_field), _plain_field(nested.item_field))
    if types.is_fixed_size_list(nested):
        return pa.list_(_plain_field(nested.value_field), nested.list_size)
    if types.is_list(nested):
        return pa.list_(_plain_field(nested.value_field))
    return pa.large_list(_plain_field(nested.value_field)) if types.is_large_list(nested) else nested


def _plain_field(field: pa.Field) -> pa.Field:
    return field if pa.types.is_dictionary(field.type) else field.with_type(plain_type(field.type))


def is_text(encoded: pa.DataType) -> bool:
    """Return whether the values of a type are strings, in any encoding."""
    plain = plain_type(encoded)
    return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain))


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column; times outside Python's years 1 to 9999 as the text of Arrow."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [_python_value(each) for each in column]


def _python_value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if isinstance(scalar, pa.ListScalar):
            return [_python_value(each) for each in scalar.values]
        if isinstance(scalar, pa.StructScalar):
            return {name: _python_value(each) for name, each in scalar.items()}
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
