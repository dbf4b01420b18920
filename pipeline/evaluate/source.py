"""The Parquet file of a task: its columns by role, its rows in the file's order."""

import difflib
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import Settings, digest_of
from pipeline.errors import ConfigError, DataError
from pipeline.settings import TaskSettings
from pipeline.store.base import Store
from pipeline.text.corpus.columns import plain_type

BLANK = " "  # what a missing text is read as: leaving the row out would change the task


class RowOptions(Settings):
    """Options that every kind of task has."""

    split: str | None = None
    """take the rows with this value in the column `split` only"""


@dataclass(frozen=True)
class Rows:
    """Rows of a task, columns named by role."""

    table: pa.Table
    where: str

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def has(self, role: str) -> bool:
        return role in self.table.column_names

    def texts(self, role: str) -> list[str]:
        """The column as strings; DataError where it is none."""
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
                "name another column in `columns`",
            )
        return [BLANK if text is None else text for text in column.to_pylist()]

    def missing(self, *roles: str) -> int:
        """Texts that are not there."""
        return sum(self.table[role].null_count for role in roles)

    def numbers(self, role: str) -> np.ndarray:
        """(n,) float64, nan where there is none; DataError for a column of another type."""
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
                "name another column in `columns`",
            )
        return np.asarray(pc.cast(column, pa.float64()).to_numpy(), np.float64)

    def labels(self, role: str) -> np.ndarray:
        """(n,) float64, each 0 or 1, nan where there is none; DataError for other values."""
        labels = self.numbers(role)
        wrong = labels[~np.isnan(labels) & (labels != 0) & (labels != 1)]
        if len(wrong):
            raise DataError(
                self.where,
                f"0 or 1 in {role!r}",
                f"{len(wrong):,} other values, such as {wrong[0]:g}",
                "mend the file, or name another column in `columns`",
            )
        return labels

    def codes(self, role: str) -> tuple[np.ndarray, list[Any]]:
        """(n,) int64 place of each row's value among the distinct values, in order of appearance; -1 for none. And the values."""
        column, kind = self.table[role], plain_type(self.table[role].type)
        if pa.types.is_nested(kind):
            raise DataError(
                self.where,
                f"a column of strings or numbers for {role!r}",
                str(kind),
                "name another column in `columns`",
            )
        column = column.cast(kind)
        if pa.types.is_floating(kind):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
        values = pc.drop_null(pc.unique(column))
        return pc.fill_null(
            pc.index_in(column, value_set=values).cast(pa.int64()), -1
        ).to_numpy(), values.to_pylist()

    def take(self, keep: np.ndarray) -> "Rows":
        """The rows where `keep` (n,) bool holds."""
        return Rows(self.table.filter(pa.array(keep)), self.where)


@dataclass(frozen=True)
class TaskFile:
    """A file as its task reads it. columns: (role, column) of those it has. split: the rows taken, None for all."""

    store: Store
    path: str
    sha256: str
    columns: tuple[tuple[str, str], ...]
    split: str | None = None

    @property
    def where(self) -> str:
        return self.store.uri_of(self.path)

    def roles(self) -> set[str]:
        return {role for role, _ in self.columns}

    def content(self) -> dict[str, Any]:
        """What of it changes a score, for a digest."""
        return {"sha256": self.sha256, "columns": dict(self.columns), "split": self.split}

    def rows(self) -> Rows:
        """The rows, in order; DataError if the file changed since it was opened."""
        table = _table(self.store.read_checked(self.path, self.sha256), self.where)
        rows = Rows(pa.table({role: table[column] for role, column in self.columns}), self.where)
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


def open_file(
    source: TaskSettings,
    store: Store,
    path: str,
    forms: Sequence[Sequence[str]],
    optional: Sequence[str] = (),
    split: str | None = None,
) -> TaskFile:
    """The file with the columns of the first of `forms` (sets of roles) that it has whole, and of `optional` roles where they are there.

    DataError for a file that is missing, no Parquet, or of other columns; ConfigError for a role that the kind of task has not.
    """
    known = list(dict.fromkeys([*(role for form in forms for role in form), *optional, "split"]))
    for role in source.columns:
        if role not in known:
            near = difflib.get_close_matches(role, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{source.uri}: columns", f"a role of a {source.kind} task", repr(role), hint)
    content = _content(store, path)
    names = _table(content, store.uri_of(path)).column_names
    column = {role: source.columns.get(role, role) for role in known}
    whole = [form for form in forms if all(column[role] in names for role in form)]
    named = [
        role
        for role in (*source.columns, *(["split"] if split is not None else []))
        if column[role] not in names
    ]
    if named or not whole:
        wanted = (
            " or ".join(", ".join(column[role] for role in form) for form in forms)
            if not named
            else ", ".join(column[role] for role in named)
        )
        raise DataError(
            store.uri_of(path),
            f"the columns {wanted}",
            f"{', '.join(names) or '(none)'}",
            "name the columns by role in `columns`",
        )
    shared = [(role, other) for role, other in combinations(whole[0], 2) if column[role] == column[other]]
    if shared:
        role, other = shared[0]
        raise ConfigError(
            f"{source.uri}: columns",
            "a column for each role",
            f"{column[role]!r} for {role} and for {other}",
            "name another column",
        )
    extra = [role for role in optional if column[role] in names] + (["split"] if split is not None else [])
    return TaskFile(
        store,
        path,
        hashlib.sha256(content).hexdigest(),
        tuple((role, column[role]) for role in dict.fromkeys([*whole[0], *extra])),
        split,
    )


def name_of(source: TaskSettings, path: str) -> str:
    """The task's name: as set, else the file's."""
    return source.name or path.rpartition("/")[2].removesuffix(".parquet")


def digest(kind: str, name: str, file: TaskFile, **options: Any) -> str:
    """sha256 (hex) of what makes a score beside the vectors. The name is in its warnings, names the one subset, and says which splits are expected."""
    return digest_of({"kind": kind, "name": name, **file.content(), **options})


def _content(store: Store, path: str) -> bytes:
    try:
        return store.read(path)
    except FileNotFoundError:
        raise DataError(store.uri_of(path), "a Parquet file", "no such file", "check the path") from None
    except IsADirectoryError:
        raise DataError(store.uri_of(path), "a Parquet file", "a folder", "name the file in it") from None


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
