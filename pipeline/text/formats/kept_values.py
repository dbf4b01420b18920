"""Find kept values that Arrow's full validation rejects: a release that contained one could not be opened."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.store.rows.arrays import is_text
from pipeline.store.rows.nested import leaves
from pipeline.text.normalize import valid_utf8


class CheckedValues(NamedTuple):
    """A column whose invalid values are null."""

    values: pa.Array
    not_utf8: np.ndarray
    """ascending indices of the values with text that is not valid UTF-8, at any level"""
    nulled: np.ndarray
    """ascending indices of the other invalid values, such as a time of 24:00"""


def check_values(column: pa.Array) -> CheckedValues:
    """Set each value of a column to null, as a whole, if any part of it is invalid."""
    invalid = _invalid_rows(column)
    if not len(invalid):
        return CheckedValues(column, invalid, invalid)
    is_utf8 = np.array([_is_utf8(column.take(pa.array([row]))) for row in invalid])
    rows = np.arange(len(column))
    values = column.take(pa.array(rows, mask=np.isin(rows, invalid)))
    return CheckedValues(values, invalid[~is_utf8], invalid[is_utf8])


def _invalid_rows(column: pa.Array) -> np.ndarray:
    """Return the ascending indices of invalid values, found by halving the ranges that contain any."""
    if is_text(column.type):
        return np.flatnonzero(~valid_utf8(column))
    invalid, remaining = list[int](), [(0, len(column))]
    while remaining:
        start, stop = remaining.pop()
        # Arrow would validate the whole array behind a nested slice, so the rows are copied.
        part = column if stop - start == len(column) else column.take(pa.array(np.arange(start, stop)))
        if _is_valid(part):
            continue
        if stop - start == 1:
            invalid.append(start)
        else:
            middle = (start + stop) // 2
            remaining += [(middle, stop), (start, middle)]
    return np.array(invalid, np.int64)


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_utf8(value: pa.Array) -> bool:
    """Return whether all text inside of a value is valid UTF-8."""
    stored = (leaf.storage if isinstance(leaf, pa.ExtensionArray) else leaf for leaf in leaves(value))
    return all(valid_utf8(leaf).all() for leaf in stored if is_text(leaf.type))
