"""The types that all files of a corpus agree on, and what to say when one does not."""

import difflib
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.schema import corpus_schema
from pipeline.text.corpus.sources import SourceFile

MOST_LEAVES = (
    256  # of a kept column in JSON: each is a column in memory, whether a row has a value there or not
)


@dataclass(frozen=True)
class Columns:
    """Types of the corpus's id column (string, int64 or uint64) and of its kept columns. partly: whether the
    type of a nested one leaves out what is too much.
    """

    id: pa.DataType
    kept: tuple[pa.Field, ...] = ()
    partly: bool = False

    @property
    def schema(self) -> pa.Schema:
        return corpus_schema(self.id, self.kept)


@dataclass(frozen=True)
class Seen:
    """What one file has. types: id and kept columns; null where nothing tells yet. rows: None where only reading tells.

    negative_ids: whether there may be any; known: names of columns; absent: wanted ones that no row has; partly: nested ones with values that their types do not hold.
    """

    file: SourceFile
    types: dict[str, pa.DataType]
    rows: int | None = None
    negative_ids: bool = True
    known: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()
    partly: frozenset[str] = frozenset()


def id_type(found: pa.DataType) -> pa.DataType | None:
    """string, int64 or uint64 for a column that can be an id; null for one without values; None for any other."""
    found = decoded(found)
    if pa.types.is_string(found) or pa.types.is_large_string(found):
        return pa.string()
    if pa.types.is_integer(found):
        return pa.uint64() if pa.types.is_uint64(found) else pa.int64()
    return found if pa.types.is_null(found) else None


def decoded(found: pa.DataType) -> pa.DataType:
    """The type of a dictionary's values, string for a view of strings; any other type as it is."""
    plain = found.value_type if pa.types.is_dictionary(found) else found
    return (
        pa.string()
        if pa.types.is_string_view(plain)
        else pa.binary()
        if pa.types.is_binary_view(plain)
        else plain
    )


def missing(file: SourceFile, setting: str, column: str, known: Iterable[str]) -> DataError:
    """The error for a column that a file has not."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(column, names, n=1)
    found = f"the columns {', '.join(names) or '(none)'}"
    remedy = f"set {setting}: {near[0]}?" if near else f"set {setting} to one of them"
    return file.error(f"a column {column!r} ({setting})", found, remedy)


def mistyped(file: SourceFile, setting: str, column: str, expected: str, found: object) -> DataError:
    """The error for a column of another type."""
    remedy = (
        f"name another column in {setting}, mend the file, or leave such files out with corpus.bad_files=skip"
    )
    return file.error(f"column {column!r} ({setting}) of type {expected}", str(found), remedy)


def agree(seen: Sequence[Seen], corpus: CorpusSettings) -> tuple[Columns, dict[str, DataError]]:
    """The corpus's types, and the files that do not fit them by name. The first file decides between string and integer ids; numbers widen.

    JSON lines are not refused for a kept column: what does not fit becomes null where it is read, and so does what a row lacks. DataError for a kept column
    that no file has.
    """
    chosen, refused = _agreed_id(seen, corpus)
    kept, partly = [], any(one.partly for one in seen)
    for name in corpus.keep:
        if seen and all(name in one.absent for one in seen):
            raise missing(seen[0].file, "corpus.keep", name, seen[0].known)
    for name in corpus.keep:
        kind = chosen if name == corpus.id else pa.null()
        for one in () if name == corpus.id else seen:
            try:
                wider = widest(kind, decoded(one.types[name]))
                fits = one.file.format == "parquet" or leaves_of(wider) <= MOST_LEAVES
                kind, partly = (wider, partly) if fits else (kind, True)
            except pa.ArrowTypeError:
                if one.file.format == "parquet":
                    refused.setdefault(
                        one.file.name,
                        mistyped(
                            one.file, "corpus.keep", name, f"{kind}, as in earlier files", one.types[name]
                        ),
                    )
        kept.append(pa.field(name, pa.string() if pa.types.is_null(kind) else kind))
    return Columns(chosen, tuple(kept), partly), refused


def _agreed_id(seen: Sequence[Seen], corpus: CorpusSettings) -> tuple[pa.DataType, dict[str, DataError]]:
    """uint64 where a file needs it and no other may have negative ids; beside such, ids of 2^63 and above are refused where they are read."""
    known = [one for one in seen if not pa.types.is_null(one.types[corpus.id])]
    if not known:
        return pa.string(), {}
    first = known[0].types[corpus.id]
    fitting = [one for one in known if pa.types.is_string(one.types[corpus.id]) == pa.types.is_string(first)]
    expected = f"{_kind(first)}, as in {known[0].file.name}"
    refused = {
        one.file.name: mistyped(one.file, "corpus.id", corpus.id, expected, _kind(one.types[corpus.id]))
        for one in known
        if one not in fitting
    }
    if pa.types.is_string(first):
        return first, refused
    unsigned = any(pa.types.is_uint64(one.types[corpus.id]) for one in fitting) and not any(
        one.negative_ids for one in fitting
    )
    return pa.uint64() if unsigned else pa.int64(), refused


def _kind(found: pa.DataType) -> str:
    return "string" if pa.types.is_string(found) else "integer"


def widest(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds both; ArrowTypeError where none does."""
    schemas = [pa.schema([("value", kind)]) for kind in (one, other)]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type


@functools.lru_cache(maxsize=64)
def leaves_of(kind: pa.DataType) -> int:
    """Leaves of a type: columns of Arrow's memory."""
    return (
        sum(leaves_of(kind.field(place).type) for place in range(kind.num_fields)) if kind.num_fields else 1
    )


def cast_column(
    column: pa.ChunkedArray, kind: pa.DataType, file: SourceFile, setting: str, name: str
) -> pa.ChunkedArray:
    """`column` as the agreed type; DataError when a value does not fit."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise mistyped(file, setting, name, str(kind), f"{column.type} ({error})") from None
