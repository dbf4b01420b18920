"""The task that reads rows of unchanged files that were duplicates on an earlier night and are live now."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import TransientError
from pipeline.settings import CorpusSettings
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.text.formats import parquet
from pipeline.text.formats.columns import Columns
from pipeline.text.formats.reader import read_batches
from pipeline.text.ingest.chunking import CutRows, row_cutter
from pipeline.text.ingest.part_writer import PartWriter
from pipeline.text.ingest.read_files import FilesToRead, FileToRead, ReadRecord
from pipeline.text.ingest.read_rows import ReadRows
from pipeline.text.ingest.resolve_bucket import REVIVED
from pipeline.text.key_tables.line_numbers import rows_of_lines
from pipeline.text.key_tables.partitions import read_from_all
from pipeline.text.sources.sources import SourceFile
from pipeline.text.task_map import WorkFolder

CHANGED_REMEDY = (
    "run again; if files are rewritten with the same size and time stamp, "
    "corpus.fingerprint=full detects them by their content"
)
"""Remedy for a file that changed while the night was reading it."""


def files_of_rows(work: Store, revived: Sequence[FileRef]) -> list[int]:
    """Return the indices of the files that have revived rows, ascending."""
    indices = set[int]()
    for rows in revived:
        indices.update(read_from_all(work, [rows], REVIVED)["file"].unique().to_pylist())
    return sorted(indices)


@dataclass(frozen=True)
class ReviveRows:
    """Read the revived rows of the files of one item. Returns a `ReadRecord` without inputs."""

    work: WorkFolder
    """folder of the temporary files"""
    corpus: CorpusSettings
    """settings that name the columns"""
    columns: Columns
    """types that the files agree on"""
    partitions: int
    """number of partitions of each part"""
    revived: tuple[FileRef, ...]
    """`BucketRecord.revived` of all buckets that have revived rows"""

    def start(self) -> Callable[[FilesToRead], ReadRecord]:
        """Return the function that reads an item."""
        cut_rows = row_cutter(self.corpus)
        return lambda item: self.work.load_or_make(
            f"revived-{item.number:06d}",
            ReadRecord,
            lambda scratch: self._read(item, cut_rows),
        )

    def _read(self, item: FilesToRead, cut_rows: CutRows) -> ReadRecord:
        stem = f"{self.work.path}/revived-{item.number:06d}"
        writer = PartWriter(self.work.store, self.partitions, stem)
        files = pa.array([file_to_read.index for file_to_read in item.files], pa.int32())
        wanted = pa.concat_tables(
            rows.filter(pc.is_in(rows["file"], value_set=files))
            for rows in (read_from_all(self.work.store, [file], REVIVED) for file in self.revived)
        )
        for file_to_read in item.files:
            of_file = wanted.filter(pc.equal(wanted["file"], file_to_read.index)).sort_by("row")
            if of_file.num_rows:
                writer.add(self._rows(file_to_read, of_file, cut_rows))
        return ReadRecord(parts=writer.close(), inputs=(), quarantine=None)

    def _rows(self, file_to_read: FileToRead, wanted: pa.Table, cut_rows: CutRows) -> ReadRows:
        """Read the wanted rows or chunks of a file; raise TransientError if their texts have changed."""
        lines = wanted["row"].to_numpy()
        numbers = np.unique(rows_of_lines(lines))
        rows = cut_rows(read_rows(file_to_read.file, numbers, self.corpus, self.columns))
        rows = rows.filter(pa.array(np.isin(rows["row"].to_numpy(), lines)))
        current_rows = ReadRows.of(rows, file_to_read.index, self.columns.schema)
        if current_rows.lines["text_key"] != wanted["text_key"]:
            uri = file_to_read.file.uri
            raise TransientError(uri, "the texts that it had before", "other texts", CHANGED_REMEDY)
        return current_rows


def read_rows(file: SourceFile, numbers: np.ndarray, corpus: CorpusSettings, columns: Columns) -> pa.Table:
    """Read single rows of a file that has not changed since an earlier night.

    Args:
        file: the file.
        numbers: row numbers, ascending.
        corpus: settings that name the columns.
        columns: types that the files agree on.

    Raises:
        TransientError: some of these rows are gone from the file, or are no longer good.
    """
    parts = parquet.inspect(file, corpus).divisions if file.format == "parquet" else (None,)
    tables = [
        batch.good.filter(pa.array(np.isin(batch.good["row"].to_numpy(), numbers)))
        for part in parts
        if part is None or part.has_any(numbers)
        for batch in read_batches(file, corpus, columns, part)
    ]
    count = sum(map(len, tables))
    if count != len(numbers):
        raise TransientError(
            file.uri, f"{len(numbers)} good rows that it had before", f"{count}", CHANGED_REMEDY
        )
    return pa.concat_tables(tables)
