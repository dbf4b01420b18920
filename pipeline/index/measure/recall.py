"""Measure the recall of an index against exact search."""

from typing import Any

import numpy as np

from pipeline.index.library import faiss
from pipeline.index.measure.metrics import Proportion
from pipeline.index.measure.searched_parts import indexes_of
from pipeline.index.measure.truth import NO_NEIGHBOUR, Neighbours, Queries
from pipeline.index.structure import is_exact, transforms_of

RANKS = (1, 10, 100)
# Rounding: float32 cosines of equal texts differ by up to 2e-7 between matrix products.
_SCORE_TOLERANCE = 1e-6


def recall(
    index: Any, queries: Queries, truth: Neighbours, ranks: tuple[int, ...] = RANKS
) -> dict[int, Proportion]:
    """Measure the proportion of the exact k nearest rows that the index returns, for each k of `ranks`.

    Many corpora contain equal texts, so rows are often tied for rank k. Any answer is a hit if its exact
    score is at least rank k's (up to 1e-6). Exact scores are known for the rows in `truth`, which goes
    beyond rank k, and for all answers of an index that does not compress vectors; other answers do not count
    as hits. If there are fewer than k other rows, all of them are expected.

    Args:
        index: a faiss index or `SearchedParts`, searched at the effort that is set in it.
        queries: a query's own row is not counted among its answers.
        truth: the queries' exact neighbours.
    """
    proportions = {}
    for k in ranks:
        # One search for each k: a larger k makes HNSW search more nodes, so it finds more of the nearest.
        addresses, scores = _search_others(index, queries, k)
        expected = (truth.addresses[:, :k] != NO_NEIGHBOUR).sum(axis=1)
        at_rank_k = np.take_along_axis(truth.scores, np.maximum(expected - 1, 0)[:, None], axis=1)[:, 0]
        min_scores = np.where(expected > 0, at_rank_k, np.inf) - _SCORE_TOLERANCE
        is_hit = (scores >= min_scores[:, None]) & _scores_are_exact(index)
        for row, min_score in enumerate(min_scores):
            is_hit[row] |= np.isin(addresses[row], truth.addresses[row][truth.scores[row] >= min_score])
        hits = np.minimum((is_hit & (addresses != NO_NEIGHBOUR)).sum(axis=1), expected)
        proportions[k] = Proportion.of(
            int(hits.sum()), int(expected.sum()), _effective_trials(hits, expected)
        )
    return proportions


def _effective_trials(hits: np.ndarray, expected: np.ndarray) -> float:
    """Return the effective sample size of the answers (design effect, Kish 1965).

    The answers of one query tend to be found or missed together, so they count as fewer independent trials.

    Args:
        hits: (q,) answers of each query that are right.
        expected: (q,) answers of each query that exact search returns.
    """
    has_answers, trials = expected > 0, float(expected.sum())
    if not 0 < hits.sum() < trials:
        return trials
    mean, variance = hits.sum() / trials, float((hits[has_answers] / expected[has_answers]).var())
    if not variance:
        return trials
    queries = has_answers.sum()
    return float(np.clip(mean * (1 - mean) * queries / variance, queries, trials))


def _scores_are_exact(index: Any) -> bool:
    """Return whether the index stores normalized vectors uncompressed: its scores are exact cosines."""
    base = indexes_of(index)[0]
    chain = transforms_of(base)
    return is_exact(base) and (not chain or isinstance(chain[-1], faiss.NormalizationTransform))


def _search_others(index: Any, queries: Queries, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Search for the k nearest rows other than the query itself: addresses and scores, (q, k).

    k + 1 rows are searched for; the query's own row is left out, or else the last answer.
    """
    scores, addresses = index.search(np.ascontiguousarray(queries.vectors, dtype=np.float32), k + 1)
    is_left_out = addresses == queries.addresses[:, None]
    is_left_out[~is_left_out.any(axis=1), -1] = True
    columns = np.argsort(is_left_out, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(addresses, columns, axis=1), np.take_along_axis(scores, columns, axis=1)
