"""Tonight's files compared with the previous corpus: files to read, column types, and rows to expect."""

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.settings import CorpusSettings
from pipeline.store.files.base import Store
from pipeline.store.records.units import BAD_FILES, Corpus, InputFile, TableBucket
from pipeline.text.formats.reader import CorpusSurvey, survey_files
from pipeline.text.ingest.corpus_record import reading_digest
from pipeline.text.ingest.read_files import FileToRead, files_to_read
from pipeline.text.key_tables.keys import bucket_count
from pipeline.text.sources.sources import CorpusFiles, SourceFile
from pipeline.text.task_map import TaskMap

# Bytes of a compressed file per chunk, for an estimate that decides only the number of partitions.
_CHUNK_BYTES = 256


@dataclass(frozen=True)
class PreviousCorpus:
    """The previous night's corpus, which ingestion continues from."""

    corpus: Corpus | None = None
    next_ordinal: int = 0
    """first unit ordinal that no release has used"""
    rebuild_reason: str | None = None
    """reason why none of its units can be kept; None if they can"""
    waiting: Corpus | None = None
    """corpus of the candidate that waits: vectors are copied from its units with `next_ordinal` or above"""


@dataclass(frozen=True)
class TonightsFiles:
    """Tonight's listing, inspected."""

    corpus: CorpusSettings
    files: list[SourceFile]
    """tonight's listing"""
    parent: Corpus | None
    rebuild_reason: str | None
    """reason why all rows get new addresses; None if the parent's units are kept"""
    unchanged: dict[str, InputFile]
    """files that need not be read tonight, by name"""
    survey: CorpusSurvey
    """the columns and the unusable files"""
    left_out: int = 0
    """number of files below the corpus's URI that are not read"""

    @property
    def reuse(self) -> bool:
        """True if unchanged rows keep their addresses."""
        return self.parent is not None and not self.rebuild_reason

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the files in tonight's listing."""
        return tuple(file.name for file in self.files)

    @property
    def is_chunked(self) -> bool:
        """True if the rows of units are chunks."""
        return self.survey.columns.chunked

    @property
    def schema(self) -> pa.Schema:
        """Schema of units."""
        return self.survey.columns.schema

    @property
    def id_type(self) -> pa.DataType:
        """Type of the ids."""
        return self.schema.field("id").type

    @cached_property
    def keys(self) -> tuple[TableBucket, ...]:
        """The parent's key table; empty if its ids are of another kind, so that no row can be found again."""
        parent = self.parent
        if parent is None or parent.id_type != str(self.id_type) or parent.is_chunked != self.is_chunked:
            return ()
        return parent.keys

    @property
    def other_keys(self) -> tuple[TableBucket, ...]:
        """The parent's key table if its ids are of another kind."""
        return () if self.keys or self.parent is None else self.parent.keys

    @cached_property
    def to_read(self) -> list[FileToRead]:
        """The files that have to be read.

        Large files are divided, unless the rows to read of one division depend on other divisions or files.
        """
        files = [pair for pair in enumerate(self.files) if pair[1].name not in self.unchanged]
        read_whole = self.corpus.max_rows is not None or self.corpus.bad_files == "skip"
        return files_to_read(files, self.survey, divide=not read_whole)

    @property
    def unchanged_rows(self) -> int:
        """Number of good rows, or of chunks, of the unchanged files."""
        return sum(file.good_lines for file in self.unchanged.values())

    @cached_property
    def partitions(self) -> int:
        """Number of partitions of the rows read tonight, from an estimate of the number of rows."""
        rows = sum(file.estimated_rows for file in self.to_read)
        if self.corpus.max_rows is not None:
            rows = min(rows, self.corpus.max_rows)
        if self.is_chunked:
            rows = max(rows, sum(file.size for file in self.to_read) // _CHUNK_BYTES)
        return max(bucket_count(rows + self.unchanged_rows), len(self.keys))

    def count_buckets(self, rows_read: int) -> int:
        """Return the number of buckets of ids: a power of two, at most the number of partitions."""
        return min(max(bucket_count(rows_read + self.unchanged_rows), len(self.keys)), self.partitions)


def inspect_files(
    corpus: CorpusSettings, listed: CorpusFiles, parent: PreviousCorpus, store: Store, map_tasks: TaskMap
) -> TonightsFiles:
    """Find the files that have to be read, and inspect them.

    All files are read, and all rows get new addresses, if the id or kept columns or their types changed.

    Raises:
        DataError: a file is unusable and corpus.bad_files is error.
    """
    files, before, rebuild_reason = listed.files, None, parent.rebuild_reason
    if parent.corpus is not None and parent.corpus.is_chunked != (corpus.chunk.by is not None):
        rebuild_reason = rebuild_reason or "corpus.chunk was set or removed"
    if parent.corpus is not None and not rebuild_reason:
        before = pq.ParquetFile(parent.corpus.units[0].file.open(store)).schema_arrow.remove_metadata()
    unchanged = {} if before is None else _unchanged_files(corpus, files, parent.corpus)

    def survey() -> CorpusSurvey:
        """Inspect the files to be read; their types must fit those of the unchanged files."""
        changed = [file for file in files if file.name not in unchanged]
        return survey_files(changed, corpus, before if unchanged else None, map_tasks)

    result = survey()
    if before is not None and (result.has_misfits or result.columns.schema != before):
        reusable, unchanged = unchanged, {}
        of_units, result = result, survey()
        if result.has_misfits and of_units.columns.schema == before:  # the misfits are skipped either way
            result = of_units
        if result.columns.schema == before:
            unchanged = reusable
        else:
            rebuild_reason = "id or kept columns, or their types, have changed"
    left_out = sum(listed.left_out.values())
    return TonightsFiles(corpus, files, parent.corpus, rebuild_reason, unchanged, result, left_out)


def _unchanged_files(
    corpus: CorpusSettings, files: list[SourceFile], parent: Corpus | None
) -> dict[str, InputFile]:
    """Return the files that need not be read, by name.

    Files that were skipped are read again, because they may fit the other files now. With corpus.max_rows
    every file is read: how many of its rows are read depends on the files before it.
    """
    if parent is None or corpus.max_rows is not None or parent.reading != reading_digest(corpus):
        return {}
    before = {(file.name, file.size, file.stamp): file for file in parent.files}
    unchanged = (before.get((file.name, file.size, file.stamp)) for file in files)
    return {file.name: file for file in unchanged if file and BAD_FILES not in file.notes}
