"""Convert rows to values of Python and JSON, as clients of databases and of the service take them."""

import base64
import math
from collections.abc import Callable, Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pipeline.store.rows.arrays import python_values
from pipeline.store.rows.nested import map_values

_INT64_MAX = 2**63 - 1


def python_column(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column. Times are truncated to microseconds, Python's smallest unit.

    Raises:
        OverflowError: a time is outside the years 1 to 9999.
    """
    return [value for chunk in column.chunks for value in map_values(chunk, _in_microseconds).to_pylist()]


def _in_microseconds(leaf: pa.Array) -> pa.Array:
    kind = leaf.type
    if pa.types.is_temporal(kind) and getattr(kind, "unit", "") == "ns":
        zoned = pa.types.is_timestamp(kind)
        make = pa.time64 if pa.types.is_time64(kind) else pa.duration
        return leaf.cast(pa.timestamp("us", kind.tz) if zoned else make("us"), safe=False)
    return leaf


def json_column(column: pa.ChunkedArray) -> Iterator[Any]:
    """Return the values of a column for JSON. Times outside Python's years 1 to 9999 become texts, too."""
    try:
        values = python_column(column)
    except (OverflowError, ValueError):
        values = [
            value for chunk in column.chunks for value in python_values(map_values(chunk, _in_microseconds))
        ]
    return map(json_value, values)


def json_value(value: Any) -> Any:
    """Return a value for JSON.

    Dates and times are in ISO format, durations in seconds, decimal numbers and UUIDs as texts, bytes in
    base64, entries of maps as pairs. NaN and infinity become null, because JSON has neither.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    if isinstance(value, dict):
        return {str(key): json_value(each) for key, each in value.items()}
    if value is None or isinstance(value, bool | int | str):
        return value
    return next((convert(value) for kind, convert in _CONVERSIONS if isinstance(value, kind)), str(value))


_CONVERSIONS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (date, lambda value: value.isoformat()),  # a datetime, too
    (time, time.isoformat),
    (timedelta, timedelta.total_seconds),
    (Decimal, str),
    (bytes, lambda value: base64.b64encode(value).decode()),
)


def id_array(ids: list[Any]) -> pa.Array:
    """Return ids from a client, texts or whole numbers, as an array; numbers beyond int64 are uint64."""
    is_beyond = any(isinstance(each, int) and each > _INT64_MAX for each in ids)
    return pa.array(ids, pa.uint64() if is_beyond else None)


def json_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as dictionaries for JSON, without their vectors."""
    columns = {name: json_column(rows[name]) for name in rows.column_names if name != "vector"}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
