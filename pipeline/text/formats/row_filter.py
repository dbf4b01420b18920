"""Evaluate corpus.where on rows as they are read.

Whether a row is left out depends on the row alone, and on the types of a Parquet file's columns: not on other
rows or files. So a file that did not change need not be read again unless the filter changes.
"""

import decimal
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import ConfigError
from pipeline.store.rows.arrays import one_chunk
from pipeline.text.formats.kept_values import check_values
from pipeline.text.normalize import replace_surrogates
from pipeline.where.evaluate import Condition
from pipeline.where.parse import parse_where

# JSON has one type of numbers. Integers below this limit are compared as doubles, like fractions, because a
# double represents each of them; larger ones are compared exactly, as decimals.
_EXACT = 2**53
_LARGE_INTEGERS = pa.decimal256(76, 0)


@dataclass(frozen=True)
class FilteredRows:
    """The rows of a batch that corpus.where does not let through."""

    left_out: np.ndarray
    """(n,) int64: numbers of the rows for which the condition is not true"""
    failed: Mapping[int, str]
    """why the condition cannot be evaluated, by the number of the row"""


@lru_cache
def parse_for(where: str, schema: pa.Schema) -> Condition | str:
    """Parse the filter for columns of some types. Returns the reason if it does not fit them."""
    try:
        return parse_where(where, schema)
    except ConfigError as error:
        return f"corpus.{error.where}: expected {error.expected}, found {error.found}"


def filter_table(where: str, rows: pa.Table, numbers: np.ndarray) -> FilteredRows:
    """Evaluate the filter on rows of a Parquet file.

    Args:
        rows: the columns that the filter names.
        numbers: (n,) int64: numbers of the rows.
    """
    checked = {name: check_values(one_chunk(rows[name])) for name in rows.column_names}
    failed = {
        int(numbers[index]): f"{kind} in column {name}"
        for name, values in checked.items()
        for kind, indices in (("invalid value", values.nulled), ("invalid UTF-8", values.not_utf8))
        for index in indices.tolist()
    }
    columns = {name: values.values for name, values in checked.items()}
    return _evaluate(where, pa.record_batch(columns), numbers, failed)


def filter_objects(
    where: str, names: Sequence[str], rows: Iterable[tuple[int, Sequence[Any]]]
) -> FilteredRows:
    """Evaluate the filter on JSON objects, each with the types of its own values.

    Args:
        names: the columns that the filter names.
        rows: number and values of each row; a value is None if it is null or missing.
    """
    groups = defaultdict[tuple[pa.DataType, ...], list[tuple[int, Sequence[Any]]]](list)
    for row in rows:
        groups[tuple(map(type_of_value, row[1]))].append(row)
    left_out, failed = [np.zeros(0, np.int64)], dict[int, str]()
    for kinds, of_kinds in groups.items():
        values = zip(*(of_row for _, of_row in of_kinds), strict=True)
        columns = {
            name: pa.array([_stored_value(value, kind) for value in column], kind)
            for name, kind, column in zip(names, kinds, values, strict=True)
        }
        numbers = np.array([number for number, _ in of_kinds], np.int64)
        found = _evaluate(where, pa.record_batch(columns), numbers, {})
        left_out.append(found.left_out)
        failed |= found.failed
    return FilteredRows(np.concatenate(left_out), failed)


def _evaluate(where: str, batch: pa.RecordBatch, numbers: np.ndarray, failed: dict[int, str]) -> FilteredRows:
    """Evaluate the filter; `failed` has the rows with values that cannot be compared."""
    condition = parse_for(where, batch.schema)
    if not isinstance(condition, str):
        try:
            passes = condition.evaluate(batch).fill_null(False).to_numpy(zero_copy_only=False)
        except pa.ArrowException as error:
            condition = f"corpus.where: {' '.join(str(error).split())}"
        else:
            left_out = numbers[~passes]
            return FilteredRows(left_out[~np.isin(left_out, list(failed))] if failed else left_out, failed)
    return FilteredRows(np.zeros(0, np.int64), dict.fromkeys(numbers.tolist(), condition) | failed)


def type_of_value(value: Any) -> pa.DataType:
    """Return the type in which a value of JSON is compared."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < _EXACT):
        return pa.float64()
    if isinstance(value, int) and abs(value) < 10**_LARGE_INTEGERS.precision:
        return _LARGE_INTEGERS
    return pa.list_(pa.null())  # objects, lists and larger integers can be tested for null only


def _stored_value(value: Any, kind: pa.DataType) -> Any:
    """Return a value of JSON as a value of its `type_of_value`."""
    if pa.types.is_list(kind):
        return []
    if pa.types.is_decimal(kind):
        return decimal.Decimal(value)
    return replace_surrogates(value) if isinstance(value, str) else value
