"""Tasks for a few texts: sample them from the corpus, and encode them on a worker."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.run import Run
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.flows.workers.worker import loaded
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.stats.sample import sample_by_key
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.stored import FileRef
from pipeline.store.units import CorpusUnit

_BATCH = 65_536  # rows read together
_SPARE = 4  # rows kept for each text wanted, since equal texts count once


@dataclass(frozen=True)
class EncodeTexts:
    """Encode texts like those of the corpus, or like queries. Returns (n, dim)."""

    encoder: EncoderSettings
    encode: EncodeSettings
    query: bool = False

    def start(self) -> Callable[[tuple[str, ...]], np.ndarray]:
        """Load the encoder; the work encodes a tuple of texts."""
        encoder = loaded(self.encoder, self.encode)
        return lambda texts: np.asarray(encoder.encode(list(texts), query=self.query))


def encode_texts(run: Run, texts: tuple[str, ...], *, query: bool = False) -> np.ndarray:
    """Encode texts on one worker, like those of the corpus or like queries. Returns (n, dim)."""
    task = EncodeTexts(
        encoder_for_workers(run.job.encoder, run.store, run.workers),
        run.workers.encode_settings(run.job.encode),
        query,
    )
    return run.workers.run(task, texts, Pool.of_one(run.job.cluster))


@dataclass(frozen=True)
class SampleTexts(PlainTask[tuple[CorpusUnit, ...], tuple[str, ...]]):
    """Sample different texts of the live rows of corpus units, by content key.

    Attributes:
        store: of the units.
        count: texts to return, in the order of their keys; fewer if there are not as many.
        characters: least length of a text.
        dead: dead rows of the units.
    """

    store: Store
    count: int
    characters: int = 1
    dead: FileRef | None = None

    def work(self, units: tuple[CorpusUnit, ...]) -> tuple[str, ...]:
        best: pa.Table | None = None
        dead = Dead.load(self.store, self.dead)
        for unit in units:
            start, gone = 0, dead.rows_of(unit.ordinal)
            source = pq.ParquetFile(unit.file.open(self.store))
            for batch in source.iter_batches(_BATCH, columns=["text", "text_key"]):
                live = ~np.isin(np.arange(start, start + len(batch)), gone)
                start += len(batch)
                best = self._best(best, batch if live.all() else batch.filter(pa.array(live)))
        return tuple(best["text"].to_pylist()[: self.count]) if best else ()

    def _best(self, best: pa.Table | None, batch: pa.RecordBatch) -> pa.Table:
        """Return the rows of both with the smallest keys, each key once."""
        long = batch.filter(pc.greater_equal(pc.utf8_length(batch["text"]), self.characters))
        rows = pa.concat_tables([*([best] if best else []), pa.Table.from_batches([long])])
        chosen = rows.take(sample_by_key(rows["text_key"].to_pylist(), _SPARE * self.count))
        first = {key: row for row, key in reversed(list(enumerate(chosen["text_key"].to_pylist())))}
        # typed, since there may be no text that long
        return chosen.take(pa.array([first[key] for key in sorted(first)], pa.int64()))
