"""Figures of ranked and of classified things. Larger predictions mean more alike; every function takes arrays and knows no task."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Cut:
    """The threshold that makes a figure best: predictions of at least `threshold` count as positive."""

    value: float
    threshold: float
    precision: float
    recall: float


def average_precision(predicted: np.ndarray, positive: np.ndarray, positives: int | None = None) -> float:
    """Precision at each positive, summed and divided by `positives`, in [0, 1]; predicted (n,), positive (n,) bool. Equal predictions are taken together.

    positives: how many there are, at least one; null: those among the n, at least one.
    """
    hits, taken = _cumulated(predicted, positive)
    return float(
        (np.diff(hits, prepend=0) * hits / taken).sum() / (hits[-1] if positives is None else positives)
    )


def roc_auc(predicted: np.ndarray, positive: np.ndarray) -> float:
    """Chance that a positive is predicted above a negative, half for a tie; both classes must be there."""
    hits, taken = _cumulated(predicted, positive)
    return float(np.trapezoid(np.r_[0, hits] / hits[-1], np.r_[0, taken - hits] / (taken - hits)[-1]))


def best_accuracy(predicted: np.ndarray, positive: np.ndarray) -> Cut:
    """The cut with the highest accuracy; of several, the one that takes fewest; calling none positive is one too (threshold: infinity)."""
    hits, taken = _cumulated(predicted, positive)
    right = np.r_[0, hits] + (len(positive) - hits[-1]) - np.r_[0, taken - hits]
    return _cut(right / len(positive), predicted, hits, taken, max(int(hits[-1]), 1))


def best_f1(predicted: np.ndarray, positive: np.ndarray, positives: int | None = None) -> Cut:
    """The cut with the highest F1 of the positive class. positives: as for average_precision."""
    hits, taken = _cumulated(predicted, positive)
    total = int(hits[-1]) if positives is None else positives
    return _cut(2 * np.r_[0, hits] / (np.r_[0, taken] + total), predicted, hits, taken, total)


def _cumulated(predicted: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positives and rows taken at each distinct prediction, from the highest down."""
    order = np.argsort(-predicted, kind="stable")
    ends = np.r_[np.flatnonzero(np.diff(predicted[order])), len(order) - 1]
    return np.cumsum(positive[order])[ends], ends + 1


def _cut(values: np.ndarray, predicted: np.ndarray, hits: np.ndarray, taken: np.ndarray, total: int) -> Cut:
    """The best of `values`, whose place 0 is the cut above everything. Half-way to the next prediction below, so that it serves pairs not seen yet."""
    best = int(np.argmax(values))
    if best == 0:
        return Cut(float(values[0]), float("inf"), 0.0, 0.0)
    hit, count, falling = hits[best - 1], taken[best - 1], -np.sort(-predicted)
    last, below = falling[count - 1], falling[min(count, len(falling) - 1)]
    middle = (last + below) / 2
    return Cut(
        float(values[best]), float(middle if middle > below else last), float(hit / count), float(hit / total)
    )


def recall_at(ranks: Sequence[np.ndarray], k: int) -> np.ndarray:
    """(q,) share of each query's relevant targets among its first k. ranks: from 1, of every relevant target, ascending, per query."""
    return np.array([np.count_nonzero(each <= k) / len(each) for each in ranks])


def reciprocal_rank(ranks: Sequence[np.ndarray]) -> np.ndarray:
    """(q,) 1 / rank of the first relevant target."""
    return np.array([1.0 / each[0] for each in ranks])


def ndcg_at(ranks: Sequence[np.ndarray], k: int) -> np.ndarray:
    """(q,) normalised discounted cumulative gain of the first k, gains 0 or 1, discount log2(rank + 1) (Jarvelin and Kekalainen 2002)."""
    ideal = np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))
    return np.array(
        [(1.0 / np.log2(each[each <= k] + 1.0)).sum() / ideal[min(len(each), k) - 1] for each in ranks]
    )
