"""Read files of a corpus: good rows go to parts, in partitions by id, and bad rows to the quarantine.

The ids of rows that are filtered are stored as hashes: they distinguish rows of the previous
corpus that are filtered now from deleted ones.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.units import (
    BAD_FILES,
    CHUNKS_READ,
    SKIPPED_FILES,
    VALUES_DROPPED,
    InputFile,
    RowCounts,
)
from pipeline.text.formats.columns import Columns, RowGroups
from pipeline.text.formats.quarantine import QuarantineFile, RejectedRow, quarantine
from pipeline.text.formats.reader import CorpusSurvey, read_batches
from pipeline.text.formats.reject_rows import SourceBatch
from pipeline.text.ingest.chunking import CutRows, row_cutter
from pipeline.text.ingest.part_writer import PartWriter
from pipeline.text.ingest.read_rows import ReadPart, ReadRows
from pipeline.text.key_tables.keys import id_hashes
from pipeline.text.key_tables.partitions import partition_of, store_partitions
from pipeline.text.normalize import count_control_characters
from pipeline.text.sources.sources import SourceFile, read_in_advance
from pipeline.text.task_map import OnProgress, WorkFolder, ignore_progress

# Limits of the input files of one item; a larger file is an item of its own. 1,600 small requests to an
# object store, sixteen at a time, take about as long as a transfer of 256 MB.
_ITEM_BYTES, _ITEM_FILES = 256 << 20, 1_600
# Bytes of a row of JSON lines, to estimate the rows; the estimate decides only the number of partitions.
_JSON_ROW_BYTES = 256
_GZIP_FACTOR = 4


ID_HASHES = pa.schema([("hash", pa.uint64())])
"""Schema of `id_hashes` of rows."""


@dataclass(frozen=True)
class FileToRead:
    """A file that has to be read tonight, with the results of its inspection."""

    file: SourceFile
    index: int
    """index in tonight's listing"""
    rows: int | None
    """number of rows; None if only reading the file shows it"""
    refused: DataError | None = None
    """error of a file that cannot be used"""
    groups: RowGroups | None = None
    """row groups to read of the file; None for the whole file"""

    @property
    def size(self) -> int:
        """Number of bytes to read."""
        return self.groups.size if self.groups else self.file.size

    @property
    def estimated_rows(self) -> int:
        """Number of rows, or an estimate."""
        if self.refused is not None:
            return 0
        factor = _GZIP_FACTOR if self.file.name.lower().endswith(".gz") else 1
        return factor * self.file.size // _JSON_ROW_BYTES if self.rows is None else self.rows


@dataclass(frozen=True)
class FilesToRead:
    """Consecutive files, or parts of files, which one task reads."""

    number: int
    files: tuple[FileToRead, ...]


class ReadRecord(Stored):
    """The good and the bad rows of the files of one item."""

    parts: tuple[ReadPart, ...]
    inputs: tuple[InputFile, ...]
    """the item's files, each with the counts of its rows in this item"""
    quarantine: FileRef | None
    filtered: FileRef | None = None
    """`ID_HASHES` of the filtered rows, in partitions"""


def files_to_read(
    files: Sequence[tuple[int, SourceFile]], survey: CorpusSurvey, *, divide: bool
) -> list[FileToRead]:
    """Combine files, given with their indices in tonight's listing, with the results of the survey.

    Args:
        divide: return a large file as several parts.
    """
    to_read = list[FileToRead]()
    for index, file in files:
        divisions = survey.divisions.get(file.name, ())
        if divide and len(divisions) > 1:
            to_read += [FileToRead(file, index, groups.rows, groups=groups) for groups in divisions]
        else:
            to_read.append(FileToRead(file, index, survey.rows.get(file.name), survey.refused.get(file.name)))
    return to_read


def group_files(files: Iterable[FileToRead], *, together: bool) -> list[FilesToRead]:
    """Divide files into items of consecutive files, by their number and sizes only.

    Args:
        together: put all files into one item, because the rows to read of a file depend on earlier files.
    """
    groups: list[list[FileToRead]] = []
    size = 0
    for file in files:
        is_full = not groups or len(groups[-1]) == _ITEM_FILES or size + file.size > _ITEM_BYTES
        if is_full and not (together and groups):
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return [FilesToRead(number, tuple(group)) for number, group in enumerate(groups)]


@dataclass(frozen=True)
class ReadFiles:
    """Read the files of one item. Returns a `ReadRecord`."""

    work: WorkFolder
    """folder of the temporary files"""
    corpus: CorpusSettings
    """settings that name the columns"""
    columns: Columns
    """types that the files agree on"""
    partitions: int
    """number of partitions of each part"""
    on_progress: OnProgress = ignore_progress
    """called with the rows and bytes of the item that were read so far"""

    def start(self) -> Callable[[FilesToRead], ReadRecord]:
        """Return the function that reads an item."""
        cut_rows = row_cutter(self.corpus)
        return lambda item: self.work.load_or_make(
            f"read-{item.number:06d}",
            ReadRecord,
            lambda scratch: _Reading(self, item, scratch, cut_rows).run(),
        )


