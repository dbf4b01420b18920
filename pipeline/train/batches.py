"""Batches for the steps of a training, read and tokenized ahead of them."""

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
    roles: Sequence[str] = TEXTS,
) -> Generator[Batch, None, None]:
    """This rank's batch of step `start` and all later ones, without end: read, and the texts of `roles` tokenized, by a thread that is a few batches ahead.

    What goes wrong there is raised where its batch is due; closing the generator ends the thread. ConfigError where the batch cannot be shared equally.
    """
    return ahead(
        _batch(rows, tokenize, peers, roles)
        for rows in rank_rows(order, start, share, together=peers is not NO_PEERS)
    )


def _batch(rows: RankRows, tokenize: Tokenize, peers: Peers, roles: Sequence[str]) -> Batch:
    texts = [str(text) for role in roles for text in rows.columns.get(role, ())]
    return Batch(
        rows.columns,
        rows.rows,
        _Tokenized(tokenize, texts),
        peers,
        rows.false_negatives,
        source=rows.source,
        counts=rows.counts,
    )


class _Tokenized:
    """A tokenizer that knows some texts already, whoever asks for them and in whatever order; all others it tokenizes when they are asked for."""

    def __init__(self, tokenize: Tokenize, texts: Sequence[str]) -> None:
        self._tokenize, self._places = (
            tokenize,
            {text: place for place, text in enumerate(dict.fromkeys(texts))},
        )
        self._tokens = tokenize(list(self._places)) if texts else None

    def __call__(self, texts: Sequence[str]) -> Tokens:
        places = [self._places.get(text, -1) for text in texts]
        if self._tokens is None or -1 in places:
            return self._tokenize(texts)
        return self._tokens.of_rows(np.array(places, np.int64))
