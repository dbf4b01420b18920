"""Count the tokens of a corpus, split by the encoder's own tokenizer, for filters of frequent tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.flows.context import FlowContext, map_in_order
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings
from pipeline.store.files.base import Store
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import Corpus, CorpusUnit
from pipeline.text.tokens.tokens import Tokenizer

_BATCH_ROWS = 8_192  # read and tokenized together


def without_counts(encoder: EncoderSettings) -> EncoderSettings:
    """Return the settings of the same encoder, without filters that need counts."""
    return encoder.model_copy(update={"exclude": (), "sif": None, "frequencies": None})


def count_tokens(context: FlowContext, corpus: Corpus) -> tuple[str, pa.Table]:
    """Count the tokens of all live rows, and store the counts below counts/.

    Special tokens, prompts and templates are not counted, and texts are not truncated.

    Returns:
        Path of the Parquet file in the store, and its content: `count`, int64, in descending order, and
        `token`, or `word` if each token of the encoder is a whole word.

    Raises:
        DataError: the corpus has no token.
    """
    encoder = without_counts(context.job.encoder)
    folder = open_folder(encoder)
    task = CountTokens(
        encoder_for_workers(encoder, context.store, context.workers), context.store, corpus.dead
    )
    with context.stages("count", unit="rows") as bar:
        totals = sum(map_in_order(context, task, corpus.units, bar), np.zeros(1, np.int64))
    if not totals.any():
        raise DataError("corpus", "texts with tokens", "none", "check corpus.uri and corpus.text")
    vocabulary = folder.tokenizer().vocabulary()
    counted = sorted((-int(totals[token_id]), token) for token, token_id in vocabulary.items())
    table = pa.table(
        {
            "word" if folder.whole_words else "token": [token for count, token in counted if count],
            "count": [-count for count, _ in counted if count],
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    content = sink.getvalue().to_pybytes()
    path = f"counts/{sha256(content).hexdigest()[:24]}.parquet"
    context.store.create(path, content)
    return path, table


@dataclass(frozen=True)
class CountTokens:
    """Count the tokens of the live rows of corpus units: (vocabulary,) int64 for each unit."""

    encoder: EncoderSettings
    """the encoder whose tokenizer is used"""
    store: Store
    """store of the units"""
    dead: FileRef | None = None
    """file of the dead rows"""

    def start(self) -> Callable[[CorpusUnit], np.ndarray]:
        """Load the tokenizer, and return the function that counts the tokens of a unit."""
        return partial(self._count, open_folder(self.encoder).tokenizer())

    def _count(self, tokenizer: Tokenizer, unit: CorpusUnit) -> np.ndarray:
        size = max(tokenizer.vocabulary().values(), default=-1) + 1
        counts, start = np.zeros(size, np.int64), 0
        dead_rows = DeadRows(self.store, self.dead).rows_of(unit.ordinal)
        source = pq.ParquetFile(unit.file.open(self.store))
        for batch in source.iter_batches(_BATCH_ROWS, columns=["text"]):
            live = ~np.isin(np.arange(start, start + len(batch)), dead_rows)
            start += len(batch)
            rows = tokenizer.text_ids(batch.filter(pa.array(live)).column("text").to_pylist())
            ids = np.fromiter((token_id for row in rows for token_id in row), np.int64)
            counts += np.bincount(ids[ids >= 0], minlength=size)  # SKIPPED_WORD is negative
        return counts
