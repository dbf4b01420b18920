"""An ingestion whose temporary files are in the store resumes after a kill and leaves none of them."""

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.store.files.local import LocalStore
from pipeline.store.files.open_store import open_store
from pipeline.text.ingest import part_writer, read_files, sorted_rows
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.read_files import ReadRecord
from pipeline.text.key_tables import buckets, keys
from pipeline.text.task_map import IngestTask, TaskRunner
from tests.text.ingest.editing import Nights
from tests.text.ingest.ingesting import random_rows, write
from tests.text.ingest.task_maps import map_in_other_processes


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which some hundred rows need several items, parts, buckets and groups."""
    monkeypatch.setattr(keys, "BUCKET_ROWS", 60)
    monkeypatch.setattr(buckets, "SMALL_ROWS", 10)
    monkeypatch.setattr(sorted_rows, "RANGE_ROWS", 30)
    monkeypatch.setattr(read_files, "_ITEM_BYTES", 5_000)
    monkeypatch.setattr(part_writer, "_PART_BYTES", 4_000)


class Killed(BaseException):
    """The process was killed."""


class MortalStore(LocalStore):
    """A store whose process is killed at the write that follows the next `lives` writes."""

    lives = 0

    def _count(self) -> None:
        if not MortalStore.lives:
            raise Killed
        MortalStore.lives -= 1

    def write(self, path: str, data: bytes) -> None:
        self._count()
        super().write(path, data)

    def create(self, path: str, data: bytes) -> bool:
        self._count()
        return super().create(path, data)

    def put(self, local: Path, path: str) -> None:
        self._count()
        super().put(local, path)


def files_below(root: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(root.rglob("*")):
        if path.is_file():
            yield path.relative_to(root).as_posix(), path.read_bytes()


def three_files(folder: Path) -> Nights:
    """A corpus of three files, in which some ids occur twice."""
    nights = Nights(folder, keep=(), unit_rows=40)
    rows = [(row_id, text, None) for row_id, text in random_rows(120, seed=3, distinct=100)]
    for number in range(3):
        nights.put(f"{number}.parquet", rows[40 * number : 40 * number + 40])
    return nights


def edit(nights: Nights, night: int) -> None:
    """First replace one row, then all rows of a file, and remove a file whose duplicates become live."""
    if night == 1:
        nights.put("2.parquet", [("id-new", "text new", None), *nights.files["2.parquet"][1:]])
        return
    nights.put("0.parquet", [(row_id, text, None) for row_id, text in random_rows(40, seed=4, distinct=100)])
    nights.drop("1.parquet")


def test_an_ingestion_killed_before_any_write_resumes_to_the_same_bytes(tmp_path: Path):
    undisturbed, killed = three_files(tmp_path / "undisturbed"), three_files(tmp_path / "killed")
    killed.store = MortalStore(str(tmp_path / "killed" / "out"))
    kills = 0
    for nights in (undisturbed, killed):
        nights.map_tasks = map_in_other_processes
    for night in range(3):
        if night:
            edit(undisturbed, night)
            edit(killed, night)
        undisturbed.night()
        # The last steps are not divided into items that a later run skips: one run must do all their writes.
        for lives in range(0, 100, 2):
            MortalStore.lives = lives
            try:
                killed.night()
                break
            except Killed:
                kills += 1
        assert killed.last == undisturbed.last, night
        tables = killed.last.keys, killed.last.texts
        assert [any(bucket.deltas for bucket in table) for table in tables] == 2 * [night == 1]
    assert kills > 8
    bytes_found, expected = (dict(files_below(tmp_path / name / "out")) for name in ("killed", "undisturbed"))
    assert bytes_found == expected
    assert not [name for name in expected if "work" in name.split("/")]


def test_finished_items_are_not_read_again(tmp_path: Path):
    rows = random_rows(300, seed=5, distinct=280)
    corpus = write(tmp_path / "in", *(rows[start : start + 50] for start in range(0, 300, 50)))
    store, progress, finished = open_store(tmp_path / "out"), list[int](), list[str]()

    def map_until_three_are_read(task: IngestTask, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for number, result in map_in_other_processes(task, items):
            if isinstance(result, ReadRecord):
                finished.extend(file.name for file in result.inputs)
            if len(finished) == 3:
                raise Killed
            yield number, result

    with pytest.raises(Killed):
        ingest(corpus, 40, store, runner=TaskRunner(map_until_three_are_read))
    for file in (tmp_path / "in" / name for name in finished):
        content, stamp = file.read_bytes(), file.stat().st_mtime_ns
        file.write_bytes(content[:4] + bytes(100) + content[104:])  # only the footer can be read
        os.utime(file, ns=(stamp, stamp))

    def record_progress(rows_read: int, size: int) -> None:
        progress.append(rows_read)

    ingested = ingest(corpus, 40, store, runner=TaskRunner(map_in_other_processes, record_progress))
    assert ingested.rows == len({row_id for row_id, _ in rows})
    assert progress == [50, 100, 150, 200, 250, 300]


def test_temporary_files_in_s3_give_the_same_corpus_as_on_disk(s3: str, tmp_path: Path):
    rows = random_rows(150, seed=6, distinct=140)
    corpus = write(tmp_path / "in", rows[:70], rows[70:])
    stores = open_store(tmp_path / "out"), open_store(f"{s3}/{uuid.uuid4().hex}")
    local, remote = (ingest(corpus, 40, store, runner=TaskRunner(map_in_other_processes)) for store in stores)
    assert len(local.keys) > 1
    assert remote == local
    assert {entry.path for entry in stores[1].list()} == {entry.path for entry in stores[0].list()}
