"""Roles of a training file's columns, and how their values are converted for training."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.settings.training import Values
from pipeline.store.rows.arrays import is_text, plain_type
from pipeline.text.normalize import valid_utf8

BLANK = " "  # replaces a missing text: leaving the row out would change the meaning of the other columns
# Two rows of a batch with an equal text in one of these roles are false negatives of each other.
COMPARED = ("text", "anchor", "positive", "next", "next3")


class _ColumnTypes(NamedTuple):
    """Types that the column of a role can have."""

    phrase: str
    """the types, for error messages"""
    checks: tuple[Callable[[pa.DataType], bool], ...]
    """functions that return whether a type is one of these types; one that returns True is enough"""


_TEXT = _ColumnTypes("strings", (is_text, pa.types.is_null))
_NAME = _ColumnTypes("strings or integers", (is_text, pa.types.is_integer))
_TYPES = {
    "score": _ColumnTypes("numbers", (pa.types.is_integer, pa.types.is_floating)),
    "position": _ColumnTypes("integers", (pa.types.is_integer,)),
    "label": _NAME,
    "document": _NAME,
    "group": _NAME,
    "section": _NAME,
}


class _ConvertedColumn(NamedTuple):
    """A converted column."""

    column: pa.ChunkedArray
    valid: np.ndarray
    """(n,) bool: the row has a valid value"""
    expected: str
    """the valid values, as a phrase for error messages"""


def has_type(role: str, column_type: pa.DataType) -> bool:
    """Return whether a column of that type can have the role."""
    return any(check(plain_type(column_type)) for check in _TYPES.get(role, _TEXT).checks)


def expected_type(role: str) -> str:
    """The types that a column of the role can have, as a phrase for error messages."""
    return _TYPES.get(role, _TEXT).phrase


def is_blank(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """(n,) bool: whether each text has only white space; missing texts must be BLANK by now."""
    return pc.equal(pc.utf8_trim_whitespace(texts), "")


def has_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """(n,) bool: whether each text is neither missing nor blank.

    A text that is not valid UTF-8 counts as text; `convert_values` raises the error for it.
    """
    texts = column.cast(pa.large_string())
    shown = pc.if_else(pa.chunked_array([_valid_utf8(texts)]), pc.fill_null(texts, BLANK), "not in UTF-8")
    return pc.invert(is_blank(shown))


def has_label(column: pa.ChunkedArray, values: Values) -> np.ndarray:
    """(n,) bool: whether each row has a label, valid or not."""
    no_label = pa.array(values.no_label, pa.large_string())
    return ~np.asarray(pc.is_in(column.cast(pa.large_string()), value_set=no_label).to_numpy(), bool)


def convert_values(table: pa.Table, values: Values, where: str) -> pa.Table:
    """Convert columns that are named by role; the column `row` is passed through.

    Args:
        table: columns by role, of plain types, and `row`: the number of each row in its file.
        values: the labels and the range of scores.
        where: URI of the file, for errors.

    Returns:
        Texts as large_string without nulls, labels as int64 indices, scores as float64 from 0 to 1, positions
        as int64; documents, groups and sections as large_string, null for a row without one.

    Raises:
        DataError: a label is not in the set, a score is missing or out of range, or a text or name is not
            valid UTF-8.
    """
    convert: dict[str, Callable[[pa.ChunkedArray, Values], _ConvertedColumn]] = {
        "label": _labels,
        "score": _scores,
        "position": _positions,
        **dict.fromkeys(("document", "group", "section"), _names),
    }
    converted = {"row": table["row"]}
    for role in (name for name in table.column_names if name != "row"):
        converted[role], valid, expected = convert.get(role, _texts)(table[role], values)
        if not valid.all():
            first = int(np.argmin(valid))
            raise DataError(
                f"{where}: row {table['row'][first].as_py()} (counted from 0), {role}",
                expected,
                _describe(table[role][first]),
                "fix the row, name another column in `columns`, or set `values` to the meaning of its values",
            )
    return pa.table(converted)


def _describe(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except UnicodeDecodeError:
        return "bytes that are not valid UTF-8"


def _texts(column: pa.ChunkedArray, values: Values) -> _ConvertedColumn:
    texts = column.cast(pa.large_string())
    return _ConvertedColumn(pc.fill_null(texts, BLANK), _valid_utf8(texts), "text in UTF-8")


def _valid_utf8(strings: pa.ChunkedArray) -> np.ndarray:
    return np.concatenate([np.ones(0, bool), *(valid_utf8(chunk) for chunk in strings.chunks)])


def _labels(column: pa.ChunkedArray, values: Values) -> _ConvertedColumn:
    if pa.types.is_integer(column.type):
        labels = np.asarray(pc.fill_null(_int64(column), -1).to_numpy())
    else:
        names = pa.array(values.labels, pa.large_string())
        indices = pc.fill_null(pc.index_in(column.cast(pa.large_string()), value_set=names), -1)
        labels = np.asarray(indices.to_numpy()).astype(np.int64)
    valid = (labels >= 0) & (labels < len(values.labels))
    allowed = ", ".join(f"{name} ({index})" for index, name in enumerate(values.labels))
    return _ConvertedColumn(pa.chunked_array([labels]), valid, f"one of {allowed}")


def _scores(column: pa.ChunkedArray, values: Values) -> _ConvertedColumn:
    low, high = values.score_range
    # safe=False rounds integers above 2^53, which are out of range
    scores = np.asarray(pc.fill_null(column.cast(pa.float64(), safe=False), np.nan).to_numpy())
    scaled = pa.chunked_array([(scores - low) / (high - low)])
    return _ConvertedColumn(scaled, (scores >= low) & (scores <= high), f"a number from {low:g} to {high:g}")


def _positions(column: pa.ChunkedArray, values: Values) -> _ConvertedColumn:
    positions = _int64(column)
    is_too_large = pc.less(positions, 0) if column.type == pa.uint64() else pa.scalar(False)
    valid = ~np.asarray(pc.or_kleene(pc.is_null(column), is_too_large).to_numpy(), bool)
    return _ConvertedColumn(pc.fill_null(positions, 0), valid, "an integer below 2^63")


def _int64(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert integers to int64; unsigned ones from 2^63 on become negative."""
    return column.cast(pa.int64(), safe=False)


def _names(column: pa.ChunkedArray, values: Values) -> _ConvertedColumn:
    names = column.cast(pa.large_string())
    return _ConvertedColumn(names, _valid_utf8(names), "a name in UTF-8")
