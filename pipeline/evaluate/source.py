"""Parquet file of a task: columns by role, rows in the order of the file."""

import difflib
import hashlib
import io
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import Settings
from pipeline.errors import ConfigError, DataError
from pipeline.settings import TaskSettings
from pipeline.store.arrays import plain_type
from pipeline.store.base import Store

BLANK = " "  # replaces a missing text; leaving the row out would change the task


class RowOptions(Settings):
    """Options of all kinds of tasks."""

    split: str | None = None
    """use only rows with this value in the column `split`; null: all rows"""


@dataclass(frozen=True)
class TaskRows:
    """Rows of a task, with columns by role."""

    table: pa.Table
    where: str

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def has(self, role: str) -> bool:
        """Return whether the file has a column with the role."""
        return role in self.table.column_names

    def texts(self, role: str) -> list[str]:
        """Return a column as strings; DataError if it has another type."""
        column = self.table[role]
        if not (
            pa.types.is_string(kind := plain_type(column.type))
            or pa.types.is_large_string(kind)
            or pa.types.is_null(kind)
        ):
            raise DataError(
                self.where,
                f"a column of strings for {role!r}",
                str(column.type),
                "set another column in `columns`",
            )
        return [BLANK if text is None else text for text in column.to_pylist()]

    def missing(self, *roles: str) -> int:
        """Return the number of missing values."""
        return sum(self.table[role].null_count for role in roles)

    def numbers(self, role: str) -> np.ndarray:
        """Return a column as (n,) float64, nan for missing values; DataError if it has another type."""
        column = self.table[role]
        if not (
            pa.types.is_integer(column.type)
            or pa.types.is_floating(column.type)
            or pa.types.is_boolean(column.type)
            or pa.types.is_null(column.type)
        ):
            raise DataError(
                self.where,
                f"a column of numbers for {role!r}",
                str(column.type),
                "set another column in `columns`",
            )
        return np.asarray(pc.cast(column, pa.float64()).to_numpy(), np.float64)

    def labels(self, role: str) -> np.ndarray:
        """Return a column as (n,) float64 of 0 and 1, nan for missing values; DataError for other values."""
        labels = self.numbers(role)
        wrong = labels[~np.isnan(labels) & (labels != 0) & (labels != 1)]
        if len(wrong):
            raise DataError(
                self.where,
                f"0 or 1 in {role!r}",
                f"{len(wrong):,} other values, such as {wrong[0]:g}",
                "correct the file, or set another column in `columns`",
            )
        return labels

    def codes(self, role: str) -> tuple[np.ndarray, list[Any]]:
        """Return (n,) int64 indices of each row's value among the distinct values, and these values.

        Values are in order of appearance; -1 stands for a missing value.
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
    """File of a task.

    Attributes:
        store: store of the file.
        path: its path.
        sha256: digest of its content.
        columns: (role, column) of the roles that it has.
        split: value of the split column of the rows to use, None for all.
    """

    store: Store
    path: str
    sha256: str
    columns: tuple[tuple[str, str], ...]
    split: str | None = None

    @property
    def where(self) -> str:
        """Address of the file."""
        return self.store.uri_of(self.path)

    def content(self) -> dict[str, Any]:
        """Return everything that changes a score, for a digest."""
        return {"sha256": self.sha256, "columns": dict(self.columns), "split": self.split}

    def rows(self) -> TaskRows:
        """Read the rows, in order; DataError if the file has changed since it was opened."""
        table = _table(self.store.read_checked(self.path, self.sha256), self.where)
        rows = TaskRows(pa.table({role: table[column] for role, column in self.columns}), self.where)
        if self.split is None:
            return rows
        splits, (codes, values) = self.split, rows.codes("split")
        if splits not in values:
            raise DataError(
                self.where,
                f"rows whose split is {splits!r}",
                f"the splits {', '.join(map(str, values)) or '(none)'}",
                "set the option `split`",
            )
        return rows.take(codes == values.index(splits))


class TaskRoles:
    """Columns that a kind of task needs, by role.

    Attributes:
        forms: alternative tuples of required roles.
        optional: roles that are used if the file has them.
    """

    def __init__(self, *forms: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        self.forms, self.optional = forms, optional


def open_file(
    source: TaskSettings, store: Store, path: str, roles: TaskRoles, split: str | None = None
) -> TaskFile:
    """Open a file with the columns of the first form of `roles` that it has completely.

    Args:
        source: settings of the task.
        store: store of the file.
        path: its path.
        roles: columns of this kind of task.
        split: value of the split column of the rows to use, None for all.

    Raises:
        ConfigError: a role that this kind of task does not have, or one column for two roles.
        DataError: the file is missing, not Parquet, or lacks columns.
    """
    known = list(dict.fromkeys([*(role for form in roles.forms for role in form), *roles.optional, "split"]))
    for role in source.columns:
        if role not in known:
            near = difflib.get_close_matches(role, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{source.uri}: columns", f"a role of a {source.kind} task", repr(role), hint)
    content, where = _content(store, path), store.uri_of(path)
    names = _table(content, where).column_names
    column = {role: source.columns.get(role, role) for role in known}
    by_split = () if split is None else ("split",)
    complete = next((form for form in roles.forms if all(column[role] in names for role in form)), None)
    absent = [role for role in (*source.columns, *by_split) if column[role] not in names]
    if absent or complete is None:
        wanted = [", ".join(column[role] for role in form) for form in ([absent] if absent else roles.forms)]
        raise DataError(
            where,
            f"the columns {' or '.join(wanted)}",
            ", ".join(names) or "(none)",
            "set the columns by role in `columns`",
        )
    for role, other in combinations(complete, 2):
        if column[role] == column[other]:
            raise ConfigError(
                f"{source.uri}: columns",
                "different columns for all roles",
                f"{column[role]!r} for {role} and for {other}",
                "set another column",
            )
    used = dict.fromkeys((*complete, *(role for role in roles.optional if column[role] in names), *by_split))
    return TaskFile(
        store, path, hashlib.sha256(content).hexdigest(), tuple((role, column[role]) for role in used), split
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
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise DataError(
                where, "columns of different names", f"{twice!r} more than once", "rename one of them"
            )
        return file.read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(where, "a Parquet file", " ".join(str(error).split()), "check the file") from None
