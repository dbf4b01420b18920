"""The columns and live rows of a Parquet file, as the corpus sees them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.store.rows.arrays import plain_type
from pipeline.text.sources.delete_files import deleted_rows, rows_of_vector
from pipeline.text.sources.lake_file import TableFile
from pipeline.text.sources.sources import SourceFile

_FIELD_ID = b"PARQUET:field_id"
_NULL = pa.scalar(None, pa.null())


@dataclass(frozen=True)
class FileView:
    """The columns of a file by their names in the corpus, and the rows that its table has deleted."""

    stored: Mapping[str, str]
    """name in the file of each column that is in it"""
    constants: Mapping[str, pa.Scalar]
    """values of columns that are not in the file, the same in all rows"""
    kinds: Mapping[str, pa.DataType]
    """types of columns in the table"""
    deleted: np.ndarray
    """(n,) int64, ascending: numbers of the deleted rows"""

    @property
    def names(self) -> list[str]:
        """Names of all columns."""
        return list(dict.fromkeys([*self.constants, *self.stored]))

    def types(self, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return the types of all columns; `schema` is the file's.

        Numbers and times have the type that they have in the table, which may be wider than in the file.
        """
        stored = {
            name: _wider(schema.field(column).type, self.kinds.get(name, _NULL.type))
            for name, column in self.stored.items()
        }
        return {**{name: value.type for name, value in self.constants.items()}, **stored}

    def stored_names(self, columns: Iterable[str]) -> list[str]:
        """Return the names in the file, each once, of those of the columns that the file has."""
        return list(dict.fromkeys(self.stored[name] for name in columns if name in self.stored))

    def live_count(self, start: int, stop: int) -> int:
        """Count the rows from `start` to `stop` that are not deleted."""
        return stop - start - int(np.diff(np.searchsorted(self.deleted, [start, stop]))[0])

    def live_rows(self, rows: pa.Table, start: int) -> pa.Table:
        """Return these rows of the file without deleted rows; `start` is the number of the first."""
        first, last = np.searchsorted(self.deleted, [start, start + len(rows)])
        if first == last:
            return rows
        is_live = np.ones(len(rows), bool)
        is_live[self.deleted[first:last] - start] = False
        return rows.filter(pa.array(is_live))

    def select(self, rows: pa.Table, names: Iterable[str]) -> pa.Table:
        """Return columns of rows of the file; `names` are the columns' names in the corpus."""
        return pa.table({name: self._column(rows, name) for name in dict.fromkeys(names)})

    def _column(self, rows: pa.Table, name: str) -> pa.ChunkedArray:
        if name in self.stored:
            return rows[self.stored[name]]
        return pa.chunked_array([pa.repeat(self.constants[name], len(rows))])


def view_of(file: SourceFile, schema: pa.Schema, rows: int) -> FileView:
    """Return how the corpus sees a file.

    Args:
        file: the file; if a table has deleted rows of it, its delete files and its vector are read.
        schema: schema of the file.
        rows: number of rows of the file.

    Raises:
        DataError: the file does not fit the metadata of its table.
    """
    if file.table is None:
        counts = Counter(schema.names)  # a name that occurs twice is ambiguous
        stored = {name: name for name in schema.names if counts[name] == 1}
        values = {name: pa.scalar(value, pa.string()) for name, value in file.partitions.items()}
        return FileView(
            stored, {name: values[name] for name in values if name not in stored}, {}, _sorted([])
        )
    stored = _stored_columns(file, file.table, schema)
    names = dict.fromkeys([*file.table.columns, *file.table.constants])
    constants = {name: file.table.constants.get(name, _NULL) for name in names if name not in stored}
    table = file.table
    listed = [deleted_rows(each, table.location, rows) for each in table.delete_files]
    deleted = _sorted(listed + ([rows_of_vector(table.vector, rows)] if table.vector else []))
    if len(deleted) and deleted[-1] >= rows:
        raise file.error(
            f"deleted rows below {rows}", f"row {deleted[-1]}", "check the metadata of the table"
        )
    kinds = {name: column.kind for name, column in table.columns.items() if column.kind is not None}
    return FileView(stored, constants, kinds, deleted)


def _wider(kind: pa.DataType, in_table: pa.DataType) -> pa.DataType:
    """Return the type of a column by its types in the file and in the table.

    Types in the table differ from types in older files if they were widened, and for times that are stored as
    INT96, which has no time zone. Nanoseconds in the file are kept.
    """
    plain = plain_type(kind)
    if pa.types.is_timestamp(in_table):
        is_coarser = pa.types.is_date(plain) or (pa.types.is_timestamp(plain) and plain.unit != "ns")
        return in_table if is_coarser else kind
    return in_table if _is_number(plain) and _is_number(in_table) else kind


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _sorted(rows: list[np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate([np.zeros(0, np.int64), *rows]))


def _stored_columns(file: SourceFile, table: TableFile, schema: pa.Schema) -> dict[str, str]:
    """Return, for each column of the table that the file has, its name in the file."""
    names = dict.fromkeys(schema.names)
    by_id = {int(column.metadata[_FIELD_ID]): column.name for column in schema if _has_id(column)}
    if not by_id and not any(column.names for column in table.columns.values()):
        raise file.error(
            "field ids in the file, or a name mapping of the table (schema.name-mapping.default)",
            "neither",
            "set the property of the table, or write the file again",
        )
    stored = {}
    for name, column in table.columns.items():
        if column.field_id is not None and by_id:
            found = by_id.get(column.field_id)
        else:
            found = next((each for each in column.names if each in names), None)
        if found is not None:
            stored[name] = found
    return stored


def _has_id(column: pa.Field) -> bool:
    return column.metadata is not None and _FIELD_ID in column.metadata


def other_fields(file: SourceFile, name: str, kind: pa.DataType) -> pa.DataType | None:
    """Return a nested column's type in the table if its fields have other names in the file, else None.

    Such a column cannot be read, because only top-level columns are renamed.
    """
    column = file.table.columns.get(name) if file.table else None
    if column is None or column.kind is None or pa.types.is_null(kind):
        return None
    return column.kind if _field_names(column.kind) != _field_names(kind) else None


def _field_names(kind: pa.DataType) -> list[tuple[str, list[Any]]]:
    """Return the names of the struct fields in a type, each with the names inside of the field."""
    fields = [kind.field(index) for index in range(kind.num_fields)]
    is_struct = pa.types.is_struct(kind)
    return [(field.name if is_struct else "", _field_names(field.type)) for field in fields]
