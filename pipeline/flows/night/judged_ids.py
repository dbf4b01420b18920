"""Find judgements whose relevant ids are all missing from the corpus, before anything is encoded."""

import sys
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.evaluate.judgements import JudgedQueries, read_judgements
from pipeline.flows.night.judged_rows import rows_of_documents
from pipeline.flows.run import Run
from pipeline.log import counted
from pipeline.settings import CorpusSettings, GateSettings
from pipeline.store.units import Corpus
from pipeline.text.corpus.reader import read_batches, survey_files
from pipeline.text.corpus.sources import SourceFile

_MAX_READ_BYTES = 1 << 28  # of files that are read for their ids before a night: some seconds


def judged_ids(judged: JudgedQueries) -> list[str]:
    """Return the different relevant ids of all queries, sorted."""
    return sorted({row_id for of_query in judged.relevant for row_id in of_query})


def missing_ids_error(judged: JudgedQueries, *, is_chunked: bool) -> DataError:
    """Return the error for judgements of which no relevant id is in the corpus."""
    ids = judged_ids(judged)
    return DataError(
        f"gates.relevance.queries: {judged.where}",
        "ids of rows of the corpus" + (" before they are cut" if is_chunked else ""),
        f"none of its {counted(len(ids), 'id')}, such as {ids[0]!r}, is in the corpus",
        "check the column id and corpus.id, or set gates.relevance.queries to null",
    )


def check_judged_ids(run: Run, corpus: Corpus) -> None:
    """Raise DataError if no relevant id of `gates.relevance.queries` is in the corpus."""
    judged = _read(run.job.gates)
    if judged is not None and not rows_of_documents(run, corpus, judged_ids(judged)):
        raise missing_ids_error(judged, is_chunked=corpus.is_chunked)


def check_judged_ids_in_files(
    gates: GateSettings, corpus: CorpusSettings, files: Sequence[SourceFile]
) -> None:
    """Do the same for a corpus that was not ingested, if its files have at most 256 MiB.

    The files are read until a relevant id is found, and at most `corpus.max_rows` rows of them.
    """
    judged = _read(gates)
    if judged is None or sum(file.size for file in files) > _MAX_READ_BYTES:
        return
    wanted, survey = pa.array(judged_ids(judged), pa.string()), survey_files(files, corpus)
    readable = (file for file in files if file.name not in survey.refused)
    batches = (batch.good for file in readable for batch in read_batches(file, corpus, survey.columns))
    for ids in _first_ids(batches, corpus.max_rows):
        if pc.any(pc.is_in(ids.cast(pa.string()), value_set=wanted)).as_py():
            return
    raise missing_ids_error(judged, is_chunked=corpus.chunk.by is not None)


def _first_ids(batches: Iterable[pa.Table | pa.RecordBatch], rows: int | None) -> Iterator[pa.Array]:
    """Yield the ids of the first rows, or of all."""
    left = sys.maxsize if rows is None else rows
    for batch in batches:
        yield batch["id"][:left]
        left -= batch.num_rows
        if left <= 0:
            return


def _read(gates: GateSettings) -> JudgedQueries | None:
    """Read `gates.relevance.queries`; None if it is not set, or has sentence pairs."""
    if gates.relevance.queries is None:
        return None
    judged = read_judgements(gates.relevance.queries)
    return judged if isinstance(judged, JudgedQueries) else None
