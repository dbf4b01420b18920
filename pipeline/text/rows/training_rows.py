"""Training rows in Parquet files: columns named by role, and rows numbered over all files."""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError, TransientError
from pipeline.log import announce
from pipeline.settings import CorpusSettings
from pipeline.settings.training import NEGATIVES, ROLES, TEXTS, SourceSettings
from pipeline.text.rows.augmented import is_manifest, manifest_units, newest_manifest
from pipeline.text.rows.negatives import ColumnName, with_lists
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
from pipeline.text.sources.sources import CorpusFiles, SourceFile, list_corpus, open_file
from pipeline.text.sources.storage_errors import storage_errors

# Roles whose columns are read before the first step: labels decide which rows are kept, and an invalid
# label or score should show at once.
_CHECKED_FIRST = ("label", "score")
_NEGATIVE = re.compile(r"(hard[_-]?)?negatives?[_-]?\d*", re.IGNORECASE)


@dataclass(frozen=True)
class TrainingRows:
    """Rows of training files, by role.

    It has the counts of the footers but no rows, so it is cheap to pickle.
    """

    settings: SourceSettings
    roles: tuple[str, ...]
    groups: tuple[RowGroup, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers of rows by name.

    rows: all rows of the files; unlabelled: rows left out because they have no label; missing: rows left out
    because they lack one of the `required` texts.
    """
    required: tuple[str, ...] = ()
    """roles whose text a row must have; see `required_texts`"""

    def __len__(self) -> int:
        return sum(group.kept for group in self.groups)

    @property
    def name(self) -> str:
        """Name of the source, or the URI of its files if it has none."""
        return self.settings.name or self.settings.uri

    def spans(self) -> list[Span]:
        """All rows, in the order of the files."""
        return [Span(group, 0, group.kept) for group in self.groups if group.kept]

    def read(self, spans: Sequence[Span], roles: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield the rows of the spans in order, one piece at a time.

        Rows of a row group before the span are decoded too.

        Args:
            spans: the rows to read.
            roles: the columns to read; all if empty.

        Returns:
            Tables with the columns that `convert_values` returns, and `row`, int64: the row's number in all
                files together.

        Raises:
            DataError: a value is invalid, or a file has changed.
        """
        label = ["label"] if "label" in self.roles else []  # decides which rows are kept
        columns = tuple(dict.fromkeys([*(roles or self.roles), *label]))
        for span in spans:
            group, rows_read = span.group, 0
            for piece in read_kept(self.settings, group, columns, self.required):
                first, end = max(span.start - rows_read, 0), min(span.stop - rows_read, len(piece))
                if end > first:
                    wanted = piece.slice(first, end - first)
                    table = convert_values(wanted, self.settings.values, group.file.uri)
                    rows = pa.array(table["row"].to_numpy() + (group.first_row - group.first_row_in_file))
                    yield table.set_column(table.column_names.index("row"), "row", rows)
                rows_read += len(piece)
                if rows_read >= span.stop:
                    break
            else:
                raise file_changed(group, rows_read)

    def check_unchanged(self) -> None:
        """Raise TransientError if a file has changed since the rows were opened."""
        if _is_augmented(self.settings.uri):
            return
        stamps = {group.file.uri: group.file.stamp for group in self.groups}
        if (uri := changed_file(stamps, [self.settings.uri])) is not None:
            raise TransientError(
                uri,
                "a file that does not change",
                "one that changed while it was read",
                "run again when all its rows are written",
            )


def open_training_rows(
    settings: SourceSettings, roles: Sequence[str], optional: Sequence[str] = ()
) -> TrainingRows:
    """Open the training files that the settings name. Rows are counted from the files' footers.

    Labels and scores are read and checked now. Text columns that decide which rows are left out are also
    read if the footers have no null counts.

    Args:
        settings: the files and their columns.
        roles: columns that every file must have.
        optional: columns that are used if every file has them, or if `settings` name them.

    Raises:
        DataError: there is no file or no row, a column is missing or has the wrong type, there is a column
            negative2 without a column negative (and so on), a label is not in the set, or a score is out of
            range.
    """
    files = (listed := list_training_files(settings.uri)).files
    if listed.warning:
        announce(listed.warning)
    footers = list(map(read_footer, files))
    schemas = [schema for schema, _ in footers]
    settings = with_lists(settings, (*roles, *optional), files, schemas, partial(_say, settings.uri))
    present = (role for role in optional if _is_used(role, settings, schemas))
    used_roles = tuple(dict.fromkeys([*roles, *present]))
    _check_first_negative(settings, used_roles)
    for file, (schema, _) in zip(files, footers, strict=True):
        _check_columns(file, schema, settings, used_roles)
    required = required_texts(settings, used_roles, roles)
    groups, counts, scores = [], Counter(rows=0, unlabelled=0, missing=0), list[float]()
    nulls = Counter[str]()
    for file, (_, row_groups) in zip(files, footers, strict=True):
        row = 0
        for number, metadata in enumerate(row_groups):
            group = RowGroup(file, number, counts["rows"], row, kept=metadata.num_rows)
            nulls_of_group = _null_counts(settings, used_roles, metadata)
            nulls_of_required = {role: nulls_of_group.get(role) for role in required}
            excluded = _count_excluded(settings, group, used_roles, nulls_of_required, scores)
            nulls.update(nulls_of_group)
            groups.append(replace(group, kept=group.kept - excluded.total()))
            counts.update(excluded, rows=metadata.num_rows)
            row += metadata.num_rows
    training_rows = TrainingRows(settings, used_roles, tuple(groups), dict(counts), required)
    if not len(training_rows):
        raise DataError(settings.uri, "rows to train on", _reason_for_no_rows(counts), "check the files")
    warnings = (_unused_range(settings, scores), _unused_negatives(settings, schemas[0], used_roles))
    for sentence in filter(None, (*_missing_texts(training_rows, nulls), *warnings)):
        _say(settings.uri, sentence)
    return training_rows


def _say(uri: str, sentence: str) -> None:
    announce(f"{uri}: {sentence}")


def _check_first_negative(settings: SourceSettings, roles: Sequence[str]) -> None:
    """Raise DataError if the roles have a further hard negative of a row without the one before it."""
    negatives = [role for role in NEGATIVES if role in roles]
    if missing := next((role for role in NEGATIVES[: len(negatives)] if role not in negatives), None):
        raise DataError(
            settings.uri,
            f"a column with the role {missing}, beside that of {negatives[-1]}",
            f"columns with the roles {', '.join(roles)}",
            "name the hard negatives of a row in `columns` as negative, negative2, and so on",
        )


def _missing_texts(rows: TrainingRows, nulls: Mapping[str, int]) -> Iterator[str]:
    """Yield sentences about rows that lack texts.

    Args:
        rows: the rows.
        nulls: number of rows without a text, by role, as far as footers have it.
    """
    if missing := rows.counts["missing"]:
        roles = " or ".join(rows.required)
        yield f"{missing:,} of {rows.counts['rows']:,} rows left out, which have no text of the role {roles}"
    for role in (role for role in TEXTS if nulls.get(role) and role not in rows.required):
        optional = role in NEGATIVES and "anchor" in rows.roles
        consequence = (
            "their rows have no such candidate" if optional else "each read as one blank (missing: blank)"
        )
        yield f"missing texts of the role {role}: {nulls[role]:,}; {consequence}"


def _unused_range(settings: SourceSettings, scores: Sequence[float]) -> str | None:
    """Return a warning if the scores, scaled to 0 to 1, use less than half of the range of the settings."""
    if not scores or max(scores) - min(scores) >= 0.5:
        return None
    low, high = settings.values.score_range
    first, last = (low + (high - low) * score for score in (min(scores), max(scores)))
    return (
        f"its scores are {first:g} to {last:g} of a range of {low:g} to {high:g}, so targets are only "
        f"{min(scores):g} to {max(scores):g}; set values.score_range of train.data to the scale of the scores"
    )


def _unused_negatives(settings: SourceSettings, schema: pa.Schema, roles: Sequence[str]) -> str | None:
    """Return a warning if further columns look like hard negatives, and the objective reads anchors."""
    named = (settings.columns.get(role, role) for role in roles)
    used = {ColumnName.parse(name, schema.names).name for name in named}
    unread = {*used, *ROLES} - ({*NEGATIVES} - used if "negative" in roles else set())
    others = [name for name in schema.names if _NEGATIVE.fullmatch(name) and name not in unread]
    if "anchor" not in roles or not others:
        return None
    names = ", ".join(others)
    return (
        f"not used: {names}; name the columns of the roles negative, negative2 and so on in `columns` of "
        "train.data, if the objective reads them"
    )


def _is_used(role: str, settings: SourceSettings, schemas: Sequence[pa.Schema]) -> bool:
    """Return whether to read an optional role; log if only some of the files have its column."""
    if role in settings.columns:  # named by the user, so that a missing column is an error
        return True
    having = sum(role in schema.names for schema in schemas)
    if 0 < having < len(schemas):
        announce(
            f"{settings.uri}: {having:,} of {len(schemas):,} files have a column {role}, so it is not used"
        )
    return having == len(schemas)


def training_files(uri: str) -> list[SourceFile]:
    """List the Parquet files of training rows at a URI; see `list_training_files`."""
    return list_training_files(uri).files


def list_training_files(uri: str) -> CorpusFiles:
    """List the Parquet files of training rows at a URI, and the files there that are not read.

    If the URI names a manifest of `manta augment`, or a folder of such manifests, the files are the units of
    that manifest, or of the newest one. Otherwise they are the files that the URI matches, sorted by name.

    Raises:
        DataError: there are no files.
    """
    manifest = uri if is_manifest(uri) else newest_manifest(uri)
    if manifest is not None:
        return CorpusFiles(manifest_units(manifest), {})
    try:
        listed = list_corpus(CorpusSettings(uri=uri, format="parquet"))
    except DataError as error:
        raise DataError(
            error.where, error.expected, error.found, "check the URI of the training rows"
        ) from None
    if (table := listed.files[0].table) is not None:
        remedy = "write its rows to Parquet files first"
        raise DataError(uri, "Parquet files of training rows", f"{table.snapshot}", remedy)
    return listed._replace(uri=uri)


def stamps_of(uris: Iterable[str]) -> dict[str, str]:
    """Return the stamp of each training file at some URIs, by the file's URI.

    Units of `manta augment` are left out, because they are named by their content and never change.
    """
    changeable = (uri for uri in uris if not _is_augmented(uri))
    return {file.uri: file.stamp for uri in changeable for file in training_files(uri)}


def changed_file(stamps: Mapping[str, str], uris: Iterable[str]) -> str | None:
    """Return a file that has another stamp now, or is gone; None if there is none.

    Args:
        stamps: earlier result of `stamps_of`.
        uris: the same URIs.
    """
    now = stamps_of(uris) if stamps else {}
    return next((file for file, stamp in stamps.items() if now.get(file) != stamp), None)


def _is_augmented(uri: str) -> bool:
    """Return whether a URI names a manifest of `manta augment`, or a folder of them."""
    return is_manifest(uri) or newest_manifest(uri) is not None


def read_footer(file: SourceFile) -> tuple[pa.Schema, list[pq.RowGroupMetaData]]:
    """Read (schema, metadata of each row group) from a file's footer."""
    with storage_errors(file.uri, ""), open_file(file) as stream:
        try:
            reader = pq.ParquetFile(stream)
        except pa.ArrowInvalid as error:
            remedy = "training rows must be in Parquet files: write them to one, or fix this file"
            raise DataError(file.uri, "a Parquet file", " ".join(str(error).split()), remedy) from None
        return reader.schema_arrow, list(map(reader.metadata.row_group, range(reader.num_row_groups)))


def _null_counts(
    settings: SourceSettings, roles: Sequence[str], group: pq.RowGroupMetaData
) -> dict[str, int]:
    """Null counts of the texts by role; columns whose footer has none are left out."""
    counts = {
        chunk.path_in_schema: chunk.statistics.null_count
        for chunk in map(group.column, range(group.num_columns))
        if chunk.statistics is not None and chunk.statistics.has_null_count
    }
    columns = {role: settings.columns.get(role, role) for role in roles if role in TEXTS}
    return {role: counts[column] for role, column in columns.items() if column in counts}


def _reason_for_no_rows(counts: Mapping[str, int]) -> str:
    """Describe why no row is kept."""
    if not counts["rows"]:
        return "no row"
    lacking = {"unlabelled": "with a label", "missing": "with every text"}
    reasons = " and ".join(text for name, text in lacking.items() if counts[name])
    return f"{counts['rows']:,} rows, none of them {reasons}"


def _check_columns(
    file: SourceFile, schema: pa.Schema, settings: SourceSettings, roles: Sequence[str]
) -> None:
    for role in roles:
        column, element = name = ColumnName.parse(settings.columns.get(role, role), schema.names)
        if schema.names.count(column) != 1:
            near = difflib.get_close_matches(column, schema.names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near and near[0] != column else ""
            raise file.error(
                f"a column {column!r} for the role {role}",
                f"the columns {', '.join(schema.names) or '(none)'}",
                f"name the column in `columns`{hint}",
            )
        kind = name.kind(schema.field(column).type)
        if kind is None or not has_type(role, kind):
            lists = "" if element is None else "lists of "
            raise file.error(
                f"a column of {lists}{expected_type(role)} for the role {role}",
                f"{column!r} of type {schema.field(column).type}",
                "name another column in `columns`",
            )


def _count_excluded(
    settings: SourceSettings,
    group: RowGroup,
    roles: Sequence[str],
    nulls: Mapping[str, int | None],
    scores: list[float],
) -> Counter[str]:
    """Count the excluded rows of a row group by reason: unlabelled, or missing a text.

    No row is read if there are no columns to check and no hard negatives (which may be blank), and the
    footer's null counts are sufficient.

    Args:
        settings: the files and their columns.
        group: the row group.
        roles: the columns that are used.
        nulls: null counts of the texts that a row must have; None if the footer has none.
        scores: gets the lowest and the highest score, scaled to 0 to 1.

    Raises:
        DataError: a row that is kept has an invalid label or score.
    """
    checked = [role for role in _CHECKED_FIRST if role in roles]
    required = [role for role, count in nulls.items() if count != 0 or role in NEGATIVES]
    if not checked:
        known = [count for role in required if (count := nulls[role]) is not None]
        if group.kept in known:  # the column has only nulls: every row lacks its text
            return Counter(missing=group.kept)
        has_negatives = any(role in NEGATIVES for role in required)
        if len(required) <= 1 and len(known) == len(required) and not has_negatives:
            return Counter(missing=sum(known))
    excluded = Counter(unlabelled=group.kept, missing=0)
    for labelled in read_labelled(settings, group, (*checked, *required)):
        kept = with_texts(labelled, required)
        converted = convert_values(kept.select([*checked, "row"]), settings.values, group.file.uri)
        if "score" in checked and len(converted):
            scores += pc.min_max(converted["score"]).as_py().values()
        excluded.update(unlabelled=-len(labelled), missing=len(labelled) - len(kept))
    return excluded
