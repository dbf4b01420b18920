"""A large Parquet file is read in parts, by ranges, and gives the corpus of reading it as a whole."""

import os
import random
import uuid
from collections import Counter
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Corpus
from pipeline.text.formats import parquet
from pipeline.text.ingest import read_files
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import PreviousCorpus
from pipeline.text.sources import sources
from pipeline.text.sources.sources import list_files
from pipeline.text.task_map import TaskMap, TaskRunner, map_here
from tests.faults import FaultyProxy, Request
from tests.text.ingest.task_maps import map_in_other_processes

_IDS = 700


def write_rows(path: Path, rows: int, group_rows: int, seed: int = 0) -> None:
    """Write rows of which some have no id, no text, or the id of another row; one column is a dictionary."""
    draw = random.Random(seed)
    ids = [None if draw.random() < 0.02 else f"id-{draw.randrange(_IDS)}" for _ in range(rows)]
    texts = [draw.choice([None, "", "short", "x" * 30, f"text {row}", f"text {row}"]) for row in range(rows)]
    languages = pa.array([draw.choice(["en", "de", "fr"]) for _ in range(rows)]).dictionary_encode()
    table = pa.table({"id": ids, "text": texts, "lang": languages})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group_rows)


def read_night(folder: Path, root: Path, map_tasks: TaskMap) -> tuple[Corpus, dict[str, bytes]]:
    """Read the corpus. Returns its record and the content of every file that it names."""
    store = open_store(root)
    corpus = CorpusSettings(uri=str(folder), keep=("lang",), max_quarantined=1)
    ingested = ingest(corpus, 100, store, runner=TaskRunner(map_tasks))
    return ingested, {file.path: store.read(file.path) for file in ingested.references()}


@pytest.mark.parametrize("map_tasks", [map_here, map_in_other_processes])
@pytest.mark.parametrize("limits", [(2_000, 1 << 22), (1 << 28, 45), (1, 1)])
def test_a_divided_file_gives_the_corpus_of_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], map_tasks: TaskMap
):
    write_rows(tmp_path / "in" / "a.parquet", 500, group_rows=37)
    write_rows(tmp_path / "in" / "b.parquet", 300, group_rows=1_000, seed=1)
    whole = read_night(tmp_path / "in", tmp_path / "whole", map_here)
    monkeypatch.setattr(parquet, "_DIVISION_BYTES", limits[0])
    monkeypatch.setattr(parquet, "_DIVISION_ROWS", limits[1])
    monkeypatch.setattr(read_files, "_ITEM_BYTES", limits[0])
    assert read_night(tmp_path / "in", tmp_path / "divided", map_tasks) == whole
    counts = [(file.rows, file.good + file.quarantined) for file in whole[0].files]
    assert counts == [(500, 500), (300, 300)]


def test_divisions_are_all_row_groups_in_order_within_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(parquet, "_DIVISION_BYTES", 3_000)
    monkeypatch.setattr(parquet, "_DIVISION_ROWS", 100)
    write_rows(tmp_path / "a.parquet", 900, group_rows=30)
    (file,) = list_files(corpus := CorpusSettings(uri=str(tmp_path)))
    divisions = parquet.inspect(file, corpus).divisions
    assert [number for part in divisions for number in range(part.first, part.stop)] == list(range(30))
    assert [part.first_row for part in divisions] == [30 * part.first for part in divisions]
    assert sum(part.rows for part in divisions) == 900
    assert all(part.stop - part.first == 1 or part.size <= 3_000 for part in divisions)
    assert {part.rows for part in divisions[:-1]} <= {30, 60, 90}
    assert len(divisions) < 30


def requests_below(proxy: FaultyProxy, folder: str) -> list[Request]:
    assert proxy.log is not None
    return [request for request in proxy.log if f"{folder}/in/" in request.path]


def upload(local: Path, uri: str) -> None:
    system = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
    system.pipe({f"{uri}/{file.name}": file.read_bytes() for file in local.iterdir()})


def test_small_files_need_two_requests_each(faulty: FaultyProxy, s3: str, tmp_path: Path):
    for number in range(40):
        write_rows(tmp_path / "in" / f"{number:02d}.parquet", 20, group_rows=20, seed=number)
    folder = uuid.uuid4().hex
    upload(tmp_path / "in", f"{s3}/{folder}/in")
    faulty.log = []
    ingested = ingest(
        CorpusSettings(uri=f"{s3}/{folder}/in", max_quarantined=1), 100, open_store(tmp_path / "out")
    )
    requests = requests_below(faulty, folder)
    assert ingested.counts["rows"] == 800
    assert Counter(request.method for request in requests) == {"GET": 80}, (
        "a footer and the rows of each file"
    )


def test_parts_of_a_large_file_are_read_by_ranges(
    faulty: FaultyProxy, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    draw = random.Random(0)
    texts = [draw.randbytes(50).hex() for _ in range(20_000)]
    table = pa.table({"id": range(20_000), "text": texts, "other": texts})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "a.parquet", row_group_size=1_000, compression="none")
    size, folder = (tmp_path / "in" / "a.parquet").stat().st_size, uuid.uuid4().hex
    upload(tmp_path / "in", f"{s3}/{folder}/in")
    monkeypatch.setattr(parquet, "LARGE_BYTES", 1_000)
    monkeypatch.setattr(sources, "_ADVANCE_BYTES", 1_000)
    monkeypatch.setattr(parquet, "_READ_AHEAD_BYTES", 8_192)
    monkeypatch.setattr(parquet, "_DIVISION_ROWS", 5_000)
    monkeypatch.setattr(read_files, "_ITEM_BYTES", 1_000)
    faulty.log = []
    corpus = CorpusSettings(uri=f"{s3}/{folder}/in", max_quarantined=1)
    ingested = ingest(corpus, 4_096, open_store(tmp_path / "out"), runner=TaskRunner(map_in_other_processes))
    requests = requests_below(faulty, folder)
    assert ingested.counts["rows"] == 20_000
    columns, footers = size / 2, 2 * 65_536  # one footer for the inspection and one for all four parts
    repeated = 4 * columns / 20  # the first row group of each part is read twice, first for its first rows
    assert max(request.bytes for request in requests) <= 120_000, "no more than a page, or the footer"
    assert sum(request.bytes for request in requests) < 1.1 * columns + footers + repeated
    assert len(requests) < 2 * columns / 8_192


def test_rows_that_become_live_again_are_read_from_their_row_groups_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(parquet, "_DIVISION_ROWS", 100)
    ids = {"a": ["id-3", "id-950"], "b": [f"id-{row}" for row in range(1_000)]}
    for name, rows in ids.items():
        table = pa.table({"id": rows, "text": [f"{name} text of {row}" for row in rows]})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=50, compression="none")
    corpus, store = CorpusSettings(uri=str(tmp_path), max_quarantined=1), open_store(tmp_path / "_out")
    first = ingest(corpus, 400, store)
    (tmp_path / "a.parquet").unlink()
    file = tmp_path / "b.parquet"
    content, stamp = file.read_bytes(), file.stat().st_mtime_ns
    middle = content.index(b"b text of id-500")
    file.write_bytes(
        content[:middle] + bytes(10_000) + content[middle + 10_000 :]
    )  # row groups in the middle are damaged
    os.utime(file, ns=(stamp, stamp))
    second = ingest(corpus, 400, store, PreviousCorpus(first, first.next_ordinal))
    live = pq.read_table(store.open(second.units[-1].path)).to_pylist()
    assert [(row["id"], row["text"]) for row in live] == [
        (row_id, f"b text of {row_id}") for row_id in ids["a"]
    ]
