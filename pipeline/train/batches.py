"""Batches of one rank, read and tokenized ahead of the training steps, without knowledge of a cluster."""

from collections.abc import Callable, Generator, Sequence

import numpy as np

from pipeline.objectives import NO_PEERS, Batch, Peers
from pipeline.prefetch import prefetch
from pipeline.settings.training import TEXTS
from pipeline.text.rows.batches import Order, RankRows, RankSlice, rank_rows
from pipeline.text.tokens.tokens import Tokenizer, Tokens

Tokenize = Callable[[Sequence[str]], Tokens]


def rank_batches(
    order: Order,
    tokenize: Tokenize,
    *,
    start: int = 0,
    rank_slice: RankSlice = RankSlice(),
    peers: Peers = NO_PEERS,
) -> Generator[Batch, None, None]:
    """Yield this rank's batches from step `start` on, without end.

    A thread reads the batches and tokenizes their texts a few batches ahead. An error is raised when its
    batch is due; closing the generator ends the thread.

    Args:
        order: order of the rows of all ranks.
        tokenize: tokenizer of the texts.
        start: number of steps before the first batch.
        rank_slice: rows of every batch that this rank gets.
        peers: ranks whose rows are candidates; see `Batch`.

    Raises:
        ConfigError: the ranks cannot get equal parts of a batch.
    """
    rows_by_step = rank_rows(order, start, rank_slice, across_ranks=peers is not NO_PEERS)
    return prefetch(_batch(rows, tokenize, peers) for rows in rows_by_step)


def _batch(rows: RankRows, tokenize: Tokenize, peers: Peers) -> Batch:
    """Create the batch of these rows. Its texts are tokenized now, in the thread that reads ahead."""
    texts = [str(text) for role in TEXTS for text in rows.columns.get(role, ())]
    return Batch(
        rows.columns,
        rows.rows,
        _CachedTokenizer(tokenize, texts),
        peers,
        rows.false_negatives,
        source=rows.source,
        counts=rows.counts,
        max_length=tokenize.max_length if isinstance(tokenize, Tokenizer) else None,
    )


class _CachedTokenizer:
    """Tokenizer that tokenizes the given texts in advance, and other texts when it is called."""

    def __init__(self, tokenize: Tokenize, texts: Sequence[str]) -> None:
        self._tokenize = tokenize
        self._rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        self._tokens = tokenize(list(self._rows)) if texts else None

    def __call__(self, texts: Sequence[str]) -> Tokens:
        rows = [self._rows.get(text, -1) for text in texts]
        if self._tokens is None or -1 in rows:
            return self._tokenize(texts)
        return self._tokens.of_rows(np.array(rows, np.int64))
