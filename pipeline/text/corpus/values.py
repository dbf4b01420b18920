"""Values of kept columns in JSON: find a type of bounded size that holds them all, and convert them to it."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from pipeline.store.arrays import is_text
from pipeline.text.corpus.columns import MAX_LEAVES, common_type, count_leaves
from pipeline.text.corpus.json_values import is_integer, parse_block
from pipeline.text.corpus.normalize import replace_surrogates

MAX_DEPTH = 32  # levels of a nested value: Arrow and Parquet recurse at each level


def convert_value(value: Any, kind: pa.DataType) -> tuple[Any, bool]:
    """Convert a value to a type by the rules of Arrow's parser.

    3 is a double, 3.0 is not an integer, true is neither.

    Returns:
        (the converted value, True), or (None, False) if the value does not fit.
    """
    if value is None:
        return None, True
    if is_text(kind):
        return (replace_surrogates(value), True) if isinstance(value, str) else (None, False)
    if pa.types.is_boolean(kind):
        return value, isinstance(value, bool)
    if pa.types.is_floating(kind) and (is_integer(value) or isinstance(value, float)):
        return _try_convert(lambda: float(value))
    if pa.types.is_integer(kind) and is_integer(value):
        return _try_convert(lambda: pa.scalar(value, kind).as_py())
    if not is_bounded(value) or not _has_fields(kind, value):
        return None, False
    line = json.dumps({"value": value}).encode()  # Arrow parses nested values and dates
    return _try_convert(lambda: parse_block(line, {"value": kind})["value"][0].as_py())


def _try_convert(convert: Callable[[], Any]) -> tuple[Any, bool]:
    try:
        return convert(), True
    except (pa.ArrowException, OverflowError):
        return None, False


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
    """Whether a JSON value has at most MAX_LEAVES different paths to leaves, none longer than MAX_DEPTH."""
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
