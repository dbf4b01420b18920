"""The types that all files of a corpus agree on, and the errors for files that do not fit."""

import difflib
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.arrays import is_text, plain_type
from pipeline.store.schema import corpus_schema
from pipeline.text.corpus.sources import SourceFile

MAX_LEAVES = 256  # of a kept column in JSON: each is a column in memory, even if most rows have no value


@dataclass(frozen=True)
class Columns:
    """Types of the corpus's id column and of its kept columns."""

    id: pa.DataType
    """string, int64 or uint64"""
    kept: tuple[pa.Field, ...] = ()
    partly: bool = False
    """whether a nested type leaves out keys because there are too many"""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the corpus's units."""
        return corpus_schema(self.id, self.kept)


@dataclass(frozen=True)
class FileColumns:
    """Columns of one file."""

    file: SourceFile
    types: dict[str, pa.DataType]
    """types of the id and of the kept columns; null if no value shows the type"""
    rows: int | None = None
    """number of rows; None if only reading the file shows it"""
    negative_ids: bool = True
    """whether an id may be negative"""
    known: tuple[str, ...] = ()
    """names of all columns"""
    absent: frozenset[str] = frozenset()
    """wanted columns that no row has"""
    partly: frozenset[str] = frozenset()
    """nested columns with values that their type does not hold"""


def id_type(found: pa.DataType) -> pa.DataType | None:
    """The id type of a column: string, int64 or uint64.

    Returns:
        The type; null for a column without values; None if the column cannot hold ids.
    """
    found = plain_type(found)
    if is_text(found):
        return pa.string()
    if pa.types.is_integer(found):
        return pa.uint64() if pa.types.is_uint64(found) else pa.int64()
    return found if pa.types.is_null(found) else None


def missing_column(file: SourceFile, setting: str, column: str, known: Iterable[str]) -> DataError:
    """The error for a column that a file does not have."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(column, names, n=1)
    return file.error(
        f"a column {column!r} ({setting})",
        f"the columns {', '.join(names) or '(none)'}",
        f"set {setting}: {near[0]}?" if near else f"set {setting} to one of them",
    )


def wrong_column_type(file: SourceFile, setting: str, column: str, expected: str, found: object) -> DataError:
    """The error for a column of a wrong type."""
    return file.error(
        f"column {column!r} ({setting}) of type {expected}",
        str(found),
        f"name another column in {setting}, fix the file, or skip such files with corpus.bad_files=skip",
    )


def agree_on_columns(
    seen: Sequence[FileColumns], corpus: CorpusSettings
) -> tuple[Columns, dict[str, DataError]]:
    """Find the types that the files of a corpus have in common.

    The first file decides between string and integer ids; numbers widen. A JSON file is never refused for a
    kept column: values that do not fit, or are missing, become null when they are read.

    Returns:
        (the types, the errors of files that do not fit by file name).

    Raises:
        DataError: no file has a kept column.
    """
    chosen, refused = _agree_on_id(seen, corpus)
    kept, partly = [], any(one.partly for one in seen)
    for name in corpus.keep:
        if seen and all(name in one.absent for one in seen):
            raise missing_column(seen[0].file, "corpus.keep", name, seen[0].known)
        kind = chosen if name == corpus.id else pa.null()
        for one in () if name == corpus.id else seen:
            try:
                wider = common_type(kind, plain_type(one.types[name]))
                fits = one.file.format == "parquet" or count_leaves(wider) <= MAX_LEAVES
                kind, partly = (wider, partly) if fits else (kind, True)
            except pa.ArrowTypeError:
                if one.file.format == "parquet":
                    expected = f"{kind}, as in earlier files"
                    error = wrong_column_type(one.file, "corpus.keep", name, expected, one.types[name])
                    refused.setdefault(one.file.name, error)
        kept.append(pa.field(name, pa.string() if pa.types.is_null(kind) else kind))
    return Columns(chosen, tuple(kept), partly), refused


def _agree_on_id(
    seen: Sequence[FileColumns], corpus: CorpusSettings
) -> tuple[pa.DataType, dict[str, DataError]]:
    """The id type, and the errors of files that do not fit.

    uint64 if a file needs it and no file may have negative ids; otherwise ids of 2^63 and above are rejected
    when they are read.
    """
    kinds = {one.file: "string" if is_text(one.types[corpus.id]) else "integer" for one in seen}
    known = [one for one in seen if not pa.types.is_null(one.types[corpus.id])]
    if not known:
        return pa.string(), {}
    first = kinds[known[0].file]
    fitting = [one for one in known if kinds[one.file] == first]
    expected = f"{first}, as in {known[0].file.name}"
    refused = {
        one.file.name: wrong_column_type(one.file, "corpus.id", corpus.id, expected, kinds[one.file])
        for one in known
        if kinds[one.file] != first
    }
    if first == "string":
        return pa.string(), refused
    large = any(pa.types.is_uint64(one.types[corpus.id]) for one in fitting)
    unsigned = large and not any(one.negative_ids for one in fitting)
    return pa.uint64() if unsigned else pa.int64(), refused


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds the values of both types. ArrowTypeError if there is none."""
    schemas = [pa.schema([("value", kind)]) for kind in (one, other)]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type


@functools.lru_cache(maxsize=64)
def count_leaves(kind: pa.DataType) -> int:
    """Number of leaves of a type: the columns that it takes in Arrow's memory."""
    if not kind.num_fields:
        return 1
    return sum(count_leaves(kind.field(index).type) for index in range(kind.num_fields))


def cast_column(
    column: pa.ChunkedArray, kind: pa.DataType, file: SourceFile, setting: str, name: str
) -> pa.ChunkedArray:
    """Cast a column to the type that the files agreed on. DataError if a value does not fit."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise wrong_column_type(file, setting, name, str(kind), f"{column.type} ({error})") from None
