"""Training rows in Parquet files: columns by role, each row by its number, read a piece at a time."""

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.settings.training import TEXTS, PairSettings
from pipeline.text.corpus.sources import SourceFile, explained, list_files, open_file
from pipeline.text.rows.augmented import is_manifest, newest, units_of
from pipeline.text.rows.roles import converted, expected_type, has_type, labelled

_PIECE_ROWS = 8_192  # decoded at once: 1 MB of sentences
_BUFFER = 1 << 20  # bytes read ahead per column
_SCANNED = (
    "label",
    "score",
)  # columns that are read before the first step: they decide which rows there are, and an error in them should not come in the night


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
    """rows: in the files; of them left out, unlabelled: without a label; missing: without a text, where `missing` says drop"""

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
        wanted = tuple(
            dict.fromkeys([*(roles or self.roles), *(["label"] if "label" in self.roles else [])])
        )  # which rows there are depends on it
        for span in spans:
            before = 0
            for piece in _kept(self.settings, span.group, wanted, _whole(self.settings, self.roles)):
                first, last = max(span.start - before, 0), min(span.stop - before, len(piece))
                if last > first:
                    table = converted(
                        piece.slice(first, last - first), self.settings.values, span.group.file.uri
                    )
                    yield table.set_column(
                        table.column_names.index("row"),
                        "row",
                        pa.array(table["row"].to_numpy() + (span.group.first - span.group.row)),
                    )
                if (before := before + len(piece)) >= span.stop:
                    break
            else:
                raise _changed(span.group, before)


def open_pairs(settings: PairSettings, roles: Sequence[str], optional: Sequence[str] = ()) -> Pairs:
    """The files with the columns of `roles`, and of those `optional` ones that all files have. Rows are counted by the footers; labels and scores are read and checked,
    and where rows without a text are left out, those columns whose footers do not say enough.

    DataError for no file, no row, a column that is missing or of another type, a label outside the set, a score outside its range.
    """
    files = files_of(settings.uri)
    footers = [_footer(file) for file in files]
    there = [
        role
        for role in optional
        if role not in roles
        and all(settings.columns.get(role, role) in footer.schema.names for footer in footers)
    ]
    taken = (*roles, *there)
    for file, footer in zip(files, footers, strict=True):
        _check(file, footer.schema, settings, taken)
    groups, counts = [], Counter(rows=0, unlabelled=0, missing=0)
    for file, footer in zip(files, footers, strict=True):
        for number, rows in enumerate(footer.sizes):
            group = Group(file, number, counts["rows"], sum(footer.sizes[:number]), rows)
            groups.append(_scanned(settings, group, taken, footer.missing[number], counts))
            counts["rows"] += rows
    pairs = Pairs(settings, taken, tuple(groups), dict(counts))
    if not len(pairs):
        raise DataError(settings.uri, "rows to train on", _nothing(counts), "check the files")
    return pairs


def files_of(uri: str) -> list[SourceFile]:
    """The Parquet files with training rows at a URI, by name; the units of a manifest of `manta augment`, or of the newest one of a folder, in their order. DataError
    where there are none."""
    manifest = uri if is_manifest(uri) else newest(uri)
    if manifest is not None:
        return units_of(manifest)
    try:
        return list_files(CorpusSettings(uri=uri, format="parquet"))
    except DataError as error:
        raise DataError(
            error.where, error.expected, error.found, "check the URI of the training rows"
        ) from None


@dataclass(frozen=True)
class _Footer:
    """What a file says of itself. sizes: rows of each row group; missing: of each row group, column -> nulls; a column of which that is not said is not there."""

    schema: pa.Schema
    sizes: list[int]
    missing: list[dict[str, int]]


def _footer(file: SourceFile) -> _Footer:
    with explained(file.uri, ""), open_file(file) as stream:
        opened = pq.ParquetFile(stream)
        groups = [opened.metadata.row_group(number) for number in range(opened.metadata.num_row_groups)]
        return _Footer(
            opened.schema_arrow, [group.num_rows for group in groups], [_nulls(group) for group in groups]
        )


def _nulls(group: pq.RowGroupMetaData) -> dict[str, int]:
    chunks = (group.column(place) for place in range(group.num_columns))
    return {
        chunk.path_in_schema: chunk.statistics.null_count
        for chunk in chunks
        if chunk.statistics is not None and chunk.statistics.has_null_count
    }


def _nothing(counts: Mapping[str, int]) -> str:
    """Why there is no row, in words."""
    if not counts["rows"]:
        return "no row"
    lacking = {"unlabelled": "with a label", "missing": "with every text"}
    return f"{counts['rows']:,} rows, none of them {' and '.join(said for name, said in lacking.items() if counts[name])}"


