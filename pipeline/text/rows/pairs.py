"""Training rows in Parquet files: columns named by role, and rows numbered over all files."""

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.settings.training import PairSettings
from pipeline.text.corpus.sources import SourceFile, list_files, open_file
from pipeline.text.corpus.storage_errors import storage_errors
from pipeline.text.rows.augmented import is_manifest, manifest_units, newest_manifest
from pipeline.text.rows.roles import convert_values, expected_type, has_type
from pipeline.text.rows.row_groups import (
    RowGroup,
    Span,
    file_changed,
    read_kept,
    read_labelled,
    required_texts,
    with_texts,
)

# read before the first step: they decide which rows are kept, and an error in them should show at once
_CHECKED_FIRST = ("label", "score")


@dataclass(frozen=True)
class TrainingRows:
    """Rows of training files, by role. Holds counts from the footers, no rows, so it is cheap to pickle."""

    settings: PairSettings
    roles: tuple[str, ...]
    groups: tuple[RowGroup, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    """rows: all rows of the files; unlabelled: rows left out because they have no label; missing: rows left
    out because they lack a text (missing=drop)
    """

    def __len__(self) -> int:
        return sum(group.kept for group in self.groups)

    @property
    def name(self) -> str:
        """URI of the files."""
        return self.settings.uri

    def spans(self) -> list[Span]:
        """All rows, in the order of the files."""
        return [Span(group, 0, group.kept) for group in self.groups if group.kept]

    def read(self, spans: Sequence[Span], roles: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield the rows of the spans in order, one piece at a time.

        Within a row group, the rows before a span have to be decoded too.

        Args:
            spans: the rows wanted.
            roles: the columns wanted; all if empty.

        Returns:
            Tables with the columns as `convert_values` makes them, and `row`, int64: the number among all
                rows of all files.

        Raises:
            DataError: a value is invalid, or a file has changed.
        """
        label = ["label"] if "label" in self.roles else []  # decides which rows are kept
        wanted = tuple(dict.fromkeys([*(roles or self.roles), *label]))
        required = required_texts(self.settings, self.roles)
        for span in spans:
            group, before = span.group, 0
            for piece in read_kept(self.settings, group, wanted, required):
                first, last = max(span.start - before, 0), min(span.stop - before, len(piece))
                if last > first:
                    values = self.settings.values
                    table = convert_values(piece.slice(first, last - first), values, group.file.uri)
                    rows = pa.array(table["row"].to_numpy() + (group.first - group.row))
                    yield table.set_column(table.column_names.index("row"), "row", rows)
                if (before := before + len(piece)) >= span.stop:
                    break
            else:
                raise file_changed(group, before)


def open_training_rows(
    settings: PairSettings, roles: Sequence[str], optional: Sequence[str] = ()
) -> TrainingRows:
    """Open the training files of a setting. Rows are counted from the footers.

    Labels and scores are read and checked now. If rows without a text are left out, the text columns whose
    footers have no null counts are read too.

    Args:
        settings: the files and their columns.
        roles: columns that every file must have.
        optional: columns that are used if every file has them.

    Raises:
        DataError: there is no file or no row, a column is missing or has the wrong type, a label is not in
            the set, or a score is out of range.
    """
    files = training_files(settings.uri)
    footers = list(map(_read_footer, files))
    common = set[str].intersection(*(set(schema.names) for schema, _ in footers))
    present = (role for role in optional if settings.columns.get(role, role) in common)
    taken = tuple(dict.fromkeys([*roles, *present]))
    for file, (schema, _) in zip(files, footers, strict=True):
        _check_columns(file, schema, settings, taken)
    groups, counts = [], Counter(rows=0, unlabelled=0, missing=0)
    for file, (_, footer) in zip(files, footers, strict=True):
        first = counts["rows"]
        for number, found in enumerate(footer):
            group = RowGroup(file, number, counts["rows"], counts["rows"] - first, found.num_rows)
            groups.append(_count_kept(settings, group, taken, _null_counts(found), counts))
            counts["rows"] += found.num_rows
    pairs = TrainingRows(settings, taken, tuple(groups), dict(counts))
    if not len(pairs):
        raise DataError(settings.uri, "rows to train on", _reason_for_no_rows(counts), "check the files")
    return pairs


def training_files(uri: str) -> list[SourceFile]:
    """List the Parquet files of training rows at a URI.

    These are files by name, or units in the order of a manifest of `manta augment`; a folder of manifests
    means its newest one.

    Raises:
        DataError: there are no files.
    """
    manifest = uri if is_manifest(uri) else newest_manifest(uri)
    if manifest is not None:
        return manifest_units(manifest)
    try:
        return list_files(CorpusSettings(uri=uri, format="parquet"))
    except DataError as error:
        raise DataError(
            error.where, error.expected, error.found, "check the URI of the training rows"
        ) from None


def _read_footer(file: SourceFile) -> tuple[pa.Schema, list[pq.RowGroupMetaData]]:
    """Read (schema, statistics of each row group) from a file's footer."""
    with storage_errors(file.uri, ""), open_file(file) as stream:
        opened = pq.ParquetFile(stream)
        return opened.schema_arrow, list(map(opened.metadata.row_group, range(opened.num_row_groups)))


def _null_counts(group: pq.RowGroupMetaData) -> dict[str, int]:
    """Nulls by column; columns without a null count are left out."""
    return {
        chunk.path_in_schema: chunk.statistics.null_count
        for chunk in map(group.column, range(group.num_columns))
        if chunk.statistics is not None and chunk.statistics.has_null_count
    }


def _reason_for_no_rows(counts: Mapping[str, int]) -> str:
    """Say why no row is left."""
    if not counts["rows"]:
        return "no row"
    lacking = {"unlabelled": "with a label", "missing": "with every text"}
    reasons = " and ".join(text for name, text in lacking.items() if counts[name])
    return f"{counts['rows']:,} rows, none of them {reasons}"


def _check_columns(file: SourceFile, schema: pa.Schema, settings: PairSettings, roles: Sequence[str]) -> None:
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
            raise file.error(
                f"a column of {expected_type(role)} for the role {role}",
                f"{column!r} of type {schema.field(column).type}",
                "name another column in `columns`",
            )


def _count_kept(
    settings: PairSettings,
    group: RowGroup,
    roles: Sequence[str],
    missing: Mapping[str, int],
    counts: Counter[str],
) -> RowGroup:
    """Return the group with its number of kept rows, and add the excluded rows to `counts`.

    The nulls by column from the footer (`missing`) often are enough, so that no row has to be read.
    """
    checked = [role for role in _CHECKED_FIRST if role in roles]
    nulls = {role: missing.get(settings.columns.get(role, role)) for role in required_texts(settings, roles)}
    uncertain = {role: count for role, count in nulls.items() if count != 0}
    known = None if checked else _missing_by_footer(group.kept, list(uncertain.values()))
    excluded = (
        _scan_for_excluded(settings, group, checked, list(uncertain))
        if known is None
        else Counter(missing=known)
    )
    counts.update(excluded)
    return replace(group, kept=group.kept - excluded.total())


def _missing_by_footer(rows: int, nulls: Sequence[int | None]) -> int | None:
    """Number of rows that lack one of several texts, if the null counts of the columns show it; else None.

    Args:
        rows: number of rows.
        nulls: null count of each column that may have nulls; None if unknown.
    """
    if not nulls or rows in nulls:
        return rows if nulls else 0
    return nulls[0] if len(nulls) == 1 else None


def _scan_for_excluded(
    settings: PairSettings, group: RowGroup, checked: Sequence[str], required: Sequence[str]
) -> Counter[str]:
    """Count the excluded rows by reason. DataError for an invalid value in a row that is kept."""
    found = Counter(unlabelled=group.kept, missing=0)
    for piece in read_labelled(settings, group, (*checked, *required)):
        kept = with_texts(piece, required)
        convert_values(kept.select([*checked, "row"]), settings.values, group.file.uri)
        found.update(unlabelled=-len(piece), missing=len(piece) - len(kept))
    return found
