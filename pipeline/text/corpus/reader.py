"""Files of either format as batches of sifted rows."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType

import pyarrow as pa

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.schema import carried_name
from pipeline.text.corpus import jsonl, parquet
from pipeline.text.corpus.columns import Columns, Seen, agree
from pipeline.text.corpus.sift import SourceBatch, sift
from pipeline.text.corpus.sources import Format, SourceFile

_FORMATS: dict[Format, ModuleType] = {"parquet": parquet, "jsonl": jsonl}
_INSPECTORS = 16  # files opened at once: over a network each waits for two answers


@dataclass(frozen=True)
class Survey:
    """What a look at every file gave. rows: by file name, where known without reading; refused: why a file cannot be used, by its name."""

    columns: Columns
    rows: dict[str, int | None]
    refused: dict[str, DataError]


def survey(files: Sequence[SourceFile], corpus: CorpusSettings, before: pa.Schema | None = None) -> Survey:
    """Types that the files agree on, from Parquet footers and the first lines of JSON (all lines, for kept columns): an unusable file shows before the first row is read.

    before: schema of the units that hold other files of the corpus, which are not looked at. With `corpus.bad_files: error` the first unusable file's
    DataError is raised.
    """
    with ThreadPoolExecutor(_INSPECTORS) as pool:
        looks = list(pool.map(lambda file: _inspect(file, corpus), files))
    seen = [
        *([_known(before, corpus)] if before is not None else []),
        *(look for look in looks if isinstance(look, Seen)),
    ]
    columns, misfits = agree(seen, corpus)
    refused = {
        file.name: look for file, look in zip(files, looks, strict=True) if isinstance(look, DataError)
    } | misfits
    if refused and corpus.bad_files == "error":
        raise next(refused[file.name] for file in files if file.name in refused)
    return Survey(columns, {one.file.name: one.rows for one in seen if one.file.name not in refused}, refused)


def read_batches(
    file: SourceFile, corpus: CorpusSettings, columns: Columns | None = None
) -> Iterator[SourceBatch]:
    """All rows of one file in order, good or set aside. columns: those of the survey; None takes this file's own."""
    agreed = columns or survey([file], corpus).columns
    for raw in _FORMATS[file.format].read(file, corpus, agreed):
        yield sift(raw, file)


def _known(before: pa.Schema, corpus: CorpusSettings) -> Seen:
    """The files of earlier nights as one that comes first."""
    file = SourceFile("the files before", corpus.uri, 0, "", "parquet")
    types = {
        name: before.field(carried_name(name)).type
        for name in corpus.keep
        if carried_name(name) in before.names
    }
    return Seen(
        file, dict.fromkeys(corpus.keep, pa.null()) | types | {corpus.id: before.field("id").type}, None
    )


def _inspect(file: SourceFile, corpus: CorpusSettings) -> Seen | DataError:
    try:
        return _FORMATS[file.format].inspect(file, corpus)
    except DataError as error:
        return error
