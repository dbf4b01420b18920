"""One pass over the input files of a night: good rows go to chunks, bad rows to the quarantine."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError, Defect, TransientError
from pipeline.settings import CorpusSettings
from pipeline.store.schema import writer_options
from pipeline.store.units import InputFile
from pipeline.text.corpus.keys import carried_keys, id_hashes
from pipeline.text.corpus.normalize import count_control_characters, text_keys
from pipeline.text.corpus.quarantine import QuarantineFile, RejectedRow, quarantine
from pipeline.text.corpus.reader import CorpusSurvey, read_batches
from pipeline.text.corpus.resolve_ids import line_schema
from pipeline.text.corpus.sift import SourceBatch, rechunk
from pipeline.text.corpus.sources import SourceFile
from pipeline.text.corpus.spill import Spill

UNIT_BYTES = 64 << 20  # of text in one unit: about five copies are in memory at once, here and in a worker
CHANGED_REMEDY = (
    "run again; if files are rewritten with the same size and time stamp, "
    "corpus.fingerprint=full detects them by their content"
)
"""remedy for a file that has changed while the night was using it"""
_UNIT_COLUMNS = {"id", "text", "text_key", "file", "row"}

OnProgress = Callable[[int, int], None]
"""called with the rows and the input bytes read so far"""


@dataclass
class ReadPass:
    """Read files; each good row goes to a chunk file and leaves a line for resolving its id.

    A row's position is its index among all good rows read.
    """

    corpus: CorpusSettings
    survey: CorpusSurvey
    """the columns and the unusable files"""
    file_index: dict[str, int]
    """index of every file in tonight's listing, by name"""
    scratch: Path
    bad: QuarantineFile
    on_progress: OnProgress
    chunks: list[Path] = field(default_factory=list)
    """files of good rows, in order"""
    starts: list[int] = field(default_factory=lambda: [0])
    """position of the first row of each chunk, and the end"""
    inputs: dict[str, InputFile] = field(default_factory=dict)
    """statistics of each file read"""
    lines: Spill = field(init=False)
    """one line for each good row"""
    _rows: int = 0
    _bytes_before: int = 0
    _notes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.lines = Spill(self.scratch, "lines")

    @property
    def schema(self) -> pa.Schema:
        """Schema of the corpus's units."""
        return self.survey.columns.schema

    @property
    def rows(self) -> int:
        """Number of good rows read."""
        return self.lines.rows

    def read(self, files: Sequence[SourceFile], chunk_rows: int) -> None:
        """Read all rows of the files, which are sorted by name."""
        for table in rechunk(self._read_good(files), chunk_rows, UNIT_BYTES):
            chunk = self.scratch / f"chunk-{len(self.chunks)}.parquet"
            pq.write_table(table, chunk, **writer_options(self.schema))
            self.chunks.append(chunk)
            self.starts.append(self.starts[-1] + table.num_rows)

    def rows_of(self, file: SourceFile, wanted: np.ndarray) -> pa.Table:
        """Read rows of a file that has not changed since an earlier night.

        They are duplicates whose winner is gone. TransientError if the file no longer has them.

        Args:
            file: the file.
            wanted: row numbers, ascending.
        """
        found = [
            batch.good.filter(pa.array(np.isin(batch.good["row"].to_numpy(), wanted)))
            for batch in read_batches(file, self.corpus, self.survey.columns)
        ]
        count = sum(map(len, found))
        if count != len(wanted):
            raise TransientError(
                file.uri, f"{len(wanted)} good rows that it had before", f"{count}", CHANGED_REMEDY
            )
        return self._unit_rows(pa.concat_tables(found), file)

    def _read_good(self, files: Sequence[SourceFile]) -> Iterator[pa.Table]:
        """Yield the rows for units in order; add lines, quarantined rows and counts on the way."""
        for file in files:
            self._notes.clear()
            error = self.survey.refused.get(file.name) or self._error_in_file(file)
            if error:
                self.bad.add(quarantine(file.name, [RejectedRow(-1, "bad_file", str(error))]))
                self._notes["bad_files"] = 1
                self._record_file(file)
            else:
                yield from self._read_file(file)
            self._bytes_before += file.size

    def _read_file(self, file: SourceFile) -> Iterator[pa.Table]:
        good = bad = 0
        for batch in self._read_limited(file):
            good, bad = good + batch.good.num_rows, bad + batch.bad.num_rows
            yield self._add_lines(batch, file)
            self.on_progress(self._rows, self._bytes_before + batch.position)
        expected = self.survey.rows[file.name]
        skipped = 0 if expected is None else expected - good - bad
        if skipped < 0 or (skipped and self._remaining_rows()):
            raise Defect(
                file.uri,
                f"{expected} rows = good + quarantined + skipped",
                f"{good} + {bad} + {skipped}",
                "report this with the file",
            )
        self._record_file(file, good, bad, skipped)

    def _record_file(self, file: SourceFile, good: int = 0, bad: int = 0, skipped: int = 0) -> None:
        self.inputs[file.name] = InputFile(
            name=file.name,
            size=file.size,
            stamp=file.stamp,
            rows=good + bad,
            good=good,
            quarantined=bad,
            skipped=skipped,
            notes={name: count for name, count in sorted(self._notes.items()) if count},
        )

    def _read_limited(self, file: SourceFile) -> Iterator[SourceBatch]:
        """Yield batches up to corpus.max_rows.

        A file without a row count that has more rows is counted as skipped instead of being read to its end.
        """
        counted = self.survey.rows[file.name] is not None
        if counted and not self._remaining_rows():
            return
        for batch in read_batches(file, self.corpus, self.survey.columns):
            remaining = self._remaining_rows()
            if remaining:
                yield batch.head(remaining)
            if batch.rows > remaining:
                if not counted:
                    self._notes["skipped_files"] = 1
                return

    def _remaining_rows(self) -> int:
        """Number of rows that may still be read."""
        return sys.maxsize if self.corpus.max_rows is None else self.corpus.max_rows - self._rows

    def _error_in_file(self, file: SourceFile) -> DataError | None:
        """Read a file to its end in advance and return the error that it raises, if any.

        Only with bad_files=skip: no unit may hold half of a skipped file.
        """
        if self.corpus.bad_files == "error" or not self._remaining_rows():
            return None
        try:
            for _ in read_batches(file, self.corpus, self.survey.columns):
                pass
        except DataError as error:
            return error
        return None

    def _add_lines(self, batch: SourceBatch, file: SourceFile) -> pa.Table:
        """Return the batch's rows for units; add their lines, the bad rows and the counts."""
        rows = self._unit_rows(batch.good, file)
        count = rows.num_rows
        columns = {
            "id": rows["id"],
            "text_key": rows["text_key"],
            "carried": carried_keys(rows, [name for name in self.schema.names if name not in _UNIT_COLUMNS]),
            "file": pa.array(np.full(count, self.file_index[file.name], dtype=np.int32)),
            "row": rows["row"],
            "address": pa.nulls(count, pa.int64()),
            "position": pa.array(np.arange(self.rows, self.rows + count, dtype=np.int64)),
        }
        lines = pa.table(columns, schema=line_schema(rows.schema.field("id").type))
        self.lines.add(lines, id_hashes(lines))
        self.bad.add(batch.bad)
        self._rows += batch.rows
        self._notes.update(
            control_characters=sum(map(count_control_characters, rows["text"].chunks)),
            surrogates_replaced=len(batch.surrogates),
            kept_values_dropped=len(batch.dropped),
        )
        self._notes.update(f"quarantined_{reason}" for reason in batch.bad["reason"].to_pylist())
        return rows

    def _unit_rows(self, good: pa.Table, file: SourceFile) -> pa.Table:
        """Good rows with their text keys and the name of their file."""
        rows = good.combine_chunks()
        keys = [text_keys(chunk) for chunk in rows["text"].chunks]
        columns = {name: rows[name] for name in rows.column_names}
        columns["text_key"] = pa.chunked_array(keys, self.schema.field("text_key").type)
        columns["file"] = pa.chunked_array([pa.repeat(pa.scalar(file.name), rows.num_rows)])
        return pa.table(columns, schema=self.schema)
