"""A corpus in an object store, of very many small files or of one very large file: requests and memory are
bounded.
"""

import io
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Corpus
from pipeline.text.formats import parquet
from pipeline.text.ingest.ingest import ingest
from pipeline.text.task_map import TaskRunner
from tests.counted import Counted, RequestPath, SimulatedObject, counted_bucket
from tests.text.ingest.task_maps import map_in_other_processes

_CORPUS = CorpusSettings(uri="s3://bucket/in", max_quarantined=1)
_LISTINGS = 2  # before the files are read and afterwards
_PAGE = 1_000  # files in one answer to a listing
_FILE_BYTES = 6_000  # of memory for each file: names, sizes, stamps and counts, in several lists
_FEW, _MANY = 200, 1_000
_GAP_BYTES = 16 << 20
_FOOTER_BYTES = 64 << 10  # pyarrow reads at least so many bytes at the end of a file
_REAL_SIZE = (pytest.mark.alone, pytest.mark.timeout(3600))  # ten minutes and more


def small_file() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["one text", "another text"]}), sink)
    return sink.getvalue()


@contextmanager
def traced_peak() -> Iterator[list[int]]:
    """Append the peak of Python's memory within the block, in bytes, to the list that it yields."""
    peaks = list[int]()
    tracemalloc.start()
    try:
        yield peaks
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def read_many(count: int, root: Path) -> tuple[Corpus, list[Counted], RequestPath, int]:
    """Ingest `count` equal files.

    Returns the corpus, all requests, the longest path of requests that wait for each other, and peak memory.
    """
    content = small_file()
    with counted_bucket() as bucket:
        bucket.objects |= {f"bucket/in/{number:06d}.parquet": content for number in range(count)}
        with traced_peak() as peaks:
            corpus = ingest(_CORPUS, 32_768, open_store(root))
        return corpus, bucket.log, bucket.path, peaks[0]


@pytest.mark.parametrize(("few", "many"), [(_FEW, _MANY), pytest.param(10_000, 100_000, marks=_REAL_SIZE)])
def test_small_files_are_read_sixteen_at_a_time_with_two_requests_each_and_little_memory(
    few: int, many: int, tmp_path: Path
):
    peaks = []
    for count in (few, many):
        made, log, path, peak = read_many(count, tmp_path / str(count))
        assert made.counts["rows"] == 2 * count
        verbs, pages = Counter(each.verb for each in log), -(-count // _PAGE)
        assert verbs["get_object"] == 2 * count, "the footer, and the file"
        assert verbs.total() - 2 * count <= _LISTINGS * pages + 10
        assert path.requests <= 2 * (count / 16 + 1) + _LISTINGS * pages + 10
        peaks.append(peak)
    assert (peaks[1] - peaks[0]) / (many - few) < _FILE_BYTES


class SparseFile(io.RawIOBase):
    """A file in memory whose gaps are not stored: a write of exactly _GAP_BYTES bytes is a gap."""

    def __init__(self) -> None:
        self.pieces: dict[int, bytearray] = {0: bytearray()}
        self.end = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: bytes) -> int:
        """Append data."""
        self.end += len(data)
        if len(data) == _GAP_BYTES:
            self.pieces[self.end] = bytearray()
        else:
            self.pieces[max(self.pieces)].extend(data)
        return len(data)


@pytest.mark.parametrize("size", [1 << 30, pytest.param(50 << 30, marks=_REAL_SIZE)])
def test_a_large_file_is_read_by_ranges_of_its_texts(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A gap after each row group stands for columns that are not needed, and should not be read."""
    rows, gap = 50, bytes(_GAP_BYTES)
    groups = size // _GAP_BYTES
    file = SparseFile()
    sink = pa.PythonFile(file, mode="w")
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(sink, schema, compression="none") as writer:
        for group in range(groups):
            ids = range(group * rows, (group + 1) * rows)
            texts = [f"text {row}" * 20 for row in ids]
            writer.write_table(pa.table({"id": ids, "text": texts}, schema=schema))
            sink.write(gap)
    wanted = sum(map(len, file.pieces.values()))
    monkeypatch.setattr(parquet, "_DIVISION_ROWS", 10 * rows)
    with counted_bucket() as bucket:
        pieces = {start: bytes(piece) for start, piece in file.pieces.items()}
        bucket.objects["bucket/in/large.parquet"] = SimulatedObject(file.end, pieces)
        with traced_peak() as peaks:
            made = ingest(_CORPUS, 32_768, open_store(tmp_path), runner=TaskRunner(map_in_other_processes))
    read = [each.size for each in bucket.log if each.verb == "get_object"]
    print(f"{file.end:,} bytes: {len(read):,} requests for {sum(read):,} bytes; memory {peaks[0]:,} bytes")
    assert file.end > size
    assert made.counts["good"] == groups * rows
    assert len(read) < 8 * groups
    assert sum(read) < 1.2 * wanted + 3 * _FOOTER_BYTES, "the footer is read twice, not once for each task"
    assert peaks[0] < 64 << 20
