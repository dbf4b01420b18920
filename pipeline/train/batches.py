"""Batches for the steps of a training, read and tokenized ahead of time."""

from collections.abc import Callable, Generator, Sequence

import numpy as np

from pipeline.objectives import NO_PEERS, Batch, Peers
from pipeline.prefetch import ahead
from pipeline.settings.training import TEXTS
from pipeline.text.rows.batches import Order, RankRows, RankSlice, rank_rows
from pipeline.text.tokens.tokens import Tokens

Tokenize = Callable[[Sequence[str]], Tokens]


def batches(
    order: Order,
    tokenize: Tokenize,
    *,
    start: int = 0,
    share: RankSlice = RankSlice(),
    peers: Peers = NO_PEERS,
) -> Generator[Batch, None, None]:
    """Yield this rank's batches from step `start` on, without end.

    A thread reads the batches and tokenizes their texts a few batches ahead. Its errors are raised when their
    batch is due; closing the generator ends the thread.

    Raises:
        ConfigError: the ranks cannot get equal parts of a batch.
    """
    return ahead(
        _batch(rows, tokenize, peers)
        for rows in rank_rows(order, start, share, together=peers is not NO_PEERS)
    )


def _batch(rows: RankRows, tokenize: Tokenize, peers: Peers) -> Batch:
    return Batch(
        rows.columns,
        rows.rows,
        _Tokenized(tokenize, [str(text) for role in TEXTS for text in rows.columns.get(role, ())]),
        peers,
        rows.false_negatives,
        source=rows.source,
        counts=rows.counts,
    )


class _Tokenized:
    """Tokenizer with a cache of known texts; other texts are tokenized when requested."""

    def __init__(self, tokenize: Tokenize, texts: Sequence[str]) -> None:
        self._tokenize = tokenize
        self._rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        self._tokens = tokenize(list(self._rows)) if texts else None

    def __call__(self, texts: Sequence[str]) -> Tokens:
        rows = [self._rows.get(text, -1) for text in texts]
        if self._tokens is None or -1 in rows:
            return self._tokenize(texts)
        return self._tokens.of_rows(np.array(rows, np.int64))
