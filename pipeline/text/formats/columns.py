"""Find the column types that all files of a corpus agree on, and the files that do not fit them."""

import difflib
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.errors import ConfigError, DataError, did_you_mean
from pipeline.settings import CHUNK_COLUMNS, CorpusSettings
from pipeline.store.rows.arrays import is_text, plain_type
from pipeline.store.rows.nested import leaf_types, map_type
from pipeline.store.rows.schema import corpus_schema
from pipeline.text.sources.sources import SourceFile, composed_columns

# Largest number of leaves of a kept JSON column's type. Each leaf takes memory like a column, even if most
# rows have no value in it.
MAX_LEAVES = 256


@dataclass(frozen=True)
class Columns:
    """Types of a corpus's id column and of its kept columns (corpus.keep)."""

    id: pa.DataType
    """string, int64 or uint64"""
    kept: tuple[pa.Field, ...] = ()
    leaves_out_keys: bool = False
    """whether a nested type lacks keys of the files, because there are too many or their types differ"""
    chunked: bool = False
    """whether the rows of units are chunks"""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the corpus's units."""
        if not self.chunked:
            return corpus_schema(self.id, self.kept)
        types = (self.id, pa.int64(), pa.int64())
        of_chunks = (pa.field(name, kind) for name, kind in zip(CHUNK_COLUMNS, types, strict=True))
        return corpus_schema(pa.string(), (*self.kept, *of_chunks))


@dataclass(frozen=True)
class RowGroups:
    """Consecutive row groups of a Parquet file."""

    first: int
    """index of the first row group"""
    stop: int
    """index after the last row group"""
    first_row: int
    """number of the first row in the file; rows that a table has deleted are not counted"""
    rows: int
    size: int
    """bytes of the columns to read"""

    def has_any(self, rows: np.ndarray) -> bool:
        """Return whether any of the rows, given by their numbers in the file, is in these row groups."""
        return bool(((rows >= self.first_row) & (rows < self.first_row + self.rows)).any())


@dataclass(frozen=True)
class FileColumns:
    """Columns of one file."""

    file: SourceFile
    types: dict[str, pa.DataType]
    """types of the id and of the kept columns; the null type if a column has no values"""
    rows: int | None = None
    """number of rows; None if only reading the file shows it"""
    negative_ids: bool = True
    """whether an id may be negative"""
    mixed_ids: bool = False
    """whether some ids of a JSON file are strings and others integers"""
    names: tuple[str, ...] = ()
    """names of all columns"""
    absent: frozenset[str] = frozenset()
    """columns named in the settings that no row has"""
    filter_misfit: str = ""
    """why corpus.where cannot be evaluated on any row of a Parquet file, since a column has another type"""
    incomplete: frozenset[str] = frozenset()
    """columns for which the file has an object or list that does not fit their type"""
    divisions: tuple[RowGroups, ...] = ()
    """all row groups of a Parquet file, divided so that several workers can read a large file"""


def id_type(column_type: pa.DataType) -> pa.DataType | None:
    """Return the type of ids from a column of the given type: string, int64 or uint64.

    Returns:
        The type; the null type for a column without values; None if the column cannot hold ids.
    """
    column_type = plain_type(column_type)
    if is_text(column_type):
        return pa.string()
    if pa.types.is_integer(column_type):
        return pa.uint64() if pa.types.is_uint64(column_type) else pa.int64()
    return column_type if pa.types.is_null(column_type) else None


def missing_column(file: SourceFile, setting: str, column: str, names: Iterable[str]) -> DataError:
    """Create the error for a column that a file does not have; `names` are the columns that it has."""
    names = list(dict.fromkeys(names))
    near = difflib.get_close_matches(column, names, n=1)
    return file.error(
        f"a column {column!r} ({setting})",
        f"the columns {', '.join(names) or '(none)'}",
        f"set {setting}: {near[0]}?" if near else f"set {setting} to one of them",
    )


def wrong_column_type(file: SourceFile, setting: str, column: str, expected: str, found: object) -> DataError:
    """Create the error for a column of a wrong type."""
    return file.error(
        f"column {column!r} ({setting}) of type {expected}",
        str(found),
        f"name another column in {setting}, fix the file, or skip such files with corpus.bad_files=skip",
    )


def agree_on_columns(
    files: Sequence[FileColumns], corpus: CorpusSettings
) -> tuple[Columns, dict[str, DataError]]:
    """Find column types that hold the values of all files of a corpus.

    The first file decides between string and integer ids. A JSON file with ids of both types is not refused,
    because each row with an id of the other type is quarantined when it is read. A JSON file is not refused
    for a kept column, either: values that do not fit or are missing are read as null.

    Returns:
        The types, and the error of each file that does not fit, by the file's name.

    Raises:
        DataError: no file has one of the kept columns.
        ConfigError: corpus.where or a template of corpus.text does not fit any file.
    """
    id_column_type, refused = _agree_on_id(files, corpus)
    refused |= _refuse_without_columns(files, corpus)
    kept, leaves_out_keys = [], False
    for name in corpus.keep:
        if name == corpus.id:
            kept.append(pa.field(name, id_column_type))
            continue
        if files and all(name in file_columns.absent for file_columns in files):
            raise missing_column(files[0].file, "corpus.keep", name, files[0].names)
        kind, lacks_keys = pa.null(), any(name in file_columns.incomplete for file_columns in files)
        for file_columns in files:
            is_parquet = file_columns.file.format == "parquet"
            try:
                wider = common_type(kind, plain_type(file_columns.types[name]))
            except pa.ArrowException:
                if is_parquet:
                    expected = f"{kind}, as in earlier files"
                    found = file_columns.types[name]
                    error = wrong_column_type(file_columns.file, "corpus.keep", name, expected, found)
                    refused.setdefault(file_columns.file.name, error)
                else:
                    lacks_keys = True
                continue
            if is_parquet or count_leaves(wider) <= MAX_LEAVES:
                kind = wider
            else:
                lacks_keys = True
        leaves_out_keys |= lacks_keys and pa.types.is_nested(kind)
        kept.append(pa.field(name, map_type(kind, _string_for_null)))
    chunked = corpus.chunk.by is not None
    return Columns(id_column_type, tuple(kept), leaves_out_keys, chunked), refused


