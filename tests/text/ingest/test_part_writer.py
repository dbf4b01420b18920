"""Neither the number of files in an item nor the joining of small tables changes a corpus."""

from pathlib import Path

import pytest

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.text.ingest import part_writer, read_files
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.read_files import FilesToRead, FileToRead, group_files
from pipeline.text.sources.sources import SourceFile
from tests.text.ingest.ingesting import random_rows, write

_FILES = 23


def files(sizes: list[int]) -> list[FileToRead]:
    return [
        FileToRead(SourceFile(f"{number:03d}", f"s3://b/{number:03d}", size, "etag", "parquet"), number, None)
        for number, size in enumerate(sizes)
    ]


def names(items: list[FilesToRead]) -> list[list[str]]:
    return [[planned.file.name for planned in item.files] for item in items]


def test_an_item_has_a_limited_number_of_files_and_of_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_files, "_ITEM_FILES", 3)
    monkeypatch.setattr(read_files, "_ITEM_BYTES", 100)
    to_read = files([1, 1, 1, 1, 60, 40, 1, 500, 1])
    assert names(group_files(to_read, together=False)) == [
        ["000", "001", "002"],
        ["003", "004"],
        ["005", "006"],
        ["007"],
        ["008"],
    ]
    assert names(group_files(to_read, together=True)) == [[planned.file.name for planned in to_read]]


@pytest.mark.parametrize("max_rows", [None, 150])
def test_small_tables_and_small_items_give_the_same_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_rows: int | None
):
    """Every file has a row without a text, so that each adds to the quarantine."""
    rows = random_rows(10 * _FILES, seed=0, distinct=150)
    of_files = [[*rows[start : start + 10], ("empty", " ")] for start in range(0, len(rows), 10)]
    settings = write(tmp_path / "in", *of_files).model_copy(update={"max_rows": max_rows})

    def read(name: str) -> dict[str, bytes]:
        store = open_store(tmp_path / name)
        made = ingest(settings, 64, store)
        return {"record": made.to_json()} | {file.path: store.read(file.path) for file in made.references()}

    as_set = read("as-set")
    monkeypatch.setattr(part_writer, "_SMALL_TABLES", 4)
    monkeypatch.setattr(part_writer, "_PART_BYTES", 4_000)
    monkeypatch.setattr(read_files, "_ITEM_FILES", 5)
    assert read("divided") == as_set


def test_files_whose_rows_are_all_quarantined_leave_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(part_writer, "_SMALL_TABLES", 2)
    corpus: CorpusSettings = write(tmp_path / "in", *[[("a", " ")]] * 5)
    with pytest.raises(DataError, match=r"5 rows \(empty 5\)"):
        ingest(corpus, 64, open_store(tmp_path / "out"))
