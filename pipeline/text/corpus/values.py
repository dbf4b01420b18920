"""Values of kept columns in JSON: the type that holds them all, of bounded size, and each value as that type
holds it.
"""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from pipeline.text.corpus.columns import MOST_LEAVES, leaves_of, widest
from pipeline.text.corpus.normalize import replace_surrogates

DEEPEST = 32  # levels of a nested value: Arrow and Parquet recurse once for each


def fitted(value: Any, kind: pa.DataType) -> tuple[Any, bool]:
    """(the value as that type holds it, whether it does), by the same rules as Arrow's parser: 3 is a double,
    3.0 is no integer, true is neither.
    """
    types, number = pa.types, isinstance(value, int | float) and not isinstance(value, bool)
    if value is None:
        return None, True
    if types.is_string(kind) or types.is_large_string(kind):
        return (replace_surrogates(value), True) if isinstance(value, str) else (None, False)
    if types.is_boolean(kind):
        return value, isinstance(value, bool)
    if types.is_floating(kind) and number:
        return _converted(float, value)
    if types.is_integer(kind) and number and isinstance(value, int):
        return _converted(lambda: pa.scalar(value, kind).as_py())
    if not is_modest(value) or not _holds(kind, value):
        return None, False
    return _converted(lambda: _by_arrow(value, kind))


def _converted(convert: Callable[..., Any], *values: Any) -> tuple[Any, bool]:
    try:
        return convert(*values), True
    except (pa.ArrowException, OverflowError):
        return None, False


def _by_arrow(value: Any, kind: pa.DataType) -> Any:
    """A nested value or a date: the one block of this one value is Arrow's to read."""
    parse = pj.ParseOptions(explicit_schema=pa.schema([("value", kind)]), unexpected_field_behavior="ignore")
    content = json.dumps({"value": value}).encode()
    return pj.read_json(
        pa.BufferReader(content), pj.ReadOptions(use_threads=False, block_size=len(content) + 1), parse
    )["value"][0].as_py()


def widened(kind: pa.DataType, value: Any) -> tuple[pa.DataType, bool]:
    """(type that holds values of `kind` and this one, whether there is one): null gives way to any, an
    integer to a double; else `kind` itself.
    """
    if value is None:
        return kind, True
    full = pa.types.is_nested(kind) and leaves_of(kind) >= MOST_LEAVES
    if is_modest(value) and (not full or _holds(kind, value)):
        with contextlib.suppress(pa.ArrowException, OverflowError):
            found = pa.infer_type([value])
            wider = kind if found == kind else widest(kind, found)
            if leaves_of(wider) <= MOST_LEAVES:
                return wider, True
    return kind, False


def is_modest(value: Any) -> bool:
    """Whether a value of JSON has at most MOST_LEAVES leaves of different paths, and none deeper than
    DEEPEST.
    """
    paths: set[tuple[str | None, ...]] = set()
    waiting: list[tuple[Any, tuple[str | None, ...]]] = [(value, ())]
    while waiting:
        one, path = waiting.pop()
        if len(path) > DEEPEST or len(paths) > MOST_LEAVES:
            return False
        if isinstance(one, dict) and one:
            waiting += [(each, (*path, key)) for key, each in one.items()]
        elif isinstance(one, list) and one:
            waiting += [(each, (*path, None)) for each in one]
        else:
            paths.add(path)
    return len(paths) <= MOST_LEAVES


def _holds(kind: pa.DataType, value: Any) -> bool:
    """Whether the type has a field for every key of the value."""
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return all(
            (place := kind.get_field_index(key)) >= 0 and _holds(kind.field(place).type, each)
            for key, each in value.items()
        )
    if isinstance(value, list) and pa.types.is_list(kind):
        return all(_holds(kind.value_type, each) for each in value)
    return True