def _refuse_without_columns(files: Sequence[FileColumns], corpus: CorpusSettings) -> dict[str, DataError]:
    """Return the error of each Parquet file that lacks one of the composed columns, by the file's name.

    In a JSON file a missing column is null.

    Raises:
        ConfigError: no file has one of the columns, or its type fits the filter in no file.
    """
    columns = composed_columns(corpus)
    for name, setting in columns.items():
        if files and all(name in file_columns.absent for file_columns in files):
            names = files[0].names
            remedy = did_you_mean(name, names, f"name one of these columns in {setting}")
            found = f"{name!r}, but the rows have the columns {', '.join(names) or '(none)'}"
            raise ConfigError(setting, "columns of the corpus", found, remedy)
    if files and all(file_columns.filter_misfit for file_columns in files):
        misfit = f"{files[0].file.uri}: {files[0].filter_misfit}"
        raise ConfigError(
            "corpus.where", "a filter that fits the columns' types", misfit, "change corpus.where"
        )
    return {
        each.file.name: missing_column(each.file, columns[missing[0]], missing[0], each.names)
        for each in files
        if each.file.format == "parquet" and (missing := [name for name in columns if name in each.absent])
    }


def _agree_on_id(
    files: Sequence[FileColumns], corpus: CorpusSettings
) -> tuple[pa.DataType, dict[str, DataError]]:
    """Return the type of the ids, and the error of each file that does not fit, by the file's name.

    Integer ids are uint64 if a file needs it and no file may have negative ids. Otherwise they are int64, and
    ids of 2^63 and above are rejected when they are read.
    """
    with_ids = [file_columns for file_columns in files if not pa.types.is_null(file_columns.types[corpus.id])]
    if not with_ids:
        return pa.string(), {}
    kinds = {
        file_columns.file: "string" if is_text(file_columns.types[corpus.id]) else "integer"
        for file_columns in with_ids
    }
    first = kinds[with_ids[0].file]
    fitting = [
        file_columns
        for file_columns in with_ids
        if kinds[file_columns.file] == first or file_columns.mixed_ids
    ]
    expected = f"{first}, as in {with_ids[0].file.name}"
    refused = {
        file_columns.file.name: wrong_column_type(
            file_columns.file, "corpus.id", corpus.id, expected, kinds[file_columns.file]
        )
        for file_columns in with_ids
        if kinds[file_columns.file] != first and not file_columns.mixed_ids
    }
    if first == "string":
        return pa.string(), refused
    has_large_ids = any(pa.types.is_uint64(file_columns.types[corpus.id]) for file_columns in fitting)
    has_negative_ids = any(file_columns.negative_ids for file_columns in fitting)
    return (pa.uint64() if has_large_ids and not has_negative_ids else pa.int64()), refused


def _string_for_null(leaf: pa.DataType) -> pa.DataType:
    """Return string for the null type, which a column without values has; other types unchanged."""
    return pa.string() if pa.types.is_null(leaf) else leaf


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of both types; raise an error of Arrow if there is none.

    Times of different zones are converted to the zone of `one`, or to UTC if `one` has several.
    """
    try:
        return _unify(one, other)
    except pa.ArrowTypeError:
        zones = {leaf.tz for leaf in leaf_types(one) if _has_zone(leaf)}
        if not zones:
            raise
        zone = zones.pop() if len(zones) == 1 else "UTC"
        return _unify(*(map_type(kind, functools.partial(_in_zone, zone)) for kind in (one, other)))


def _unify(*kinds: pa.DataType) -> pa.DataType:
    schemas = [pa.schema([("value", kind)]) for kind in kinds]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type


def _in_zone(zone: str, leaf: pa.DataType) -> pa.DataType:
    return pa.timestamp(leaf.unit, zone) if _has_zone(leaf) else leaf


def _has_zone(leaf: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(leaf) and leaf.tz)


@functools.lru_cache(maxsize=64)
def count_leaves(kind: pa.DataType) -> int:
    """Count the leaves of a type: the arrays without children that a column of the type has in memory."""
    return sum(1 for _ in leaf_types(kind))


def cast_column(
    column: pa.ChunkedArray, kind: pa.DataType, file: SourceFile, setting: str, name: str
) -> pa.ChunkedArray:
    """Cast a column to the type that the files agree on; raise DataError if a value does not fit."""
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise wrong_column_type(file, setting, name, str(kind), f"{column.type} ({error})") from None
