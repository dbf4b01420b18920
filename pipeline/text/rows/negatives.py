"""Columns with several hard negatives of a row: negative_1, negative_2 and so on, or lists of texts."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.settings.training import NEGATIVES, SourceSettings
from pipeline.store.rows.arrays import one_chunk, plain_values
from pipeline.text.sources.sources import SourceFile, open_file
from pipeline.text.sources.storage_errors import storage_errors

_ELEMENT = re.compile(r"\A(?P<column>.+)\[(?P<index>\d+)\]\Z")


class ColumnName(NamedTuple):
    """A column of a file, or one element of each list in it."""

    name: str
    element: int | None = None
    """index of the element, from 0; None: the column's own values"""

    @classmethod
    def parse(cls, name: str, columns: Sequence[str]) -> "ColumnName":
        """Parse "column" or "column[3]"; a column that has just this name comes first."""
        match = _ELEMENT.fullmatch(name)
        if name in columns or match is None:
            return cls(name)
        return cls(match["column"], int(match["index"]))

    def values(self, column: pa.Array) -> pa.Array:
        """Return the values of the file's column; null for a list that is shorter, or null."""
        return column if self.element is None else element_of(column, self.element)

    def kind(self, column: pa.DataType) -> pa.DataType | None:
        """Return the type of the values; None for an element of a column without lists."""
        if self.element is None:
            return column
        return column.value_type if is_list(column) else None


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column has lists, of any of Arrow's kinds."""
    kinds = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    return any(getattr(pa.types, f"is_{name}")(kind) for name in kinds)


def element_of(lists: pa.Array, index: int) -> pa.Array:
    """Return element `index` of each list, null for a list that is shorter, or null."""
    lists = _as_lists(lists)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    places = lists.offsets.to_numpy()[:-1] + index
    return lists.values.take(pa.array(places, mask=lengths <= index))


def _as_lists(lists: pa.Array) -> pa.Array:
    """Return lists of any kind as lists with offsets of 64 bits, of plain values."""
    return plain_values(lists).cast(pa.large_list(plain_values(lists).type.value_type))


def default_columns(
    settings: SourceSettings, roles: Sequence[str], schemas: Sequence[pa.Schema]
) -> dict[str, str]:
    """Return the columns of hard negatives that files have under another name than the role's, by role.

    The role negative is in a column negative, negative_1 or negatives; negative2 in negative2 or negative_2,
    and so on up to the first that some file lacks. Roles that the settings name are left out.
    """
    found = {}
    for number, role in enumerate(NEGATIVES, 1):
        names = [role, f"negative_{number}", *(["negatives"] if number == 1 else [])]
        name = settings.columns.get(role) or next(
            (name for name in names if all(name in schema.names for schema in schemas)), None
        )
        if role not in roles or name is None:
            break
        if role not in settings.columns and name != role:
            found[role] = name
    return found


def with_lists(
    settings: SourceSettings,
    roles: Sequence[str],
    files: Sequence[SourceFile],
    schemas: Sequence[pa.Schema],
    say: Callable[[str], None],
) -> SourceSettings:
    """Name the columns of all hard negatives, elements of lists included, in `columns` of the settings.

    If the first column of negatives has lists, they are read once, to find the longest one.

    Args:
        settings: the files and their columns.
        roles: roles that the objectives read.
        files: the files.
        schemas: schema of each file.
        say: gets a sentence if lists have more texts than there are roles.
    """
    columns = {**settings.columns, **default_columns(settings, roles, schemas)}
    readable = [role for role in NEGATIVES if role in roles]
    lists = columns.get("negative", "negative")
    if readable and all(lists in schema.names and is_list(schema.field(lists).type) for schema in schemas):
        longest = max(_longest(file, lists) for file in files)
        if longest > len(readable):
            say(
                f"not used: elements {len(readable) + 1} to {longest} of the lists in {lists}, which the "
                "objective does not read"
            )
        columns = {role: name for role, name in columns.items() if role not in NEGATIVES}
        columns |= {role: f"{lists}[{index}]" for index, role in enumerate(readable[: max(longest, 1)])}
    return settings.model_copy(update={"columns": columns})


def _longest(file: SourceFile, column: str) -> int:
    """Return the length of the longest list in a column of a file."""
    with storage_errors(file.uri, ""), open_file(file) as stream:
        reader = pq.ParquetFile(stream, pre_buffer=False)
        lengths: Iterable[int | None] = (
            pc.max(pc.list_value_length(_as_lists(one_chunk(batch[column])))).as_py()
            for batch in reader.iter_batches(columns=[column])
        )
        return max((length or 0 for length in lengths), default=0)
