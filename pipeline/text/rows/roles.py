"""Roles of a training file's columns, and their values as training reads them."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.settings.training import TEXTS, Values
from pipeline.text.corpus.columns import decoded
from pipeline.text.corpus.normalize import valid_utf8

BLANK = " "  # what a missing text is read as: leaving the row out would change what the other columns mean
COMPARED = (
    "text",
    "anchor",
    "positive",
)  # in these two rows of a batch can be alike: each is then a false negative of the other


def has_type(role: str, kind: pa.DataType) -> bool:
    """Whether a column of that type can have the role."""
    kind, types = decoded(kind), pa.types
    text = types.is_string(kind) or types.is_large_string(kind)
    number = types.is_integer(kind)
    if role in TEXTS:
        return text or types.is_null(kind)
    return {
        "score": number or types.is_floating(kind),
        "position": number,
        "label": text or number,
        "document": text or number,
    }[role]


def expected_type(role: str) -> str:
    """Which types can, in words."""
    return {
        "score": "numbers",
        "position": "integers",
        "label": "strings or integers",
        "document": "strings or integers",
    }.get(role, "strings")


def labelled(column: pa.ChunkedArray, values: Values) -> np.ndarray:
    """(n,) bool: rows that have a label, if a wrong one."""
    unlabelled = pc.is_in(
        column.cast(pa.large_string()), value_set=pa.array(values.no_label, pa.large_string())
    )
    return ~np.asarray(unlabelled.to_numpy(), bool)


def converted(table: pa.Table, values: Values, where: str) -> pa.Table:
    """Columns named by role, with `row` beside them: texts as large_string without nulls, labels as int64 places, scores as float64 from 0 to 1, positions as int64,
    documents as large_string, null where a row is of none.

    DataError with the file, its row and what it may hold, for a label outside the set, a score outside the range or missing, a text that is no UTF-8.
    """
    convert: dict[str, Callable[[pa.ChunkedArray, Values], tuple[pa.ChunkedArray, np.ndarray, str]]]
    convert = {"label": _labels, "score": _scores, "position": _positions, "document": _documents}
    made = {"row": table["row"]}
    for role in (name for name in table.column_names if name != "row"):
        column = (
            table[role].cast(plain)
            if (plain := decoded(table[role].type)) != table[role].type
            else table[role]
        )
        made[role], right, expected = convert.get(role, _texts)(column, values)
        if not right.all():
            first = int(np.argmin(right))
            raise _wrong(where, table["row"][first].as_py(), role, column, first, expected)
    return pa.table(made)


def _wrong(where: str, row: int, role: str, column: pa.ChunkedArray, place: int, expected: str) -> DataError:
    found = "bytes that are none" if role in TEXTS else repr(column[place].as_py())
    return DataError(
        f"{where}: row {row} (counted from 0), {role}",
        expected,
        found,
        "mend the row, or name another column in `columns`, or set what its values mean",
    )


def _texts(column: pa.ChunkedArray, values: Values) -> tuple[pa.ChunkedArray, np.ndarray, str]:
    whole = column.cast(pa.large_string())
    right = np.concatenate([np.ones(0, bool), *(valid_utf8(chunk) for chunk in whole.chunks)])
    return pc.fill_null(whole, BLANK), right, "text in UTF-8"


def _labels(column: pa.ChunkedArray, values: Values) -> tuple[pa.ChunkedArray, np.ndarray, str]:
    if pa.types.is_integer(column.type):
        places = np.asarray(pc.fill_null(column.cast(pa.int64()), -1).to_numpy())
    else:
        names = pa.array(values.labels, pa.large_string())
        places = np.asarray(
            pc.fill_null(pc.index_in(column.cast(pa.large_string()), value_set=names), -1).to_numpy()
        ).astype(np.int64)
    allowed = ", ".join(f"{name} ({place})" for place, name in enumerate(values.labels))
    return pa.chunked_array([places]), (places >= 0) & (places < len(values.labels)), f"one of {allowed}"


def _scores(column: pa.ChunkedArray, values: Values) -> tuple[pa.ChunkedArray, np.ndarray, str]:
    low, high = values.score_range
    scores = np.asarray(pc.fill_null(column.cast(pa.float64()), np.nan).to_numpy())
    return (
        pa.chunked_array([(scores - low) / (high - low)]),
        (scores >= low) & (scores <= high),
        f"a number from {low:g} to {high:g}",
    )


def _positions(column: pa.ChunkedArray, values: Values) -> tuple[pa.ChunkedArray, np.ndarray, str]:
    return (
        pc.fill_null(column.cast(pa.int64()), 0),
        ~np.asarray(pc.is_null(column).to_numpy(), bool),
        "an integer",
    )


def _documents(column: pa.ChunkedArray, values: Values) -> tuple[pa.ChunkedArray, np.ndarray, str]:
    return column.cast(pa.large_string()), np.ones(len(column), bool), "the document's name or number"
