"""Find live rows in a corpus's key table: rows of given documents, and documents of given rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.flows.run import Run, map_in_order
from pipeline.flows.workers.tasks import PlainTask
from pipeline.store.arrays import arrow_of, one_chunk
from pipeline.store.base import Store, in_threads
from pipeline.store.units import Corpus, TableBucket
from pipeline.text.corpus.keys import id_hashes
from pipeline.text.corpus.line_numbers import parents_of
from pipeline.text.corpus.partitions import partition_of
from pipeline.text.corpus.table_buckets import read_key_bucket

_BUCKETS_PER_ITEM = 16  # a worker starts in about the time that it reads as many


@dataclass(frozen=True, eq=False)
class FindRows(PlainTask[tuple[TableBucket, ...], pa.Table]):
    """Find the live rows in buckets of a key table whose document or address is wanted.

    Attributes:
        column: "document", the id of the row, or of the row that a chunk was cut from, as a string; or
            "address".
        wanted: values of the column.
    """

    store: Store
    column: str
    wanted: pa.Array

    def work(self, buckets: tuple[TableBucket, ...]) -> pa.Table:
        return pa.concat_tables(in_threads(self._find, buckets))

    def _find(self, bucket: TableBucket) -> pa.Table:
        lines = read_key_bucket(self.store, (bucket,), 0, 1, ("id", "row", "address"))
        assert lines is not None
        documents = one_chunk(parents_of(lines["id"], lines["row"].to_numpy())).cast(pa.string())
        rows = pa.table({"document": documents, "address": lines["address"]})
        live = rows.filter(rows["address"].is_valid())
        return live.filter(pc.is_in(live[self.column], value_set=self.wanted)).combine_chunks()


def rows_of_documents(run: Run, corpus: Corpus, documents: Sequence[str]) -> dict[int, str]:
    """Return documents by the addresses of their live rows; documents that are not in the corpus have none.

    Args:
        documents: ids of rows; if rows are cut into chunks, ids of the rows before they are cut.
    """
    wanted = pa.array(sorted(set(documents)), pa.string())
    hashes = id_hashes(pa.table({"id": wanted, "row": pa.array(np.zeros(len(wanted), np.int64))}))
    numbers = np.unique(partition_of(hashes, len(corpus.keys))).tolist()
    return _find(run, FindRows(run.store, "document", wanted), [corpus.keys[number] for number in numbers])


class DocumentsOfRows:
    """The documents of rows by address, looked up in the key table when they are asked for."""

    def __init__(self, run: Run, corpus: Corpus) -> None:
        self._run, self._corpus = run, corpus
        self._documents: dict[int, str] = {}

    def look_up(self, addresses: np.ndarray) -> None:
        """Look up live rows together, since each call reads the whole key table unless all are known."""
        unknown = np.unique(addresses)
        unknown = unknown[[address not in self._documents for address in unknown.tolist()]]
        if len(unknown):
            task = FindRows(self._run.store, "address", arrow_of(unknown))
            self._documents |= _find(self._run, task, self._corpus.keys)

    def of(self, addresses: np.ndarray) -> pa.Array:
        """Return the documents of rows (n,) that were looked up."""
        return pa.array([self._documents[address] for address in addresses.tolist()], pa.string())


def _find(run: Run, task: FindRows, buckets: Sequence[TableBucket]) -> dict[int, str]:
    size = _BUCKETS_PER_ITEM
    groups = [tuple(buckets[start : start + size]) for start in range(0, len(buckets), size)]
    found: dict[int, str] = {}
    for table in map_in_order(run, task, groups):
        found.update(zip(table["address"].to_pylist(), table["document"].to_pylist(), strict=True))
    return found