def _check(file: SourceFile, schema: pa.Schema, settings: PairSettings, roles: Sequence[str]) -> None:
    for role in roles:
        column = settings.columns.get(role, role)
        if schema.names.count(column) != 1:
            near = difflib.get_close_matches(column, schema.names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near and near[0] != column else ""
            raise file.error(
                f"a column {column!r} for the role {role}",
                f"the columns {', '.join(schema.names) or '(none)'}",
                f"name the column in `columns`{hint}",
            )
        if not has_type(role, schema.field(column).type):
            found = f"{column!r} of type {schema.field(column).type}"
            raise file.error(
                f"a column of {expected_type(role)} for the role {role}",
                found,
                "name another column in `columns`",
            )


def _scanned(
    settings: PairSettings,
    group: Group,
    roles: Sequence[str],
    missing: Mapping[str, int],
    counts: Counter[str],
) -> Group:
    """The group with the number of its kept rows; what is left out is added to `counts`. missing: nulls by column, by the footer: often nothing has to be read."""
    checked = [role for role in _SCANNED if role in roles]
    nulls = {role: missing.get(settings.columns.get(role, role)) for role in _whole(settings, roles)}
    told = None if checked else _told(group.kept, [count for count in nulls.values() if count != 0])
    left_out = (
        Counter(missing=told)
        if told is not None
        else _left_out(settings, group, checked, [role for role, count in nulls.items() if count != 0])
    )
    counts.update(left_out)
    return replace(group, kept=group.kept - left_out.total())


def _told(rows: int, nulls: Sequence[int | None]) -> int | None:
    """Of so many rows those that lack one of some texts, where that follows from how many lack each of them (null: not known)."""
    if not nulls or rows in nulls:
        return rows if nulls else 0
    return nulls[0] if len(nulls) == 1 else None


def _left_out(
    settings: PairSettings, group: Group, checked: Sequence[str], whole: Sequence[str]
) -> Counter[str]:
    """Rows that are left out and why. DataError for a wrong value of a row that is kept."""
    found = Counter(unlabelled=group.kept, missing=0)
    for piece in _labelled(settings, group, (*checked, *whole)):
        kept = _with(piece, whole)
        converted(kept.select([*checked, "row"]), settings.values, group.file.uri)
        found.update(unlabelled=-len(piece), missing=len(piece) - len(kept))
    return found


def _whole(settings: PairSettings, roles: Sequence[str]) -> list[str]:
    """Roles without whose text a row is left out."""
    return [role for role in roles if role in TEXTS] if settings.missing == "drop" else []


def _kept(
    settings: PairSettings, group: Group, roles: Sequence[str], whole: Sequence[str]
) -> Iterator[pa.Table]:
    """Kept rows of a group as the file has them, columns named by role, and `row`: its number in the file. whole: roles of which a kept row has every text."""
    for piece in _labelled(settings, group, tuple(dict.fromkeys([*roles, *whole]))):
        yield _with(piece, whole).select([*roles, "row"])


def _with(piece: pa.Table, whole: Sequence[str]) -> pa.Table:
    """The rows that have a text of each of these roles."""
    if not any(piece[role].null_count for role in whole):
        return piece
    return piece.filter(reduce(pc.and_, (pc.is_valid(piece[role]) for role in whole)))


def _labelled(settings: PairSettings, group: Group, roles: Sequence[str]) -> Iterator[pa.Table]:
    """The group's rows, those without a label left out if it is read, columns named by role, and `row`."""
    with explained(group.file.uri, ""), open_file(group.file) as stream:
        opened = pq.ParquetFile(stream, buffer_size=_BUFFER, pre_buffer=False)
        if group.number >= opened.metadata.num_row_groups:
            raise _changed(group, 0)
        row = group.row
        filtered = "label" in roles
        names = {role: settings.columns.get(role, role) for role in roles}
        for batch in opened.iter_batches(
            batch_size=_PIECE_ROWS, row_groups=[group.number], columns=list(dict.fromkeys(names.values()))
        ):
            piece = pa.table(
                {role: batch.column(name) for role, name in names.items()}
                | {"row": np.arange(row, row + len(batch))}
            )
            yield piece.filter(pa.array(labelled(piece["label"], settings.values))) if filtered else piece
            row += len(batch)


def _changed(group: Group, found: int) -> DataError:
    return group.file.error(
        f"{group.kept:,} rows in row group {group.number}, as when training began",
        f"{found:,}",
        "give the training files that do not change",
    )
