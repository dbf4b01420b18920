"""Tasks for a few texts: sample them from the corpus, and encode them on a worker."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.flows.context import FlowContext
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.flows.workers.worker_encoder import worker_encoder
from pipeline.settings import ClusterSettings, EncoderSettings, EncodeSettings
from pipeline.stats.sample import sample_by_key
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import CorpusUnit
from pipeline.store.rows.schema import corpus_schema

_BATCH_ROWS = 65_536  # read together
_READERS = 8  # units that a worker reads together
_GROUP_UNITS = 64  # corpus units that a worker samples at once, unless there are fewer
MAX_SAMPLED_UNITS = 256
"""Largest number of corpus units that texts are sampled from; with full units these are eight million rows.
"""
_NO_TEXTS = corpus_schema(pa.string()).empty_table().select(["text", "text_key"])
_ROWS_PER_TEXT = 4  # rows kept per text of the sample, because equal texts are returned only once


@dataclass(frozen=True)
class EncodeTexts:
    """Encode texts like texts of the corpus, or as queries. Returns (n, dim)."""

    encoder: EncoderSettings
    encode: EncodeSettings
    query: bool = False

    def start(self) -> Callable[[tuple[str, ...]], np.ndarray]:
        """Load the encoder. Returns the function that encodes a tuple of texts."""
        encoder = worker_encoder(self.encoder, self.encode)
        return lambda texts: np.asarray(encoder.encode_unchecked(list(texts), query=self.query))


def encode_texts(context: FlowContext, texts: tuple[str, ...], *, query: bool = False) -> np.ndarray:
    """Encode texts on one worker, like texts of the corpus or as queries. Returns (n, dim)."""
    task = EncodeTexts(
        encoder_for_workers(context.job.encoder, context.store, context.workers),
        context.workers.encode_settings(context.job.encode),
        query,
    )
    return context.workers.run(task, texts, Pool.of_one(context.job.cluster))


def is_usable(vectors: np.ndarray) -> np.ndarray:
    """Return a mask of the vectors (n, d) that can be compared: True if finite and not zero."""
    return np.asarray(np.isfinite(vectors).all(axis=1) & vectors.any(axis=1))


def sample_texts(
    workers: Workers, settings: ClusterSettings, sample: "SampleTexts", units: Sequence[CorpusUnit]
) -> tuple[str, ...]:
    """Sample distinct texts of live rows by content key, on the index workers.

    They come from at most MAX_SAMPLED_UNITS units, evenly spaced by rows.

    Returns:
        At most `sample.count` texts in the order of their keys. The result is the same on any cluster.
    """
    if len(units) > MAX_SAMPLED_UNITS:
        ends = np.cumsum([unit.rows for unit in units])
        spaced = np.linspace(0, ends[-1], MAX_SAMPLED_UNITS, endpoint=False)
        units = [units[index] for index in np.unique(np.searchsorted(ends, spaced, side="right"))]
    groups = [tuple(units[start : start + _GROUP_UNITS]) for start in range(0, len(units), _GROUP_UNITS)]
    found = dict(workers.map_units(sample, groups, Pool(workers.index_workers(settings, len(groups)))))
    return sample.texts([found[number] for number in range(len(groups))])


@dataclass(frozen=True)
class SampleTexts(PlainTask[tuple[CorpusUnit, ...], pa.Table]):
    """Find the rows of corpus units that a sample of texts may need: columns text and text_key."""

    store: Store
    """store of the units"""
    count: int
    """number of texts in the sample; fewer if the units have fewer"""
    min_characters: int = 1
    """least length of a text"""
    dead: FileRef | None = None
    """file of the dead rows"""

    def texts(self, tables: Sequence[pa.Table]) -> tuple[str, ...]:
        """Return the sampled texts, in the order of their keys, from the results for all groups of units."""
        return tuple(reduce(self._merge_smallest, tables, _NO_TEXTS)["text"].to_pylist()[: self.count])

    def work(self, units: tuple[CorpusUnit, ...]) -> pa.Table:
        smallest = _NO_TEXTS
        dead = DeadRows(self.store, self.dead)
        for start in range(0, len(units), _READERS):
            items = [(unit, dead.rows_of(unit.ordinal)) for unit in units[start : start + _READERS]]
            found = in_threads(lambda item: self._smallest_of(*item), items, _READERS)
            smallest = reduce(self._merge_smallest, found, smallest)
        return smallest

    def _smallest_of(self, unit: CorpusUnit, dead_rows: np.ndarray) -> pa.Table:
        """Return the rows of one unit that a sample may need."""
        smallest, start = _NO_TEXTS, 0
        source = pq.ParquetFile(unit.file.open(self.store))
        for batch in source.iter_batches(_BATCH_ROWS, columns=["text", "text_key"]):
            live = ~np.isin(np.arange(start, start + len(batch)), dead_rows)
            start += len(batch)
            rows = pa.Table.from_batches([batch if live.all() else batch.filter(pa.array(live))])
            smallest = self._merge_smallest(smallest, rows)
        return smallest

    def _merge_smallest(self, smallest: pa.Table, others: pa.Table) -> pa.Table:
        """Return the rows of both tables whose keys have the smallest hashes, each key once, in key order."""
        long_texts = others.filter(pc.greater_equal(pc.utf8_length(others["text"]), self.min_characters))
        rows = pa.concat_tables([smallest, long_texts])
        chosen = rows.take(sample_by_key(rows["text_key"].to_pylist(), _ROWS_PER_TEXT * self.count))
        _, first_rows = np.unique(chosen["text_key"].to_numpy(), return_index=True)
        return chosen.take(pa.array(first_rows))
