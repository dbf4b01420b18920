"""Find judgements whose relevant ids are all missing from the corpus, before anything is encoded."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.evaluate.judgements import JudgedQueries, read_relevance
from pipeline.flows.context import FlowContext, map_in_order
from pipeline.flows.workers.tasks import PlainTask
from pipeline.log import counted
from pipeline.settings import CorpusSettings, GateSettings
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.units import Corpus, TableBucket
from pipeline.store.rows.arrays import arrow_of, one_chunk
from pipeline.text.formats.reader import read_batches, survey_files
from pipeline.text.key_tables.buckets import read_key_bucket
from pipeline.text.key_tables.keys import id_hashes
from pipeline.text.key_tables.line_numbers import parents_of
from pipeline.text.key_tables.partitions import partition_of
from pipeline.text.sources.sources import SourceFile

_BUCKETS_PER_ITEM = 16  # one process reads this many in about the time that a worker takes to start


@dataclass(frozen=True, eq=False)
class FindRows(PlainTask[tuple[TableBucket, ...], pa.Table]):
    """Find the live rows in buckets of a key table whose document or address is wanted."""

    store: Store
    column: str
    """"address", or "document": the id, as a string, of the row or of the row that a chunk was cut from"""
    wanted: pa.Array
    """values of the column"""

    def work(self, buckets: tuple[TableBucket, ...]) -> pa.Table:
        return pa.concat_tables(in_threads(self._find, buckets))

    def _find(self, bucket: TableBucket) -> pa.Table:
        lines = read_key_bucket(self.store, (bucket,), 0, 1, ("id", "row", "address"))
        assert lines is not None
        documents = one_chunk(parents_of(lines["id"], lines["row"].to_numpy())).cast(pa.string())
        rows = pa.table({"document": documents, "address": lines["address"]})
        live = rows.filter(rows["address"].is_valid())
        return live.filter(pc.is_in(live[self.column], value_set=self.wanted)).combine_chunks()


def rows_of_documents(context: FlowContext, corpus: Corpus, documents: Sequence[str]) -> dict[int, str]:
    """Map the addresses of live rows to their documents, for those of `documents` that are in the corpus.

    Args:
        documents: ids of rows; if rows are cut into chunks, ids of the rows before they are cut.
    """
    wanted = pa.array(sorted(set(documents)), pa.string())
    hashes = id_hashes(pa.table({"id": wanted, "row": pa.array(np.zeros(len(wanted), np.int64))}))
    numbers = np.unique(partition_of(hashes, len(corpus.keys))).tolist()
    return _find(
        context, FindRows(context.store, "document", wanted), [corpus.keys[number] for number in numbers]
    )


class DocumentsOfRows:
    """The documents of rows by address, looked up in the key table when they are asked for."""

    def __init__(self, context: FlowContext, corpus: Corpus) -> None:
        self._context, self._corpus = context, corpus
        self._documents: dict[int, str] = {}

    def look_up(self, addresses: np.ndarray) -> None:
        """Look up the documents of live rows.

        Pass many rows at once: a call reads the whole key table, unless the documents of all rows are known.
        """
        unknown = np.unique(addresses)
        unknown = unknown[[address not in self._documents for address in unknown.tolist()]]
        if len(unknown):
            task = FindRows(self._context.store, "address", arrow_of(unknown))
            self._documents |= _find(self._context, task, self._corpus.keys)

    def of(self, addresses: np.ndarray) -> pa.Array:
        """Return the documents of rows (n,) that were looked up."""
        return pa.array([self._documents[address] for address in addresses.tolist()], pa.string())


def _find(context: FlowContext, task: FindRows, buckets: Sequence[TableBucket]) -> dict[int, str]:
    size = _BUCKETS_PER_ITEM
    groups = [tuple(buckets[start : start + size]) for start in range(0, len(buckets), size)]
    found: dict[int, str] = {}
    for table in map_in_order(context, task, groups):
        found.update(zip(table["address"].to_pylist(), table["document"].to_pylist(), strict=True))
    return found


_MAX_READ_BYTES = 1 << 28  # most bytes of files that are read for their ids before a night: some seconds


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


def check_judged_ids(context: FlowContext, corpus: Corpus) -> None:
    """Raise DataError if no relevant id of `gates.relevance.queries` is in the corpus."""
    judged = _read(context.job.gates)
    if judged is not None and not rows_of_documents(context, corpus, judged_ids(judged)):
        raise missing_ids_error(judged, is_chunked=corpus.is_chunked)


def check_judged_ids_in_files(
    gates: GateSettings, corpus: CorpusSettings, files: Sequence[SourceFile]
) -> None:
    """Check a corpus that was not ingested, as `check_judged_ids` does, if its files have at most 256 MiB.

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
    judged = read_relevance(gates.relevance)
    return judged if isinstance(judged, JudgedQueries) else None
