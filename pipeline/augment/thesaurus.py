"""Read a user's thesaurus, one of the two sources of synonyms, from a Parquet file or from lines of text."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.rows.arrays import is_text

_REMEDY = "write Parquet with the columns word and synonym, or a line word<TAB>synonym,synonym for each word"

Entries = Iterator[tuple[str, str, list[str]]]
"""for each entry: its line or row for error messages, the word, and the word's synonyms"""


def read_thesaurus(file: Path, name: str) -> dict[str, tuple[str, ...]]:
    """Read the synonyms of each case-folded word, in the order of the file.

    Synonyms that equal the word or an earlier synonym, ignoring case, are left out.

    Args:
        file: a Parquet file or lines of text, as `SynonymSettings` describes them.
        name: name of the file in errors.

    Raises:
        DataError: the file has another format or no synonym; the error names the line or row.
    """
    with file.open("rb") as stream:
        is_parquet = stream.read(4) == b"PAR1"
    by_word: dict[str, dict[str, str]] = {}  # word -> case-folded synonym -> synonym
    for where, word, synonyms in _parquet_entries(file, name) if is_parquet else _text_entries(file, name):
        if not word or not all(synonyms):
            raise DataError(
                where, "a word and its synonyms", "an empty word or synonym", "fix or remove the entry"
            )
        distinct = by_word.setdefault(word.casefold(), {})
        for synonym in synonyms:
            if synonym.casefold() != word.casefold():
                distinct.setdefault(synonym.casefold(), synonym)
    thesaurus = {word: tuple(distinct.values()) for word, distinct in by_word.items() if distinct}
    if not thesaurus:
        raise DataError(name, "words and their synonyms", "no synonym", _REMEDY)
    return thesaurus


def _text_entries(file: Path, name: str) -> Entries:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            where = f"{name}: line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
            except UnicodeDecodeError:
                raise DataError(where, "a line of UTF-8 text", f"{line[:40]!a}", _REMEDY) from None
            if not text or text.isspace():
                continue
            word, tab, synonyms = text.partition("\t")
            if not tab:
                raise DataError(
                    where, "word<TAB>synonym,synonym", f"{text[:60]!a}, which has no tab", _REMEDY
                )
            yield where, _collapse_white_space(word), list(map(_collapse_white_space, synonyms.split(",")))


def _parquet_entries(file: Path, name: str) -> Entries:
    for number, cells in enumerate(zip(*_columns(file, name), strict=True), 1):
        where = f"{name}: row {number}"
        try:
            word, value = (cell.as_py() for cell in cells)
        except UnicodeDecodeError as error:
            raise DataError(where, "UTF-8", f"byte {error.object[error.start]:#04x}", _REMEDY) from None
        synonyms = value if isinstance(value, list) else [value]
        if word is None or None in synonyms:
            raise DataError(where, "a word and its synonyms", "a missing value", "fix or remove the row")
        yield where, _collapse_white_space(word), list(map(_collapse_white_space, synonyms))


def _columns(file: Path, name: str) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Read the columns word and synonym, which may also be called synonyms."""
    try:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        synonym_name = next((each for each in ("synonym", "synonyms") if each in names), None)
        if "word" not in names or synonym_name is None:
            raise DataError(
                name, "the columns word and synonym", f"the columns {', '.join(names[:8])}", _REMEDY
            )
        columns = ["word", synonym_name]
        words, synonyms = table.read(columns=columns).select(columns).columns  # read keeps the file's order
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            name, "a readable Parquet file", " ".join(str(error).split())[:200], "write the file again"
        ) from None
    is_list = pa.types.is_list(synonyms.type) or pa.types.is_large_list(synonyms.type)
    if not is_text(words.type) or not is_text(synonyms.type.value_type if is_list else synonyms.type):
        raise DataError(
            name,
            "words as strings and synonyms as strings or lists of them",
            f"{words.type} and {synonyms.type}",
            _REMEDY,
        )
    return words, synonyms


def _collapse_white_space(word: object) -> str:
    """Remove white space at both ends, and replace white space between words by one blank."""
    return " ".join(str(word).split())
