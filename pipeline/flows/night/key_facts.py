"""Facts about the live rows of a corpus, from its key table: repeated ids, and distinct texts."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from pipeline.flows.context import FlowContext, map_in_order
from pipeline.flows.workers.tasks import PlainTask
from pipeline.stats.distinct import estimate_distinct, smallest_distinct
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.units import Corpus, TableBucket
from pipeline.text.key_tables.buckets import read_key_bucket
from pipeline.text.key_tables.keys import text_hashes

_BUCKETS_PER_ITEM = 16  # one process reads this many in about the time that a worker takes to start

DISTINCT_TEXTS = "distinct_texts"
"""key of the number of distinct texts among the counts of a release"""


class KeyFacts(NamedTuple):
    """Facts about live rows."""

    repeated_ids: int
    """number of rows that repeat the id of another row"""
    texts: np.ndarray
    """`smallest_distinct` of the hashes of the rows' texts"""

    @classmethod
    def of_all(cls, parts: Iterable["KeyFacts"]) -> "KeyFacts":
        """Combine facts about parts of a table that have no id in common."""
        repeated, texts = zip(*parts, strict=True) if (parts := list(parts)) else ((), ())
        return cls(sum(repeated), smallest_distinct(np.concatenate([np.zeros(0, np.uint64), *texts])))

    @property
    def distinct_texts(self) -> int:
        """Number of distinct texts; an estimate if there are many."""
        return estimate_distinct(self.texts)


@dataclass(frozen=True)
class ReadKeys(PlainTask[tuple[TableBucket, ...], KeyFacts]):
    """Collect the facts of buckets of a corpus's key table, which have no id in common."""

    store: Store

    def work(self, buckets: tuple[TableBucket, ...]) -> KeyFacts:
        return KeyFacts.of_all(in_threads(self._read, buckets))

    def _read(self, bucket: TableBucket) -> KeyFacts:
        table = read_key_bucket(self.store, (bucket,), 0, 1, ("id", "address", "text_key"))
        assert table is not None
        live = table.filter(table["address"].is_valid())
        repeated = live.num_rows - pc.count_distinct(live["id"]).as_py()
        return KeyFacts(int(repeated), smallest_distinct(text_hashes(live)))


def read_keys(context: FlowContext, corpus: Corpus) -> KeyFacts:
    """Collect the facts of a corpus's key table."""
    size, keys = _BUCKETS_PER_ITEM, corpus.keys
    groups = [tuple(keys[start : start + size]) for start in range(0, len(keys), size)]
    return KeyFacts.of_all(map_in_order(context, ReadKeys(context.store), groups))
