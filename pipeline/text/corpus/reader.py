"""Read files of every format as batches of sifted rows."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType

import pyarrow as pa

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.schema import carried_name
from pipeline.text.corpus import jsonl, parquet
from pipeline.text.corpus.columns import Columns, FileColumns, agree_on_columns
from pipeline.text.corpus.sift import SourceBatch, sift
from pipeline.text.corpus.sources import Format, SourceFile

_FORMATS: dict[Format, ModuleType] = {"parquet": parquet, "jsonl": jsonl}
_INSPECTORS = 16  # files opened at once: over a network, each needs two round trips


@dataclass(frozen=True)
class CorpusSurvey:
    """The result of inspecting every file."""

    columns: Columns
    """the types that the files agree on"""
    rows: dict[str, int | None]
    """number of rows by file name; None if only reading shows it"""
    refused: dict[str, DataError]
    """the error of each file that cannot be used, by its name"""


def survey_files(
    files: Sequence[SourceFile], corpus: CorpusSettings, before: pa.Schema | None = None
) -> CorpusSurvey:
    """Inspect files, so that an unusable one shows before the first row is read.

    The types come from Parquet footers and from the first lines of JSON files, or all their lines if there
    are kept columns.

    Args:
        files: the files to read.
        corpus: names the columns.
        before: schema of the units that hold the corpus's other files, which are not inspected.

    Raises:
        DataError: a file is unusable and corpus.bad_files is error; the first such file's error.
    """
    with ThreadPoolExecutor(_INSPECTORS) as pool:
        inspected = list(pool.map(lambda file: _inspect(file, corpus), files))
    found = [result for result in inspected if isinstance(result, FileColumns)]
    if before is not None:
        found.insert(0, _columns_of_units(before, corpus))
    columns, misfits = agree_on_columns(found, corpus)
    refused = misfits | {
        file.name: result
        for file, result in zip(files, inspected, strict=True)
        if isinstance(result, DataError)
    }
    if refused and corpus.bad_files == "error":
        raise next(refused[file.name] for file in files if file.name in refused)
    rows = {one.file.name: one.rows for one in found if one.file.name not in refused}
    return CorpusSurvey(columns, rows, refused)


def read_batches(
    file: SourceFile, corpus: CorpusSettings, columns: Columns | None = None
) -> Iterator[SourceBatch]:
    """Yield all rows of one file in order, good or bad.

    Args:
        file: the file.
        corpus: names the columns.
        columns: from the survey; None: from this file only.
    """
    for raw in _FORMATS[file.format].read(file, corpus, columns or survey_files([file], corpus).columns):
        yield sift(raw, file)


def _columns_of_units(before: pa.Schema, corpus: CorpusSettings) -> FileColumns:
    """The columns of the files that are already in units, as those of one file."""
    stored = dict(zip(before.names, before.types, strict=True))
    types = {name: stored.get(carried_name(name), pa.null()) for name in corpus.keep}
    return FileColumns(
        SourceFile("the files before", corpus.uri, 0, "", "parquet"), types | {corpus.id: stored["id"]}
    )


def _inspect(file: SourceFile, corpus: CorpusSettings) -> FileColumns | DataError:
    """The columns of a file, or the error why it cannot be used."""
    try:
        return _FORMATS[file.format].inspect(file, corpus)
    except DataError as error:
        return error
