"""Parse JSON: whole blocks of lines by Arrow, single lines by Python, and convert values to column types."""

import contextlib
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.json as pj

from pipeline.store.arrays import is_text
from pipeline.store.nested import map_type
from pipeline.text.corpus.columns import MAX_LEAVES, common_type, count_leaves
from pipeline.text.corpus.normalize import has_surrogates, replace_surrogates

MAX_DEPTH = 32  # levels of a nested value: Arrow and Parquet recurse at each level


@dataclass(frozen=True)
class JsonBlock:
    """Consecutive, complete lines of a file."""

    lines: bytes
    first: int
    """number of the first line, from 0"""
    position: int
    """bytes of the file read so far"""


def parse_block(lines: bytes, types: dict[str, pa.DataType]) -> pa.Table:
    """Parse lines of JSON objects into a table with a column for each key of `types`; other keys are ignored.

    Raises:
        pa.ArrowInvalid, pa.ArrowNotImplementedError: a value has another type, or a line is not valid JSON.
    """
    return pj.read_json(
        pa.BufferReader(lines),
        pj.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        pj.ParseOptions(explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore"),
    )


class ParsedLine(NamedTuple):
    """The JSON object on a line, or the reason why there is none."""

    value: dict[str, Any] | None
    """None for a line to reject"""
    reason: str = ""
    """as in `RejectedRow`"""
    detail: str = ""
    """as in `RejectedRow`"""


def parse_line(line: bytes) -> ParsedLine:
    """Parse one line."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return ParsedLine(None, "invalid_utf8", f"byte {error.start} of the line")
    except ValueError as error:
        return ParsedLine(None, "invalid_json", str(error))
    except RecursionError:
        return ParsedLine(None, "invalid_json", "nested too deep to be parsed")
    if not isinstance(value, dict):
        return ParsedLine(None, "invalid_json", f"{type(value).__name__}, not an object")
    return ParsedLine(value)


def is_id(value: Any, kind: pa.DataType) -> bool:
    """Return whether a value can be an id of that type."""
    if pa.types.is_string(kind):
        return isinstance(value, str)
    low, high = (0, 2**64) if pa.types.is_uint64(kind) else (-(2**63), 2**63)
    return is_integer(value) and low <= value < high


def is_integer(value: Any) -> bool:
    """Return whether a value of JSON is an integer; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def show_value(value: Any) -> str:
    """Return the first 60 characters of a value as JSON, for messages."""
    return json.dumps(value)[:60]


def convert_value(value: Any, kind: pa.DataType) -> tuple[Any, bool]:
    """Convert a value to a type by the rules of Arrow's parser.

    3 is a valid double, but 3.0 is not a valid integer, and true is neither.

    Returns:
        (converted value, True), or (None, False) if the value does not fit. If only objects without keys do
        not fit inside of it, they become null: (rest of the value, False).
    """
    if value is None:
        return None, True
    if is_text(kind):
        return (replace_surrogates(value), True) if isinstance(value, str) else (None, False)
    if pa.types.is_boolean(kind):
        return (value, True) if isinstance(value, bool) else (None, False)
    if pa.types.is_floating(kind) and (is_integer(value) or isinstance(value, float)):
        return _try_convert(lambda: float(value))
    if pa.types.is_integer(kind) and is_integer(value):
        return _try_convert(lambda: pa.scalar(value, kind).as_py())
    if not is_bounded(value) or not _has_fields(kind, value):
        return None, False
    fitting = _without_empty_objects(kind, value)
    line = json.dumps({"value": fitting}).encode()  # Arrow parses nested values and dates
    converted, fits = _try_convert(lambda: parse_block(line, {"value": kind})["value"][0].as_py())
    return converted, fits and fitting == value


def _try_convert(convert: Callable[[], Any]) -> tuple[Any, bool]:
    """Return (result, True), or (None, False) if Arrow cannot convert the value."""
    try:
        return convert(), True
    except (pa.ArrowException, OverflowError, ValueError):
        return None, False


def widen_type(kind: pa.DataType, value: Any) -> tuple[pa.DataType, bool]:
    """Widen a type so that it also holds a value: null becomes any type, an integer becomes a double.

    Returns:
        (wider type, True), or (the type itself, False) if no type with at most MAX_LEAVES leaves holds both.
    """
    if value is None:
        return kind, True
    is_full = pa.types.is_nested(kind) and count_leaves(kind) >= MAX_LEAVES
    if is_bounded(value) and (not is_full or _has_fields(kind, value)):
        with contextlib.suppress(pa.ArrowException, OverflowError):
            if (value_type := pa.infer_type([value])) == kind:
                return kind, True
            wider = _wider(kind, value_type)
            if count_leaves(wider) <= MAX_LEAVES:
                return wider, True
    return kind, False


@functools.lru_cache  # values of a column have few types
def _wider(kind: pa.DataType, value_type: pa.DataType) -> pa.DataType:
    return common_type(kind, map_type(value_type, _null_for_empty))


def _null_for_empty(leaf: pa.DataType) -> pa.DataType:
    """Return the type of null for objects without keys, for which Parquet has no type."""
    return pa.null() if pa.types.is_struct(leaf) else leaf


def is_bounded(value: Any) -> bool:
    """Return whether a JSON value has at most MAX_LEAVES paths to leaves, none longer than MAX_DEPTH.

    No key of a path may have a lone surrogate, which Arrow cannot store.
    """
    paths: set[tuple[str | None, ...]] = set()
    remaining: list[tuple[Any, tuple[str | None, ...]]] = [(value, ())]
    while remaining:
        node, path = remaining.pop()
        if len(path) > MAX_DEPTH or len(paths) > MAX_LEAVES:
            return False
        if isinstance(node, dict) and node:
            if has_surrogates("".join(node)):
                return False
            remaining += [(child, (*path, key)) for key, child in node.items()]
        elif isinstance(node, list) and node:
            remaining += [(child, (*path, None)) for child in node]
        else:
            paths.add(path)
    return len(paths) <= MAX_LEAVES


def _has_fields(kind: pa.DataType, value: Any) -> bool:
    """Return whether the type has a field for every key of the value, at all levels."""
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return all(
            (index := kind.get_field_index(key)) >= 0 and _has_fields(kind.field(index).type, child)
            for key, child in value.items()
        )
    if isinstance(value, list) and _is_list(kind):
        return all(_has_fields(kind.value_type, child) for child in value)
    return True


def _without_empty_objects(kind: pa.DataType, value: Any) -> Any:
    """Replace objects without keys by null wherever the type has no struct; it has a field for every key."""
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {key: _without_empty_objects(kind.field(key).type, child) for key, child in value.items()}
    if isinstance(value, list) and _is_list(kind):
        return [_without_empty_objects(kind.value_type, child) for child in value]
    return None if value == {} else value


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return any(check(kind) for check in (types.is_list, types.is_large_list, types.is_fixed_size_list))
