"""Apply a function to the leaves of nested Arrow types and arrays.

A leaf is a type or array, at any level, that is not a list, struct or map. List views become lists, and so do
lists of the fixed size 0.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa


def map_type(kind: pa.DataType, convert: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with every leaf converted."""
    fields = _inner_fields(kind)
    return _nested_type(kind, [map_type(each.type, convert) for each in fields]) if fields else convert(kind)


def map_values(array: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return an array with every leaf converted."""
    inner = [map_values(child, convert) for child in _inner_arrays(array)]
    return _nested_array(array, inner) if inner else convert(array)


def leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the leaves of an array."""
    inner = _inner_arrays(array)
    if not inner:
        yield array
    for child in inner:
        yield from leaves(child)


def leaf_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the leaves of a type."""
    fields = _inner_fields(kind)
    if not fields:
        yield kind
    for field in fields:
        yield from leaf_types(field.type)


def _inner_fields(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields directly inside of a list, struct or map; none for a leaf."""
    types = pa.types
    if not kind.num_fields:  # most types: every other check takes ten times as long
        return []
    if types.is_struct(kind):
        return list(kind)
    if types.is_map(kind):
        return [kind.key_field, kind.item_field]
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    views = (types.is_list_view, types.is_large_list_view)
    return [kind.value_field] if any(check(kind) for check in (*lists, *views)) else []


def _nested_type(kind: pa.DataType, inner: Sequence[pa.DataType]) -> pa.DataType:
    """Return `kind`, a list, struct or map, with the types `inner` for its `_inner_fields`."""
    types = pa.types
    fields = [field.with_type(each) for field, each in zip(_inner_fields(kind), inner, strict=True)]
    if types.is_struct(kind):
        return pa.struct(fields)
    if types.is_map(kind):
        return pa.map_(*fields, kind.keys_sorted)
    if types.is_fixed_size_list(kind) and kind.list_size:  # Arrow divides by this size
        return pa.list_(fields[0], kind.list_size)
    is_large = types.is_large_list(kind) or types.is_large_list_view(kind)
    return pa.large_list(fields[0]) if is_large else pa.list_(fields[0])


def _inner_arrays(array: pa.Array) -> list[pa.Array]:
    """Return the arrays directly inside of a list, struct or map, with the values of this array's rows only.

    The array may be a slice of a longer one.
    """
    kind, types = array.type, pa.types
    if not _inner_fields(kind):
        return []
    if types.is_struct(kind):
        return [array.field(index) for index in range(kind.num_fields)]
    if types.is_map(kind):
        first, last = (array.offsets[index].as_py() for index in (0, -1))
        return [array.keys.slice(first, last - first), array.items.slice(first, last - first)]
    if types.is_fixed_size_list(kind):
        return [array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)]
    starts, lengths = array.offsets.to_numpy()[: len(array)], _lengths(array)
    if (starts[:-1] + lengths[:-1] == starts[1:]).all():
        return [array.values.slice(starts[0] if len(starts) else 0, lengths.sum())]
    return [array.flatten()]  # views in any order


def _lengths(array: pa.Array) -> np.ndarray:
    """Return the number of values of each list, (n,) int64; 0 for null."""
    return array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _nested_array(array: pa.Array, inner: Sequence[pa.Array]) -> pa.Array:
    """Return `array`, of lists, structs or maps, with `inner` instead of its `_inner_arrays`."""
    types, wanted = pa.types, _nested_type(array.type, [each.type for each in inner])
    mask = array.is_null() if array.null_count else None
    if types.is_struct(wanted):
        return pa.StructArray.from_arrays(inner, fields=list(wanted), mask=mask)
    if types.is_map(wanted):
        offsets = pa.array(array.offsets.to_numpy() - array.offsets[0].as_py())
        return pa.MapArray.from_arrays(offsets, *inner, type=wanted, mask=mask)
    if types.is_fixed_size_list(wanted):
        return pa.FixedSizeListArray.from_arrays(inner[0], type=wanted, mask=mask)
    is_large = types.is_large_list(wanted)
    ends = np.concatenate([[0], np.cumsum(_lengths(array))]).astype(np.int64 if is_large else np.int32)
    list_class = pa.LargeListArray if is_large else pa.ListArray
    return list_class.from_arrays(pa.array(ends), inner[0], type=wanted, mask=mask)
