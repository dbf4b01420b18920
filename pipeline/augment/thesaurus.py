"""Read a user's thesaurus: a Parquet file, or lines of text."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.arrays import is_text

_REMEDY = "write Parquet with the columns word and synonym, or a line word<TAB>synonym,synonym for each word"

Entries = Iterator[tuple[str, str, list[str]]]
"""(line or row for errors, word, its synonyms)"""


def read_thesaurus(file: Path, name: str) -> dict[str, tuple[str, ...]]:
    """Read synonyms by case-folded word, in the order of the file.

    No synonym is listed twice or equals its word, ignoring case.

    Args:
        file: a Parquet file or lines of text, as `SynonymSettings` describes them.
        name: name of the file in errors.

    Raises:
        DataError: the file has another format or no synonym; names the line or row.
    """
    with file.open("rb") as stream:
        parquet = stream.read(4) == b"PAR1"
    found: dict[str, dict[str, str]] = {}
    for where, word, others in _rows(file, name) if parquet else _lines(file, name):
        if not word or not all(others):
            raise DataError(where, "a word and its synonyms", "an empty one", "fix or remove it")
        of_word = found.setdefault(folded := word.casefold(), {})
        for other in others:
            if other.casefold() != folded:
                of_word.setdefault(other.casefold(), other)
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
            yield where, _collapse_white_space(word), list(map(_collapse_white_space, others.split(",")))


def _rows(file: Path, name: str) -> Entries:
    words, others = _columns(file, name)
    for number, (word, other) in enumerate(zip(words.to_pylist(), others.to_pylist(), strict=True), 1):
        where = f"{name}: row {number}"
        several = other if isinstance(other, list) else [other]
        if word is None or other is None or None in several:
            raise DataError(where, "a word and its synonyms", "a missing value", "fix or remove it")
        yield where, _collapse_white_space(word), list(map(_collapse_white_space, several))


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
    is_list = pa.types.is_list(others.type) or pa.types.is_large_list(others.type)
    if not is_text(words.type) or not is_text(others.type.value_type if is_list else others.type):
        raise DataError(
            name,
            "words as strings and synonyms as strings or lists of them",
            f"{words.type} and {others.type}",
            _REMEDY,
        )
    return words, others


def _collapse_white_space(word: object) -> str:
    """Remove white space at both ends, and replace white space inside by single blanks."""
    return " ".join(str(word).split())
