"""Requests with which the tasks of an ingestion read their buckets from the files of all other tasks."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.text.ingest import part_writer
from pipeline.text.ingest.bucket_plan import shuffle_requests
from pipeline.text.ingest.ingest import ingest
from pipeline.text.key_tables import keys, partitions
from pipeline.text.task_map import IngestTask, TaskRunner
from tests.counted import CountedBucket, counted_bucket

_FILES, _FILE_ROWS, _BUCKET_ROWS, _UNIT_ROWS, _WORKERS = 36, 150, 1_024, 400, 2
_ROWS = _FILES * _FILE_ROWS


def map_on_workers(bucket: CountedBucket) -> Callable[[IngestTask, Sequence[Any]], Iterator[tuple[int, Any]]]:
    """Return a map that starts a task in two processes, so to speak, which take turns."""

    def map_tasks(task: IngestTask, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        works = [task.start() for _ in range(_WORKERS)]
        for number, item in enumerate(items):
            work = works[number % _WORKERS]
            yield (
                number,
                bucket.run_item(type(task).__name__, number, lambda work=work, item=item: work(item)),
            )

    return map_tasks


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountedBucket]:
    """Ingest a corpus whose files are a part each, on an object store. Return its requests."""
    monkeypatch.setattr(keys, "BUCKET_ROWS", _BUCKET_ROWS)
    monkeypatch.setattr(part_writer, "_PART_BYTES", 1)
    for number in range(_FILES):
        names = [f"row-{number}-{row}" for row in range(_FILE_ROWS)]
        table = pa.table({"id": names, "text": [f"the text of {name}" for name in names]})
        pq.write_table(table, tmp_path / f"{number:02d}.parquet")
    with counted_bucket() as bucket:
        runner = TaskRunner(map_on_workers(bucket))
        made = ingest(
            CorpusSettings(uri=str(tmp_path)), _UNIT_ROWS, open_store("s3://bucket/root"), runner=runner
        )
        assert made.counts["good"] == _ROWS
        yield bucket


def shuffled(bucket: CountedBucket) -> int:
    """Count the requests of tasks for the files of other tasks."""
    files = ("-lines.arrow", "-contents.arrow", "-texts.arrow")
    tasks = ("ResolveBucket", "WriteUnits", "ResolveTexts")
    return sum(
        each.verb == "get_object"
        and each.task in tasks
        and each.key.endswith(files)
        and "/bucket-" not in each.key  # a file of one bucket, which its group alone reads
        for each in bucket.log
    )


def test_each_process_reads_offsets_once_and_then_each_pair_of_bucket_and_file_takes_one_request(
    counted: CountedBucket,
):
    assert shuffled(counted) == shuffle_requests(_ROWS, _FILES, _UNIT_ROWS, _WORKERS)


def test_parts_are_read_together(counted: CountedBucket):
    """One after the other, the lines and contents of each part take a request at least."""
    assert counted.longest["WriteUnits"].requests < 2 * _FILES


def test_offsets_beyond_the_memory_for_them_are_read_for_each_bucket(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(partitions, "_KEPT_BYTES", 0)
    bucket = request.getfixturevalue("counted")
    buckets = keys.bucket_count(_ROWS)
    assert shuffled(bucket) == 2 * buckets * (3 * _FILES + buckets)
