"""Training rows in Parquet files: columns by role, each row by its number, read a piece at a time."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.settings.training import PairSettings
from pipeline.text.roles import converted, expected_type, has_type, labelled
from pipeline.text.sources import SourceFile, explained, list_files, open_file

_PIECE_ROWS = 8_192             # decoded at once: 1 MB of sentences
_BUFFER = 1 << 20               # bytes read ahead per column
_SCANNED = ("label", "score")   # columns that are read before the first step: they decide which rows there are, and an error in them should not come in the night


@dataclass(frozen=True)
class Group:
    """A row group of a file. first: number of its first row among the rows of all files; row: in its own file; kept: rows that are trained on."""

    file: SourceFile
    number: int
    first: int
    row: int
    kept: int


@dataclass(frozen=True)
class Span:
    """Kept rows number start to stop of a row group."""

    group: Group
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Pairs:
    """Rows of training files, by role. Pickles; holds footers' figures only, no rows."""

    settings: PairSettings
    roles: tuple[str, ...]
    groups: tuple[Group, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    """rows: in the files; unlabelled: of them, left out"""

    def __len__(self) -> int:
        return sum(group.kept for group in self.groups)

    @property
    def name(self) -> str:
        return self.settings.uri

    def spans(self) -> list[Span]:
        """All rows, in the files' order."""
        return [Span(group, 0, group.kept) for group in self.groups if group.kept]

    def read(self, spans: Sequence[Span], roles: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Their rows in order, a piece at a time: `roles` (all, if none are named) as `converted` has them, and `row`, int64, its number among all rows of all files.

        Within a row group what stands before a span has to be decoded too. DataError for a wrong value, and for a file that changed.
        """
        wanted = tuple(dict.fromkeys([*(roles or self.roles), *(["label"] if "label" in self.roles else [])]))      # which rows there are depends on it
        for span in spans:
            before = 0
            for piece in _kept(self.settings, span.group, wanted):
                first, last = max(span.start - before, 0), min(span.stop - before, len(piece))
                if last > first:
                    table = converted(piece.slice(first, last - first), self.settings.values, span.group.file.uri)
                    yield table.set_column(table.column_names.index("row"), "row", pa.array(table["row"].to_numpy() + (span.group.first - span.group.row)))
                if (before := before + len(piece)) >= span.stop:
                    break
            else:
                raise _changed(span.group, before)


def open_pairs(settings: PairSettings, roles: Sequence[str], optional: Sequence[str] = ()) -> Pairs:
    """The files with the columns of `roles`, and of those `optional` ones that all files have. Rows are counted by the footers; labels and scores are read and checked.

    DataError for no file, no row, a column that is missing or of another type, a label outside the set, a score outside its range.
    """
    files = files_of(settings.uri)
    schemas = [_schema(file) for file in files]
    there = [role for role in optional if role not in roles and all(settings.columns.get(role, role) in schema.names for schema, _ in schemas)]
    taken = (*roles, *there)
    for file, (schema, _) in zip(files, schemas, strict=True):
        _check(file, schema, settings, taken)
    groups, first = [], 0
    for file, (_, sizes) in zip(files, schemas, strict=True):
        for number, rows in enumerate(sizes):
            groups.append(_scanned(settings, Group(file, number, first, sum(sizes[:number]), rows), taken))
            first += rows
    pairs = Pairs(settings, taken, tuple(groups), {"rows": first, "unlabelled": first - sum(group.kept for group in groups)})
    if not len(pairs):
        raise DataError(settings.uri, "rows to train on", f"{first:,} rows, none of them with a label" if first else "no row", "check the files")
    return pairs


def files_of(uri: str) -> list[SourceFile]:
    """The Parquet files with training rows at a URI, by name. DataError where there are none."""
    try:
        return list_files(CorpusSettings(uri=uri, format="parquet"))
    except DataError as error:
        raise DataError(error.where, error.expected, error.found, "check the URI of the training rows") from None


def _schema(file: SourceFile) -> tuple[pa.Schema, list[int]]:
    """Columns, and rows of each row group, by the footer."""
    with explained(file.uri, ""), open_file(file) as stream:
        opened = pq.ParquetFile(stream)
        return opened.schema_arrow, [opened.metadata.row_group(number).num_rows for number in range(opened.metadata.num_row_groups)]


def _check(file: SourceFile, schema: pa.Schema, settings: PairSettings, roles: Sequence[str]) -> None:
    for role in roles:
        column = settings.columns.get(role, role)
        if schema.names.count(column) != 1:
            near = difflib.get_close_matches(column, schema.names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near and near[0] != column else ""
            raise file.error(f"a column {column!r} for the role {role}", f"the columns {', '.join(schema.names) or '(none)'}", f"name the column in `columns`{hint}")
        if not has_type(role, schema.field(column).type):
            found = f"{column!r} of type {schema.field(column).type}"
            raise file.error(f"a column of {expected_type(role)} for the role {role}", found, "name another column in `columns`")


def _scanned(settings: PairSettings, group: Group, roles: Sequence[str]) -> Group:
    """The group with the number of its kept rows."""
    wanted = [role for role in _SCANNED if role in roles]
    if not wanted:
        return group
    kept = 0
    for piece in _kept(settings, group, wanted):
        kept += len(converted(piece, settings.values, group.file.uri))
    return replace(group, kept=kept)


def _kept(settings: PairSettings, group: Group, roles: Sequence[str]) -> Iterator[pa.Table]:
    """Kept rows of a group as the file has them, columns named by role, and `row`: its number in the file."""
    with explained(group.file.uri, ""), open_file(group.file) as stream:
        opened = pq.ParquetFile(stream, buffer_size=_BUFFER, pre_buffer=False)
        if group.number >= opened.metadata.num_row_groups:
            raise _changed(group, 0)
        row = group.row
        filtered = "label" in roles
        names = {role: settings.columns.get(role, role) for role in roles}
        for batch in opened.iter_batches(batch_size=_PIECE_ROWS, row_groups=[group.number], columns=list(dict.fromkeys(names.values()))):
            piece = pa.table({role: batch.column(name) for role, name in names.items()} | {"row": np.arange(row, row + len(batch))})
            yield piece.filter(pa.array(labelled(piece["label"], settings.values))) if filtered else piece
            row += len(batch)


def _changed(group: Group, found: int) -> DataError:
    return group.file.error(f"{group.kept:,} rows in row group {group.number}, as when training began", f"{found:,}", "give the training files that do not change")
