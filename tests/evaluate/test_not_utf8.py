"""Small tables beside the corpus: bytes that are not UTF-8 are an error that names their row."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.augment.synonyms import read_thesaurus
from pipeline.errors import DataError
from pipeline.evaluate.judgements import read_judgements
from pipeline.evaluate.source import TaskRoles, open_file
from pipeline.flows.transform.decide import dev_pairs
from pipeline.settings import TaskSettings
from pipeline.store.files.open_store import store_of
from pipeline.text.formats.queries import read_texts

WORDS = [b"one", b"caf\xe9", b"two"]
BAD_ROW = 2


def strings(values: list[bytes]) -> pa.Array:
    """Return an array of strings with any bytes, which Arrow does not check."""
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(values), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(values))]
    )


BAD, GOOD = strings(WORDS), pa.array(["a", "b", "c"])
SCORES = pa.array([0.0, 1.0, 2.0])
ENCODED = {
    "plain": BAD,
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), BAD),
    "in pages": pa.chunked_array([BAD.slice(0, 1), BAD.slice(1)]),
}


def task(path: str, read) -> None:
    file = open_file(TaskSettings(kind="sts", uri=path), *store_of(path), TaskRoles(("text",)))
    read(file.rows())


# What reads the file, and the columns of the file.
READERS = {
    "queries": (lambda path: list(read_texts(path)), {"query": BAD}),
    "judged queries": (read_judgements, {"query": BAD, "id": GOOD}),
    "judged ids": (read_judgements, {"query": GOOD, "id": BAD}),
    "judged pairs": (read_judgements, {"sentence1": GOOD, "sentence2": BAD, "score": SCORES}),
    "texts of a task": (lambda path: task(path, lambda rows: rows.texts("text")), {"text": BAD}),
    "classes of a task": (lambda path: task(path, lambda rows: rows.codes("text")), {"text": BAD}),
    "dev pairs": (dev_pairs, {"sentence1": BAD, "sentence2": GOOD, "score": SCORES}),
    "words": (lambda path: read_thesaurus(Path(path), path), {"word": BAD, "synonym": GOOD}),
    "synonyms": (lambda path: read_thesaurus(Path(path), path), {"word": GOOD, "synonyms": BAD}),
}


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize("reader", READERS)
def test_strings_of_a_parquet_file_that_are_not_utf8_are_named_by_their_row(tmp_path, reader, encoding):
    read, columns = READERS[reader]
    path = tmp_path / "file.parquet"
    pq.write_table(
        pa.table({name: ENCODED[encoding] if values is BAD else values for name, values in columns.items()}),
        path,
    )
    with pytest.raises(DataError) as caught:
        read(str(path))
    if encoding == "dictionary":  # Arrow itself finds these, and knows no row
        assert "Invalid UTF8" in caught.value.found
    else:
        assert f"row {BAD_ROW}" in caught.value.where
        assert caught.value.expected == "UTF-8"


@pytest.mark.parametrize("name", ["file.csv", "file.jsonl"])
def test_lines_that_are_not_utf8_are_named(tmp_path, name):
    content = {
        "file.csv": b"query,id\na,1\ncaf\xe9,2\n",
        "file.jsonl": b'{"query": "a", "id": 1}\n\n{"query": "caf\xe9"}',
    }[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"line 3.*UTF-8"):
        read_judgements(str(tmp_path / name))


@pytest.mark.parametrize("reader", READERS)
def test_names_of_columns_that_are_not_utf8_are_an_error_of_the_file(tmp_path, reader):
    read, columns = READERS[reader]
    path = tmp_path / "file.parquet"
    content = {name: GOOD if values is BAD else values for name, values in columns.items()}
    pq.write_table(pa.table(content | {"o-er": GOOD}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"o-er", b"o\xe9er"))
    with pytest.raises(DataError, match="utf-8"):
        read(str(path))
