"""Roles of a training file's columns, and how their values are converted for training."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.settings.training import NEGATIVES, Values
from pipeline.store.rows.arrays import is_text, one_chunk, plain_type
from pipeline.text.normalize import valid_utf8
from pipeline.text.rows.negatives import element_of, is_list

BLANK = " "  # replaces a missing text: leaving the row out would change the meaning of the other columns
# Two rows of a batch with an equal text in one of these roles are false negatives of each other.
COMPARED = ("text", "anchor", "positive", "next", "next3")


def is_number_list(kind: pa.DataType) -> bool:
    """Return whether a column has lists of numbers."""
    is_number = (pa.types.is_integer, pa.types.is_floating)
    return is_list(kind) and any(check(kind.value_type) for check in is_number)


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
    "scores": _ColumnTypes("lists of numbers", (is_number_list,)),
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
        Texts as large_string without nulls, labels as int64 indices, a score as float64 from 0 to 1,
        positions as int64; `scores` as lists of the score of the positive and one of each hard negative, NaN
        for a negative that the row lacks; documents, groups and sections as large_string, null for a row
        without one.

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
    convert["scores"] = partial(_score_lists, converted)
    for role in sorted((name for name in table.column_names if name != "row"), key="scores".__eq__):
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


def _score_lists(
    texts: Mapping[str, pa.ChunkedArray], column: pa.ChunkedArray, values: Values
) -> _ConvertedColumn:
    """Convert lists of scores to one length: of the positive, and of each hard negative among the texts."""
    negatives = [texts[role] for role in NEGATIVES if role in texts]
    lists, width = one_chunk(column), 1 + len(negatives)
    scores = np.stack(
        [
            pc.fill_null(element_of(lists, index).cast(pa.float64()), np.nan).to_numpy()
            for index in range(width)
        ],
        axis=1,
    )
    blank = [np.zeros(len(lists), bool), *(np.asarray(is_blank(each).to_numpy()) for each in negatives)]
    has_text = ~np.stack(blank, axis=1)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    valid = (np.isfinite(scores) | ~has_text).all(axis=1) & (lengths <= width)
    scores[~has_text] = np.nan
    array = pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel()), width)
    expected = f"finite scores of the positive and of each hard negative, at most {width}"
    return _ConvertedColumn(pa.chunked_array([array]), valid, expected)


def narrow_scores(table: pa.Table) -> pa.Table:
    """Return the table with as many scores in a row as it has columns of positives and hard negatives."""
    if "scores" not in table.column_names:
        return table
    width = 1 + sum(role in table.column_names for role in NEGATIVES)
    column = one_chunk(table["scores"])
    flat = column.flatten().to_numpy().reshape(len(column), -1)[:, :width]
    scores = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), width)
    return table.set_column(table.column_names.index("scores"), "scores", scores)


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
