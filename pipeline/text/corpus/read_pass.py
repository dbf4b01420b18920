"""One pass over the input files of a night: good rows wait in chunks, each leaves a line for the key table, and bad rows are set aside."""

import sys
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
from pipeline.text.corpus.keys import by_id, carried_keys
from pipeline.text.corpus.normalize import control_characters, text_keys
from pipeline.text.corpus.quarantine import QuarantineFile, Rejected, quarantine
from pipeline.text.corpus.reader import Survey, read_batches
from pipeline.text.corpus.resolve_ids import line_schema
from pipeline.text.corpus.sift import SourceBatch, rechunk
from pipeline.text.corpus.sources import SourceFile
from pipeline.text.corpus.spill import Spill

UNIT_BYTES = (
    64 << 20
)  # of text in one unit: some five copies of it are in memory at once, here and in a worker
CHANGED = "run again; where files are rewritten within one size and time stamp, corpus.fingerprint=full finds them by their content"
"""what to do about a file that is another one than it was"""
_OWN = {"id", "text", "text_key", "file", "row"}

Progress = Callable[[int, int], None]
"""called with the rows and the input bytes read so far"""


@dataclass
class Reading:
    """numbers: place of every file of tonight's listing, by name. A row's position is its number among the good rows read."""

    corpus: CorpusSettings
    looked: Survey
    numbers: dict[str, int]
    scratch: Path
    bad: QuarantineFile
    on_progress: Progress
    chunks: list[Path] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    inputs: dict[str, InputFile] = field(default_factory=dict)
    lines: Spill = field(init=False)
    _rows: int = 0
    _done_bytes: int = 0
    _notes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lines = Spill(self.scratch, "lines")

    @property
    def schema(self) -> pa.Schema:
        return self.looked.columns.schema

    @property
    def rows(self) -> int:
        """Good rows read."""
        return self.lines.rows

    def read(self, files: Sequence[SourceFile], chunk_rows: int) -> None:
        """All rows of `files`, which are in order of name."""
        for table in rechunk(self._good(files), chunk_rows, UNIT_BYTES):
            place = self.scratch / f"chunk-{len(self.chunks)}.parquet"
            pq.write_table(table, place, **writer_options(self.schema))
            self.chunks.append(place)
            self.starts.append(self.starts[-1] + table.num_rows)

    def rows_of(self, file: SourceFile, wanted: np.ndarray) -> pa.Table:
        """Those rows (ascending numbers) of a file that was read on an earlier night: losers whose winner is gone. TransientError where they are not there."""
        found = [_only(batch.good, wanted) for batch in read_batches(file, self.corpus, self.looked.columns)]
        rows = pa.concat_tables(found) if found else None
        if rows is None or rows.num_rows != len(wanted):
            there = rows.num_rows if rows else 0
            raise TransientError(
                file.uri, f"{len(wanted)} good rows that were there before", f"{there}", CHANGED
            )
        return self._unit_rows(rows, file)

    def _good(self, files: Sequence[SourceFile]) -> Iterator[pa.Table]:
        """Unit rows in order; on the way lines, quarantine and counts are filled."""
        for file in files:
            self._notes = {}
            error = self.looked.refused.get(file.name) or self._unreadable(file)
            if error:
                self.bad.add(quarantine(file.name, [Rejected(-1, "bad_file", str(error))]))
                self._done(file, notes={"bad_files": 1})
            else:
                yield from self._of_file(file)
            self._done_bytes += file.size

    def _of_file(self, file: SourceFile) -> Iterator[pa.Table]:
        good = bad = 0
        for batch in self._limited(file):
            good, bad = good + batch.good.num_rows, bad + batch.bad.num_rows
            yield self._taken(batch, file)
            self.on_progress(self._rows, self._done_bytes + batch.position)
        expected = self.looked.rows[file.name]
        skipped = 0 if expected is None else expected - good - bad
        if skipped < 0 or (skipped and self._room()):
            raise Defect(
                file.uri,
                f"{expected} rows = good + quarantined + skipped",
                f"{good} + {bad} + {skipped}",
                "report this with the file",
            )
        self._done(file, good, bad, skipped, {name: count for name, count in self._notes.items() if count})

    def _done(
        self,
        file: SourceFile,
        good: int = 0,
        bad: int = 0,
        skipped: int = 0,
        notes: dict[str, int] | None = None,
    ) -> None:
        own = dict(sorted((notes or {}).items()))
        self.inputs[file.name] = InputFile(
            name=file.name,
            size=file.size,
            stamp=file.stamp,
            rows=good + bad,
            good=good,
            quarantined=bad,
            skipped=skipped,
            notes=own,
        )

    def _limited(self, file: SourceFile) -> Iterator[SourceBatch]:
        """Batches up to corpus.max_rows; a file without a row count that has more is counted, not read to its end."""
        counted = self.looked.rows[file.name] is not None
        for batch in (
            () if counted and not self._room() else read_batches(file, self.corpus, self.looked.columns)
        ):
            room = self._room()
            if room:
                yield batch.head(room)
            if batch.rows > room:
                if not counted:
                    self._note("skipped_files", 1)
                return

    def _room(self) -> int:
        """Rows that may still be read."""
        return sys.maxsize if self.corpus.max_rows is None else self.corpus.max_rows - self._rows

    def _unreadable(self, file: SourceFile) -> DataError | None:
        """Why a file breaks off in the middle. Under bad_files=skip each is read to its end once before: a unit never holds half a file."""
        if self.corpus.bad_files == "error" or not self._room():
            return None
        try:
            for _ in read_batches(file, self.corpus, self.looked.columns):
                pass
        except DataError as error:
            return error
        return None

    def _taken(self, batch: SourceBatch, file: SourceFile) -> pa.Table:
        rows = self._unit_rows(batch.good, file)
        count = rows.num_rows
        places = {
            "file": pa.array(np.full(count, self.numbers[file.name], dtype=np.int32)),
            "address": pa.nulls(count, pa.int64()),
            "position": pa.array(np.arange(self.rows, self.rows + count, dtype=np.int64)),
        }
        columns = {
            "id": rows["id"],
            "text_key": rows["text_key"],
            "carried": carried_keys(rows, self._kept()),
            "row": rows["row"],
            **places,
        }
        schema = line_schema(rows.schema.field("id").type)
        lines = pa.table([columns[name] for name in schema.names], schema=schema)
        self.lines.add(lines, by_id(lines))
        self.bad.add(batch.bad)
        self._rows += batch.rows
        self._note("control_characters", sum(control_characters(chunk) for chunk in rows["text"].chunks))
        self._note("surrogates_replaced", len(batch.surrogates))
        self._note("kept_values_dropped", len(batch.dropped))
        for reason in batch.bad["reason"].value_counts().to_pylist():
            self._note(f"quarantined_{reason['values']}", reason["counts"])
        return rows

    def _kept(self) -> list[str]:
        return [name for name in self.schema.names if name not in _OWN]

    def _unit_rows(self, good: pa.Table, file: SourceFile) -> pa.Table:
        """Good rows with their text keys and where they are from."""
        whole = good.combine_chunks()
        keys = pa.chunked_array(
            [text_keys(chunk) for chunk in whole["text"].chunks], self.schema.field("text_key").type
        )
        names = pa.chunked_array([pa.repeat(pa.scalar(file.name), whole.num_rows)])
        columns = {**{name: whole[name] for name in whole.column_names}, "text_key": keys, "file": names}
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)

    def _note(self, name: str, count: int) -> None:
        self._notes[name] = self._notes.get(name, 0) + count


def _only(rows: pa.Table, wanted: np.ndarray) -> pa.Table:
    """The rows with those numbers."""
    return rows.filter(pa.array(np.isin(rows["row"].to_numpy(), wanted)))
