"""Read the rows of a row group of a training file, columns named by role, one piece at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.settings.training import NEGATIVES, TEXTS, SourceSettings
from pipeline.store.rows.arrays import plain_type
from pipeline.text.rows.negatives import ColumnName
from pipeline.text.rows.roles import has_label, has_text
from pipeline.text.sources.sources import SourceFile, open_file
from pipeline.text.sources.storage_errors import storage_errors

_PIECE_ROWS = 8_192  # decoded at once: about 1 MB of sentences
_READ_AHEAD_BYTES = 1 << 20  # per column


@dataclass(frozen=True)
class RowGroup:
    """A row group of a training file."""

    file: SourceFile
    number: int
    """index in its file"""
    first_row: int
    """number of its first row in all files together"""
    first_row_in_file: int
    """number of its first row in its own file"""
    kept: int
    """rows that are used for training"""


@dataclass(frozen=True)
class Span:
    """The rows from `start` up to `stop` among the kept rows of a row group."""

    group: RowGroup
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def required_texts(settings: SourceSettings, roles: Sequence[str], needed: Sequence[str]) -> tuple[str, ...]:
    """Roles whose text a row must have to be kept.

    Args:
        settings: with missing=drop, these are all roles of texts.
        roles: roles of the columns that are read.
        needed: the roles that the objectives need. With missing=blank, a row must still have a text for each
            hard negative among these roles, because a blank would be trained as a negative.
    """
    if settings.missing == "drop":
        return tuple(role for role in roles if role in TEXTS)
    return tuple(role for role in needed if role in NEGATIVES)


def read_kept(
    settings: SourceSettings, group: RowGroup, roles: Sequence[str], required: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the kept rows of a row group, which have a text in every role of `required`.

    Columns are named by role and have the file's values; `row` is the row's number in the file.
    """
    for piece in read_labelled(settings, group, tuple(dict.fromkeys([*roles, *required]))):
        yield with_texts(piece, required).select([*roles, "row"])


def read_labelled(settings: SourceSettings, group: RowGroup, roles: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a row group: columns named by role, and `row`, the row's number in the file.

    Columns have plain types, because Arrow cannot select rows of string views. If the label is among the
    roles, rows without a label are left out.
    """
    with storage_errors(group.file.uri, ""), open_file(group.file) as stream:
        reader = pq.ParquetFile(stream, buffer_size=_READ_AHEAD_BYTES, pre_buffer=False)
        if group.number >= reader.metadata.num_row_groups:
            raise file_changed(group, 0)
        row = group.first_row_in_file
        known = reader.schema_arrow.names
        names = {role: ColumnName.parse(settings.columns.get(role, role), known) for role in roles}
        columns = list(dict.fromkeys(name.name for name in names.values()))
        for batch in reader.iter_batches(_PIECE_ROWS, row_groups=[group.number], columns=columns):
            own = {role: name.values(batch[name.name]) for role, name in names.items()}
            values = {role: array.cast(plain_type(array.type)) for role, array in own.items()}
            piece = pa.table(values | {"row": np.arange(row, row + len(batch))})
            if "label" in roles:
                piece = piece.filter(pa.array(has_label(piece["label"], settings.values)))
            yield piece
            row += len(batch)


def with_texts(piece: pa.Table, roles: Sequence[str]) -> pa.Table:
    """The rows that have a text in every one of these roles.

    A blank does not count as the text of a hard negative.
    """
    lacking = [role for role in roles if role in NEGATIVES or piece[role].null_count]
    if not lacking:
        return piece
    checks = ((has_text if role in NEGATIVES else pc.is_valid)(piece[role]) for role in lacking)
    return piece.filter(reduce(pc.and_, checks))


def file_changed(group: RowGroup, rows: int) -> DataError:
    """The error for a row group that has another number of rows than when training began."""
    return group.file.error(
        f"{group.kept:,} rows in row group {group.number}, as when training began",
        f"{rows:,}",
        "train on files that do not change",
    )
