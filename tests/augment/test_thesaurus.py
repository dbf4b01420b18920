"""A thesaurus has the same synonyms in each of its formats, and an error names the line or row."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.augment.synonyms import read_thesaurus
from pipeline.errors import DataError

ROWS = [
    ("dog", "hound"),
    ("Dog", "Hound"),
    ("dog", "DOG"),
    ("dog", "puppy"),
    ("house", "dwelling  place"),
    ("Haß", "Ärger"),
    ("lonely", "lonely"),
]
EXPECTED = {"dog": ("hound", "puppy"), "house": ("dwelling place",), "hass": ("Ärger",)}


def synonyms(file: Path) -> dict[str, tuple[str, ...]]:
    return read_thesaurus(file, "the file")


def lines(folder: Path, content: str | bytes) -> Path:
    file = folder / "file.tsv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def parquet(folder: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), folder / "file.parquet")
    return folder / "file.parquet"


@pytest.mark.parametrize(
    "content",
    [
        "".join(f"{word}\t{other}\n" for word, other in ROWS),
        "dog\thound, puppy\r\n\r\nhouse\tdwelling place\r\nHAß\tÄrger",
        "\ufeffdog\thound,dog,HOUND,puppy\nhouse\t dwelling place\nHaß\tÄrger\n",
    ],
)
def test_lines_of_text_are_read(tmp_path, content):
    assert synonyms(lines(tmp_path, content)) == EXPECTED


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_with_a_row_for_each_synonym_is_read(tmp_path, kind):
    words, others = (pa.array(each, pa.string()).cast(kind) for each in zip(*ROWS, strict=True))
    assert synonyms(parquet(tmp_path, word=words, synonym=others)) == EXPECTED


@pytest.mark.parametrize("name", ["synonym", "synonyms"])
def test_parquet_with_lists_of_synonyms_is_read(tmp_path, name):
    columns = {
        "word": ["dog", "dog", "house", "Haß", "rare"],
        name: [["hound"], ["puppy", "dog"], ["dwelling place"], ["Ärger"], []],
        "more": [1, 2, 3, 4, 5],
    }
    assert synonyms(parquet(tmp_path, **columns)) == EXPECTED


@pytest.mark.parametrize(
    ("content", "where", "found"),
    [
        ("dog\thound\ncat feline\n", "the file: line 2", "no tab"),
        ("dog\thound\n\n\t feline\n", "the file: line 3", "empty"),
        ("dog\thound,,puppy\n", "the file: line 1", "empty"),
        ("dog\t\n", "the file: line 1", "empty"),
        (b"dog\thound\nb\xe4r\tbear\n", "the file: line 2", "UTF-8"),
        ("", "the file", "no synonym"),
        ("dog\tDog\n", "the file", "no synonym"),
        (b"PAR1 and so on", "the file", "Parquet"),
    ],
)
def test_invalid_line_is_named(tmp_path, content, where, found):
    with pytest.raises(DataError, match=found) as error:
        synonyms(lines(tmp_path, content))
    assert error.value.where == where
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("columns", "where", "found"),
    [
        ({"word": ["dog"], "other": ["hound"]}, "the file", "the columns word, other"),
        ({"word": [1], "synonym": ["hound"]}, "the file", "int64 and string"),
        ({"word": ["dog"], "synonym": [[1]]}, "the file", "string and list"),
        ({"word": ["dog", None], "synonym": ["hound", "cat"]}, "the file: row 2", "missing"),
        ({"word": ["dog"], "synonym": [["hound", None]]}, "the file: row 1", "missing"),
        ({"word": ["dog"], "synonym": [" "]}, "the file: row 1", "empty"),
        ({"word": pa.array([], pa.string()), "synonym": pa.array([], pa.string())}, "the file", "no synonym"),
    ],
)
def test_invalid_column_or_row_is_named(tmp_path, columns, where, found):
    with pytest.raises(DataError, match=found) as error:
        synonyms(parquet(tmp_path, **columns))
    assert error.value.where == where