@dataclass
class _Reading:
    """The state of reading one item."""

    task: ReadFiles
    item: FilesToRead
    scratch: Path
    cut_rows: CutRows
    rows: int = 0
    bytes_before: int = 0
    inputs: list[InputFile] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    filtered: list[np.ndarray] = field(default_factory=list)
    """`id_hashes` of filtered rows"""
    quarantine_file: QuarantineFile = field(init=False)
    writer: PartWriter = field(init=False)

    def __post_init__(self) -> None:
        task, stem = self.task, f"{self.task.work.path}/read-{self.item.number:06d}"
        self.quarantine_file = QuarantineFile(self.scratch / "quarantine.parquet")
        self.writer = PartWriter(task.work.store, task.partitions, stem)

    def run(self) -> ReadRecord:
        files: Iterable[SourceFile] = [planned.file for planned in self.item.files]
        if self.task.corpus.max_rows is None:  # else files after the limit would be read, too
            files = read_in_advance(files)
        for planned, file in zip(self.item.files, files, strict=True):
            file_to_read = replace(planned, file=file)
            self.notes.clear()
            error = file_to_read.refused or self._error_in(file_to_read.file)
            if error:
                rejected = [RejectedRow(-1, "bad_file", str(error))]
                self.quarantine_file.add(quarantine(file_to_read.file.name, rejected))
                self.notes[BAD_FILES] = 1
                self._record_file(file_to_read.file)
            else:
                self._read_file(file_to_read)
            self.bytes_before += file_to_read.size
        return ReadRecord(
            parts=self.writer.close(),
            inputs=tuple(self.inputs),
            quarantine=self._store_quarantine(),
            filtered=self._store_filtered(),
        )

    def _store_filtered(self) -> FileRef | None:
        if not self.filtered:
            return None
        hashes, count = np.concatenate(self.filtered), self.task.partitions
        rows, path = pa.table([hashes], schema=ID_HASHES), f"read-{self.item.number:06d}-filtered.arrow"
        partitions = partition_of(hashes, count)
        return store_partitions(
            self.task.work.store, rows, partitions, count, f"{self.task.work.path}/{path}"
        )

    def _store_quarantine(self) -> FileRef | None:
        rows = sum(self.quarantine_file.close().values())
        if not rows:
            return None
        file = self.quarantine_file.path
        path, size = f"{self.task.work.path}/read-{self.item.number:06d}-bad.parquet", file.stat().st_size
        self.task.work.store.put(file, path)
        return FileRef(path=path, sha256="", rows=rows, bytes=size)

    def _read_file(self, file_to_read: FileToRead) -> None:
        """Read one file; raise Defect if its rows do not add up."""
        file, good, bad, filtered = file_to_read.file, 0, 0, 0
        for batch in self._read_limited(file_to_read):
            good, bad = good + batch.good.num_rows, bad + batch.bad.num_rows
            filtered += batch.filtered.num_rows
            self._add(batch, file_to_read)
            self.task.on_progress(self.rows, self.bytes_before + batch.position)
        read = good + bad + filtered
        rows = read if file_to_read.rows is None else file_to_read.rows
        skipped = 0 if self._remaining_rows() else max(rows - read, 0)
        counts = RowCounts(
            rows=rows - skipped, good=good, quarantined=bad, skipped=skipped, filtered=filtered
        )
        counts.check(file.uri, "file")
        self._record_file(file, counts)

    def _record_file(self, file: SourceFile, counts: RowCounts = RowCounts()) -> None:
        notes = {name: count for name, count in sorted(self.notes.items()) if count}
        self.inputs.append(
            InputFile(name=file.name, size=file.size, stamp=file.stamp, **dict(counts), notes=notes)
        )

    def _read_limited(self, file_to_read: FileToRead) -> Iterator[SourceBatch]:
        """Yield batches up to corpus.max_rows.

        If the number of rows in the file is unknown, its remaining rows are not counted: the file counts as
        one of the skipped files.
        """
        if file_to_read.rows is not None and not self._remaining_rows():
            return
        file, groups = file_to_read.file, file_to_read.groups
        for batch in read_batches(file, self.task.corpus, self.task.columns, groups):
            remaining = self._remaining_rows()
            if remaining:
                yield batch.head(remaining)
            if batch.rows > remaining:
                if file_to_read.rows is None:
                    self.notes[SKIPPED_FILES] = 1
                return

    def _remaining_rows(self) -> int:
        """Number of rows that may still be read."""
        most = self.task.corpus.max_rows
        return sys.maxsize if most is None else most - self.rows

    def _error_in(self, file: SourceFile) -> DataError | None:
        """With corpus.bad_files=skip, read a file to its end and return the error that it raises, if any.

        It is read in advance, because no unit may hold rows of a file that is skipped.
        """
        if self.task.corpus.bad_files == "error" or not self._remaining_rows():
            return None
        try:
            for _ in read_batches(file, self.task.corpus, self.task.columns):
                pass
        except DataError as error:
            return error
        return None

    def _add(self, batch: SourceBatch, file_to_read: FileToRead) -> None:
        """Record the good rows of a batch, the bad rows and the counts."""
        good = self.cut_rows(batch.good)
        self.writer.add(ReadRows.of(good, file_to_read.index, self.task.columns.schema))
        self.quarantine_file.add(batch.bad)
        if batch.filtered.num_rows:
            self.filtered.append(id_hashes(batch.filtered.filter(batch.filtered["id"].is_valid())))
            self.notes.update(f"filtered_{setting}" for setting in batch.filtered["by"].to_pylist())
        self.rows += batch.rows
        self.notes.update(
            control_characters=sum(map(count_control_characters, batch.good["text"].chunks)),
            surrogates_replaced=len(batch.surrogates),
            **{VALUES_DROPPED: len(batch.nulled)},
        )
        if self.task.columns.chunked:
            self.notes[CHUNKS_READ] += good.num_rows
        self.notes.update(f"quarantined_{reason}" for reason in batch.bad["reason"].to_pylist())
