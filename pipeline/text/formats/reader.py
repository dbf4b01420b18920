"""Inspect and read files of every format; rows come in batches, separated into good and bad ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

import pyarrow as pa

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.files.base import in_threads
from pipeline.store.rows.schema import stored_name
from pipeline.text.formats import jsonl, parquet
from pipeline.text.formats.columns import Columns, FileColumns, RowGroups, agree_on_columns
from pipeline.text.formats.excluded_ids import excluded_ids, left_out_ids
from pipeline.text.formats.reject_rows import SourceBatch, sift
from pipeline.text.sources.sources import Format, SourceFile, reading
from pipeline.text.task_map import TaskMap, map_here

_FORMATS: dict[Format, ModuleType] = {"parquet": parquet, "jsonl": jsonl}
# Limits of the files that one task inspects, sixteen at a time. If columns are kept, files of JSON lines are
# read as a whole.
_INSPECTED_FILES = 1_600
_INSPECTED_BYTES = 1 << 30


@dataclass(frozen=True)
class CorpusSurvey:
    """Result of inspecting every file."""

    columns: Columns
    """the types that the files agree on"""
    rows: dict[str, int | None]
    """number of rows by file name; None if only reading the file shows it"""
    refused: dict[str, DataError]
    """the error of each file that cannot be used, by its name"""
    divisions: dict[str, tuple[RowGroups, ...]]
    """parts of a Parquet file that several workers can read, by file name"""
    has_misfits: bool = False
    """whether a file is refused because its types do not fit those of other files"""


@dataclass(frozen=True)
class InspectFiles:
    """Inspect some files. Returns the columns of each file, or the error if it cannot be used."""

    corpus: CorpusSettings

    def start(self) -> Callable[[Sequence[SourceFile]], list[FileColumns | DataError]]:
        """Return the function that inspects files: sixteen at once, because each file takes a round trip."""
        return lambda files: in_threads(lambda file: _inspect(file, self.corpus), files)


def survey_files(
    files: Sequence[SourceFile],
    corpus: CorpusSettings,
    unit_schema: pa.Schema | None = None,
    map_tasks: TaskMap = map_here,
) -> CorpusSurvey:
    """Find the column types and the unusable files before the first row is read.

    The types come from Parquet footers and from the first lines of JSON files, or from all their lines if
    there are kept columns.

    Args:
        files: the files to read.
        corpus: settings that name the columns.
        unit_schema: schema of the units with the rows of unchanged files, which are not inspected again. If a
            file does not fit this schema, no error is raised, because it may fit the other files to read.
        map_tasks: function that applies the task to groups of files.

    Raises:
        DataError: a file is unusable and corpus.bad_files is error; the error is that of the first such file.
    """
    groups = _group(files)
    results = dict(map_tasks(InspectFiles(corpus), groups))
    inspected = [result for number in range(len(groups)) for result in results[number]]
    usable = [result for result in inspected if isinstance(result, FileColumns)]
    if unit_schema is not None:
        usable.insert(0, _columns_of_units(unit_schema, corpus))
    columns, misfits = agree_on_columns(usable, corpus)
    refused = misfits | {
        file.name: result
        for file, result in zip(files, inspected, strict=True)
        if isinstance(result, DataError)
    }
    may_fit = unit_schema is not None and bool(misfits)
    if refused and corpus.bad_files == "error" and not may_fit:
        raise next(refused[file.name] for file in files if file.name in refused)
    good = [file_columns for file_columns in usable if file_columns.file.name not in refused]
    rows = {file_columns.file.name: file_columns.rows for file_columns in good}
    divisions = {file_columns.file.name: file_columns.divisions for file_columns in good}
    return CorpusSurvey(columns, rows, refused, divisions, bool(misfits))


def _group(files: Sequence[SourceFile]) -> list[list[SourceFile]]:
    """Divide files into groups that are inspected together, by their sizes only."""
    groups, size = list[list[SourceFile]](), 0
    for file in files:
        if groups and len(groups[-1]) < _INSPECTED_FILES and size + file.size <= _INSPECTED_BYTES:
            groups[-1].append(file)
            size += file.size
        else:
            groups.append([file])
            size = file.size
    return groups


def read_batches(
    file: SourceFile,
    corpus: CorpusSettings,
    columns: Columns | None = None,
    groups: RowGroups | None = None,
) -> Iterator[SourceBatch]:
    """Yield the rows of one file in order, good or bad.

    Args:
        file: the file.
        corpus: settings that name the columns.
        columns: types that `survey_files` found; None finds them from this file alone.
        groups: row groups to read of a Parquet file; None reads the whole file.
    """
    columns = columns or survey_files([file], corpus).columns
    excluded, left_out = excluded_ids(corpus), left_out_ids(corpus)
    for raw in _FORMATS[file.format].read(file, corpus, columns, groups):
        yield sift(raw, file, excluded, left_out)


def _columns_of_units(unit_schema: pa.Schema, corpus: CorpusSettings) -> FileColumns:
    """Return the columns of the unchanged files, which are already in units, as if they were one file's."""
    stored = dict(zip(unit_schema.names, unit_schema.types, strict=True))
    types = {name: stored.get(stored_name(name), pa.null()) for name in corpus.keep}
    types[corpus.id] = stored["id" if corpus.chunk.by is None else "parent"]
    source = SourceFile("the unchanged files", corpus.uri, 0, "", "parquet")
    # If another file needs uint64, its types differ from the units', and all files are inspected.
    return FileColumns(source, types, negative_ids=False)


def _inspect(file: SourceFile, corpus: CorpusSettings) -> FileColumns | DataError:
    """Return the columns of a file, or the error if it cannot be used."""
    try:
        with reading(file):
            columns: FileColumns = _FORMATS[file.format].inspect(file, corpus)
            return columns
    except DataError as error:
        return error
