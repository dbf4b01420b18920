"""The types that all files of a corpus agree on, and the errors for files that do not fit."""

import difflib
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.schema import corpus_schema
from pipeline.text.corpus.sources import SourceFile

MAX_LEAVES = 256  # of a kept column in JSON: each is a column in memory, even if most rows have no value


@dataclass(frozen=True)
class Columns:
    """Types of the corpus's id column (string, int64 or uint64) and of its kept columns.

    partly: whether a nested type leaves out keys because there are too many.
    """

    id: pa.DataType
    kept: tuple[pa.Field, ...] = ()
    partly: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Schema of the corpus's units."""
        return corpus_schema(self.id, self.kept)


@dataclass(frozen=True)
class FileColumns:
    """Columns of one file.

    types: of the id and the kept columns; null if no value shows the type. rows: None if only reading the
    file shows the number. negative_ids: whether an id may be negative. known: names of all columns. absent:
    wanted columns that no row has. partly: nested columns with values that their type does not hold.
    """

    file: SourceFile
    types: dict[str, pa.DataType]
    rows: int | None = None
    negative_ids: bool = True
    known: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()
    partly: frozenset[str] = frozenset()


def id_type(found: pa.DataType) -> pa.DataType | None:
    """The id type of a column: string, int64 or uint64; null for a column without values; None if it cannot
    be an id.
    """
    found = plain_type(found)
    if pa.types.is_string(found) or pa.types.is_large_string(found):
        return pa.string()
    if pa.types.is_integer(found):
        return pa.uint64() if pa.types.is_uint64(found) else pa.int64()
    return found if pa.types.is_null(found) else None


def plain_type(found: pa.DataType) -> pa.DataType:
    """The type without its encoding: the values' type of a dictionary, string for a string view."""
    plain = found.value_type if pa.types.is_dictionary(found) else found
    if pa.types.is_string_view(plain):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(plain) else plain


def missing_column(file: SourceFile, setting: str, column: str, known: Iterable[str]) -> DataError:
    """The error for a column that a file does not have."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(column, names, n=1)
    found = f"the columns {', '.join(names) or '(none)'}"
    remedy = f"set {setting}: {near[0]}?" if near else f"set {setting} to one of them"
    return file.error(f"a column {column!r} ({setting})", found, remedy)


def wrong_column_type(file: SourceFile, setting: str, column: str, expected: str, found: object) -> DataError:
    """The error for a column of a wrong type."""
    remedy = f"name another column in {setting}, fix the file, or skip such files with corpus.bad_files=skip"
    return file.error(f"column {column!r} ({setting}) of type {expected}", str(found), remedy)


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
    for name in corpus.keep:
        kind = chosen if name == corpus.id else pa.null()
        for one in () if name == corpus.id else seen:
            try:
                wider = common_type(kind, plain_type(one.types[name]))
                fits = one.file.format == "parquet" or count_leaves(wider) <= MAX_LEAVES
                kind, partly = (wider, partly) if fits else (kind, True)
            except pa.ArrowTypeError:
                if one.file.format == "parquet":
                    expected, found = f"{kind}, as in earlier files", one.types[name]
                    error = wrong_column_type(one.file, "corpus.keep", name, expected, found)
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
    known = [one for one in seen if not pa.types.is_null(one.types[corpus.id])]
    if not known:
        return pa.string(), {}
    first = known[0].types[corpus.id]
    fitting = [one for one in known if pa.types.is_string(one.types[corpus.id]) == pa.types.is_string(first)]
    expected = f"{_type_name(first)}, as in {known[0].file.name}"
    refused = {
        one.file.name: wrong_column_type(
            one.file, "corpus.id", corpus.id, expected, _type_name(one.types[corpus.id])
        )
        for one in known
        if one not in fitting
    }
    if pa.types.is_string(first):
        return first, refused
    unsigned = any(pa.types.is_uint64(one.types[corpus.id]) for one in fitting) and not any(
        one.negative_ids for one in fitting
    )
    return pa.uint64() if unsigned else pa.int64(), refused


def _type_name(found: pa.DataType) -> str:
    return "string" if pa.types.is_string(found) else "integer"


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
