"""A user's thesaurus: Parquet, or lines of text."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.text.corpus.columns import plain_type

_REMEDY = "write Parquet with the columns word and synonym, or a line word<TAB>synonym,synonym for each word"

Entries = Iterator[tuple[str, str, list[str]]]  # where, word, its synonyms


def read_thesaurus(file: Path, name: str) -> dict[str, tuple[str, ...]]:
    """Case-folded word -> its synonyms in the file's order, none twice and none equal to the word but for case. `name` is what errors call the file.

    DataError, with the line or row, for what is neither a Parquet file nor lines of text as said in `SynonymSettings`, and for a file without a synonym.
    """
    with file.open("rb") as stream:
        parquet = stream.read(4) == b"PAR1"
    found: dict[str, dict[str, str]] = {}
    for where, word, others in _rows(file, name) if parquet else _lines(file, name):
        if not word or not all(others):
            raise DataError(where, "a word and its synonyms", "an empty one", "mend or remove it")
        known = found.setdefault(folded := word.casefold(), {})
        for other in others:
            if other.casefold() != folded:
                known.setdefault(other.casefold(), other)
    synonyms = {word: tuple(others.values()) for word, others in found.items() if others}
    if not synonyms:
        raise DataError(name, "words and their synonyms", "no synonym of any word", _REMEDY)
    return synonyms


def _lines(file: Path, name: str) -> Entries:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            where = f"{name}: line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
            except UnicodeDecodeError:
                raise DataError(where, "a line of UTF-8 text", f"{line[:40]!a}", _REMEDY) from None
            if not text or text.isspace():
                continue
            word, tab, others = text.partition("\t")
            if not tab:
                raise DataError(
                    where, "word<TAB>synonym,synonym", f"{text[:60]!a}, which has no tab", _REMEDY
                )
            yield where, _plain(word), [_plain(other) for other in others.split(",")]


def _rows(file: Path, name: str) -> Entries:
    words, others = _columns(file, name)
    for number, (word, other) in enumerate(zip(_values(words), _values(others), strict=True), 1):
        where = f"{name}: row {number}"
        several = other if isinstance(other, list) else [other]
        if word is None or other is None or None in several:
            raise DataError(where, "a word and its synonyms", "a missing value", "mend or remove it")
        yield where, _plain(word), [_plain(each) for each in several]


def _columns(file: Path, name: str) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """The columns word and synonym (or synonyms)."""
    try:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        second = next((each for each in ("synonym", "synonyms") if each in names), None)
        if "word" not in names or second is None:
            raise DataError(
                name, "the columns word and synonym", f"the columns {', '.join(names[:8])}", _REMEDY
            )
        words, others = table.read(columns=["word", second]).select(["word", second]).columns
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            name, "a readable Parquet file", " ".join(str(error).split())[:200], "write the file again"
        ) from None
    inner = (
        others.type.value_type
        if pa.types.is_list(others.type) or pa.types.is_large_list(others.type)
        else others.type
    )
    if not _is_text(words.type) or not _is_text(inner):
        raise DataError(
            name,
            "words as strings and synonyms as strings or lists of them",
            f"{words.type} and {others.type}",
            _REMEDY,
        )
    return words, others


def _values(column: pa.ChunkedArray) -> Iterable[object]:
    return (value for chunk in column.chunks for value in chunk.to_pylist())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(plain_type(kind)) or pa.types.is_large_string(plain_type(kind)))


def _plain(word: object) -> str:
    """Without white space at its ends, and single blanks inside."""
    return " ".join(str(word).split())
