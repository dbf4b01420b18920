"""Read the Parquet file of a task: its columns by role, its rows in the order of the file."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import Settings
from pipeline.errors import ConfigError, DataError, did_you_mean
from pipeline.settings import TaskSettings
from pipeline.store.files.base import Store
from pipeline.store.rows.arrays import is_text, plain_type
from pipeline.text.normalize import strings_of

BLANK = " "  # replaces a missing or blank text; leaving the row out would change the task
TEXT_ROLES = ("sentence1", "sentence2", "anchor", "positive", "negative", "query", "text", "a", "b", "c", "d")
"""Roles of texts, in all kinds of tasks."""


class RowOptions(Settings):
    """Options of all kinds of tasks, except those that use the splits themselves."""

    split: str | None = None
    """use only rows with this value in the column `split`; null: all rows"""


def or_blank(text: str | None) -> str:
    """Return the text, or `BLANK` for a text that is missing or has only white space."""
    return text if text and not text.isspace() else BLANK


def number_type(encoded: pa.DataType) -> pa.DataType | None:
    """Return the type of numbers without encodings; None if the values are not numbers."""
    kind, types = plain_type(encoded), pa.types
    return kind if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) else None


def float64_of(column: pa.ChunkedArray) -> np.ndarray:
    """Return numbers as (n,) float64, nan for missing ones; integers above 2^53 are rounded."""
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), np.float64)


@dataclass(frozen=True)
class TaskRows:
    """Rows of a task."""

    table: pa.Table
    """columns named by their roles"""
    where: str
    """URI of the file, for errors"""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def has(self, role: str) -> bool:
        """Return whether the file has a column with the role."""
        return role in self.table.column_names

    def texts(self, role: str) -> list[str]:
        """Return a column as strings, missing and blank ones as `BLANK`. DataError if it has another type."""
        column = self.table[role]
        if not is_text(column.type) and not pa.types.is_null(plain_type(column.type)):
            raise DataError(
                self.where,
                f"a column of strings for {role!r}",
                str(column.type),
                "set another column in `columns`",
            )
        return list(map(or_blank, strings_of(column, f"{self.where}: {role}")))

    def missing(self, *roles: str) -> int:
        """Count the texts of the columns that are missing or blank."""
        return sum(self.texts(role).count(BLANK) for role in roles)

    def numbers(self, role: str) -> np.ndarray:
        """Return a column as (n,) float64, nan for missing values; DataError if it has another type."""
        column, types = self.table[role], pa.types
        if (kind := number_type(column.type)) is None and not (
            types.is_boolean(kind := plain_type(column.type)) or types.is_null(kind)
        ):
            raise DataError(
                self.where,
                f"a column of numbers for {role!r}",
                str(column.type),
                "set another column in `columns`",
            )
        return float64_of(column.cast(kind))

    def labels(self, role: str) -> np.ndarray:
        """Return a column as (n,) float64 of 0 and 1, nan for missing values; DataError for other values."""
        labels = self.numbers(role)
        others = labels[~np.isnan(labels) & (labels != 0) & (labels != 1)]
        if len(others):
            raise DataError(
                self.where,
                f"0 or 1 in {role!r}",
                f"{len(others):,} other values, such as {others[0]:g}",
                "correct the file, or set another column in `columns`",
            )
        return labels

    def codes(self, role: str) -> tuple[np.ndarray, list[Any]]:
        """Encode a column by its distinct values.

        Returns:
            (n,) int64 index of each row's value among the distinct values, -1 if it is missing; and the
            distinct values in order of appearance.
        """
        column, kind = self.table[role], plain_type(self.table[role].type)
        if pa.types.is_nested(kind):
            raise DataError(
                self.where,
                f"a column of strings or numbers for {role!r}",
                str(kind),
                "set another column in `columns`",
            )
        column = column.cast(kind)
        if is_text(kind):
            strings_of(column, f"{self.where}: {role}")  # raises for bytes that are not UTF-8
        if pa.types.is_floating(kind):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
        values = pc.drop_null(pc.unique(column))
        codes = pc.fill_null(pc.index_in(column, value_set=values).cast(pa.int64()), -1)
        return codes.to_numpy(), values.to_pylist()

    def take(self, keep: np.ndarray) -> "TaskRows":
        """Select the rows where `keep` (n,) is True."""
        return TaskRows(self.table.filter(pa.array(keep)), self.where)


@dataclass(frozen=True)
class TaskFile:
    """File of a task."""

    store: Store
    """store of the file"""
    path: str
    """path in the store"""
    sha256: str
    """digest of the content"""
    columns: tuple[tuple[str, str], ...]
    """(role, column) pairs of the roles that the task uses"""
    split: str | None = None
    """only rows with this value in the split column are used; None for all"""

    @property
    def where(self) -> str:
        """URI of the file."""
        return self.store.uri_of(self.path)

    def content(self) -> dict[str, Any]:
        """Return everything about the file that can change a score, for a digest."""
        return {"sha256": self.sha256, "columns": dict(self.columns), "split": self.split}

    def beside(self, path: str) -> "TaskFile":
        """Return another file of the same store, with the same columns; DataError if it lacks one of them."""
        content, where = _content(self.store, path), self.store.uri_of(path)
        names = _table(content, where).column_names
        if absent := [column for _, column in self.columns if column not in names]:
            raise DataError(
                where,
                f"the columns of {self.where}, whose split it is by its name",
                f"no {absent[0]}",
                "rename the file",
            )
        return replace(self, path=path, sha256=hashlib.sha256(content).hexdigest())

    def rows(self) -> TaskRows:
        """Read the rows, in order; DataError if the file has changed since it was opened."""
        table = _table(self.store.read_checked(self.path, self.sha256), self.where)
        rows = TaskRows(pa.table({role: table[column] for role, column in self.columns}), self.where)
        if self.split is None:
            return rows
        codes, values = rows.codes("split")
        if self.split not in values:
            raise DataError(
                self.where,
                f"rows whose split is {self.split!r}",
                f"the splits {', '.join(map(str, values)) or '(none)'}",
                "set the option `split`",
            )
        return rows.take(codes == values.index(self.split))


class TaskRoles:
    """Roles of the columns that a kind of task reads.

    Attributes:
        forms: alternative tuples of required roles.
        optional: roles that are used if the file has them.
    """

    def __init__(self, *forms: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        self.forms, self.optional = forms, optional


def open_file(
    source: TaskSettings, store: Store, path: str, roles: TaskRoles, split: str | None = None
) -> TaskFile:
    """Open a file, and use the columns of the first form in `roles` for which the file has all columns.

    Args:
        source: settings of the task, with names of columns by role.
        store: store of the file.
        path: path of the file.
        roles: roles of this kind of task.
        split: only rows with this value in the split column are used; None for all.

    Raises:
        ConfigError: a role that this kind of task does not have, or one column for two roles.
        DataError: the file is missing, not Parquet, or lacks columns.
    """
    known_roles = list(
        dict.fromkeys([*(role for form in roles.forms for role in form), *roles.optional, "split"])
    )
    for role in source.columns:
        if role not in known_roles:
            hint = did_you_mean(role, known_roles, f"known: {', '.join(known_roles)}")
            raise ConfigError(f"{source.uri}: columns", f"a role of a {source.kind} task", repr(role), hint)
    content, where = _content(store, path), store.uri_of(path)
    names = _table(content, where).column_names
    column = {role: source.columns.get(role, role) for role in known_roles}
    split_role = () if split is None else ("split",)
    complete = next((form for form in roles.forms if all(column[role] in names for role in form)), None)
    absent = tuple(role for role in (*source.columns, *split_role) if column[role] not in names)
    if absent or complete is None:
        forms = (absent,) if absent else roles.forms
        expected = " or ".join(", ".join(column[role] for role in form) for form in forms)
        raise DataError(
            where,
            f"the columns {expected}",
            ", ".join(names) or "(none)",
            "set the columns by role in `columns`",
        )
    _check_distinct(source, {role: column[role] for role in complete})
    optional = (role for role in roles.optional if column[role] in names)
    used_roles = dict.fromkeys((*complete, *optional, *split_role))
    return TaskFile(
        store,
        path,
        hashlib.sha256(content).hexdigest(),
        tuple((role, column[role]) for role in used_roles),
        split,
    )


def _check_distinct(source: TaskSettings, column: Mapping[str, str]) -> None:
    """Raise ConfigError if two roles use the same column."""
    for role, other in combinations(column, 2):
        if column[role] == column[other]:
            raise ConfigError(
                f"{source.uri}: columns",
                "a different column for each role",
                f"{column[role]!r} for {role} and for {other}",
                "set another column",
            )


def _content(store: Store, path: str) -> bytes:
    try:
        return store.read(path)
    except FileNotFoundError:
        raise DataError(store.uri_of(path), "a Parquet file", "no such file", "check the path") from None
    except IsADirectoryError:
        raise DataError(
            store.uri_of(path), "a Parquet file", "a folder", "use the path of a file in it"
        ) from None


def _table(content: bytes, where: str) -> pa.Table:
    try:
        file = pq.ParquetFile(io.BytesIO(content))
        names = file.schema_arrow.names
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise DataError(
                where, "columns of different names", f"{repeated!r} more than once", "rename one of them"
            )
        return file.read()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(where, "a Parquet file", " ".join(str(error).split()), "check the file") from None
