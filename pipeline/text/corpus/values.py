"""Values of kept columns in JSON: find a type that holds them all, of bounded size, and convert each value to
it.
"""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from pipeline.text.corpus.columns import MAX_LEAVES, common_type, count_leaves
from pipeline.text.corpus.normalize import replace_surrogates

MAX_DEPTH = 32  # levels of a nested value: Arrow and Parquet recurse at each level


def convert_value(value: Any, kind: pa.DataType) -> tuple[Any, bool]:
    """Convert a value to a type by the rules of Arrow's parser: 3 is a double, 3.0 is not an integer, true is
    neither.

    Returns:
        (the converted value, True), or (None, False) if the value does not fit.
    """
    types, number = pa.types, isinstance(value, int | float) and not isinstance(value, bool)
    if value is None:
        return None, True
    if types.is_string(kind) or types.is_large_string(kind):
        return (replace_surrogates(value), True) if isinstance(value, str) else (None, False)
    if types.is_boolean(kind):
        return value, isinstance(value, bool)
    if types.is_floating(kind) and number:
        return _try_convert(float, value)
    if types.is_integer(kind) and number and isinstance(value, int):
        return _try_convert(lambda: pa.scalar(value, kind).as_py())
    if not is_bounded(value) or not _has_fields(kind, value):
        return None, False
    return _try_convert(lambda: _convert_by_arrow(value, kind))


def _try_convert(convert: Callable[..., Any], *values: Any) -> tuple[Any, bool]:
    try:
        return convert(*values), True
    except (pa.ArrowException, OverflowError):
        return None, False


def _convert_by_arrow(value: Any, kind: pa.DataType) -> Any:
    """Convert a nested value or a date by parsing it with Arrow."""
    parse = pj.ParseOptions(explicit_schema=pa.schema([("value", kind)]), unexpected_field_behavior="ignore")
    content = json.dumps({"value": value}).encode()
    return pj.read_json(
        pa.BufferReader(content), pj.ReadOptions(use_threads=False, block_size=len(content) + 1), parse
    )["value"][0].as_py()


def widen_type(kind: pa.DataType, value: Any) -> tuple[pa.DataType, bool]:
    """Widen a type so that it also holds a value: null becomes any type, an integer becomes a double.

    Returns:
        (the wider type, True), or (the type itself, False) if no type of bounded size holds both.
    """
    if value is None:
        return kind, True
    full = pa.types.is_nested(kind) and count_leaves(kind) >= MAX_LEAVES
    if is_bounded(value) and (not full or _has_fields(kind, value)):
        with contextlib.suppress(pa.ArrowException, OverflowError):
            found = pa.infer_type([value])
            wider = kind if found == kind else common_type(kind, found)
            if count_leaves(wider) <= MAX_LEAVES:
                return wider, True
    return kind, False


def is_bounded(value: Any) -> bool:
    """Whether a JSON value has at most MAX_LEAVES leaves with different paths, none of them deeper than
    MAX_DEPTH.
    """
    paths: set[tuple[str | None, ...]] = set()
    remaining: list[tuple[Any, tuple[str | None, ...]]] = [(value, ())]
    while remaining:
        one, path = remaining.pop()
        if len(path) > MAX_DEPTH or len(paths) > MAX_LEAVES:
            return False
        if isinstance(one, dict) and one:
            remaining += [(each, (*path, key)) for key, each in one.items()]
        elif isinstance(one, list) and one:
            remaining += [(each, (*path, None)) for each in one]
        else:
            paths.add(path)
    return len(paths) <= MAX_LEAVES


def _has_fields(kind: pa.DataType, value: Any) -> bool:
    """Whether the type has a field for every key of the value."""
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return all(
            (index := kind.get_field_index(key)) >= 0 and _has_fields(kind.field(index).type, each)
            for key, each in value.items()
        )
    if isinstance(value, list) and pa.types.is_list(kind):
        return all(_has_fields(kind.value_type, each) for each in value)
    return True
