"""Recall of an index against exact search."""

from typing import Any

import numpy as np

from pipeline.index.library import faiss
from pipeline.index.measured import Proportion
from pipeline.index.parts import indexes_of
from pipeline.index.structure import chain_of, is_exact
from pipeline.index.truth import NO_NEIGHBOUR, Neighbours, Queries

RANKS = (1, 10, 100)
_SAME_SCORE = 1e-6  # float32 cosines of equal texts differ by 2e-7 at most between two matrix products


def recall(
    index: Any, queries: Queries, truth: Neighbours, ranks: tuple[int, ...] = RANKS
) -> dict[int, Proportion]:
    """Measure the proportion of the exact k nearest rows that the index returns, for each k of `ranks`.

    Captions and similar corpora contain many equal texts, so rows are often tied for the k-th rank. An answer
    is right if its exact score is at least the k-th exact score less 1e-6. Exact scores are known for the
    rows in `truth` (which goes beyond rank k), and for all answers of an index that does not compress
    vectors; any other answer counts as wrong. If there are fewer than k other rows, all of them are expected.

    Args:
        index: a faiss index or `Parts`; searched at the effort that is set in it.
        queries: a query's own address does not count as an answer.
        truth: the queries' exact neighbours.
    """
    proportions = {}
    for k in ranks:
        # A search for each k: HNSW searches at least as wide as the number of answers.
        found, scores = _answers(index, queries, k)
        expected = (truth.addresses[:, :k] != NO_NEIGHBOUR).sum(axis=1)
        last = np.take_along_axis(truth.scores, np.maximum(expected - 1, 0)[:, None], axis=1)[:, 0]
        limits = np.where(expected > 0, last, np.inf) - _SAME_SCORE
        right = (scores >= limits[:, None]) & _scores_are_exact(index)
        for row, limit in enumerate(limits):
            right[row] |= np.isin(found[row], truth.addresses[row][truth.scores[row] >= limit])
        hits = np.minimum((right & (found != NO_NEIGHBOUR)).sum(axis=1), expected)
        proportions[k] = Proportion.of(int(hits.sum()), int(expected.sum()), _independent(hits, expected))
    return proportions


def _independent(hits: np.ndarray, expected: np.ndarray) -> float:
    """Count the independent trials that have the variance which the queries show (design effect, Kish 1965).

    The answers of one query are found or missed together.
    """
    asked, trials = expected > 0, float(expected.sum())
    if not 0 < hits.sum() < trials:
        return trials
    value, spread = hits.sum() / trials, float((hits[asked] / expected[asked]).var())
    if not spread:
        return trials
    return float(np.clip(value * (1 - value) * asked.sum() / spread, asked.sum(), trials))


def _scores_are_exact(index: Any) -> bool:
    """Return whether vectors are stored as they are after normalization."""
    base = indexes_of(index)[0]
    chain = chain_of(base)
    return is_exact(base) and (not chain or isinstance(chain[-1], faiss.NormalizationTransform))


def _answers(index: Any, queries: Queries, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Search for addresses and scores (q, k) without the queries' own rows.

    One more answer is searched for; the own row is dropped, or else the last answer.
    """
    scores, found = index.search(np.ascontiguousarray(queries.vectors, dtype=np.float32), k + 1)
    own = found == queries.addresses[:, None]
    own[~own.any(axis=1), -1] = True
    kept = np.argsort(own, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(found, kept, axis=1), np.take_along_axis(scores, kept, axis=1)
