"""Metrics of rankings, and of classifications by a threshold. A larger prediction is more likely positive."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class BestThreshold:
    """Threshold that maximizes a metric. Predictions of at least the threshold count as positive."""

    value: float
    """the maximum of the metric"""
    threshold: float
    """the threshold"""
    precision: float
    """precision with this threshold"""
    recall: float
    """recall with this threshold"""


class _ThresholdCounts(NamedTuple):
    """Numbers of rows at or above each of the m distinct predictions, in descending order."""

    thresholds: np.ndarray
    """(m,) the distinct predictions"""
    hits: np.ndarray
    """(m,) positives at or above each threshold"""
    rows: np.ndarray
    """(m,) positives and negatives at or above each threshold"""


def average_precision(predicted: np.ndarray, positive: np.ndarray, positives: int | None = None) -> float:
    """Average precision, in [0, 1]; equal predictions are ranked together.

    Args:
        predicted: (n,) similarities.
        positive: (n,) bool.
        positives: number of all positives, at least one, if some are not among the n rows; None if all are.

    >>> round(average_precision(np.array([0.9, 0.8, 0.1]), np.array([True, False, True])), 4)
    0.8333
    """
    _, hits, rows = _threshold_counts(predicted, positive)
    precision_per_hit = np.diff(hits, prepend=0) * hits / rows
    return float(precision_per_hit.sum() / (hits[-1] if positives is None else positives))


def roc_auc(predicted: np.ndarray, positive: np.ndarray) -> float:
    """Area under the ROC curve: probability that a positive is predicted above a negative; ties count half.

    Both classes must occur.

    >>> roc_auc(np.array([0.9, 0.8, 0.1]), np.array([True, False, True]))
    0.5
    """
    _, hits, rows = _threshold_counts(predicted, positive)
    false_positives = rows - hits
    true_positive_rate = np.r_[0, hits] / hits[-1]
    return float(np.trapezoid(true_positive_rate, np.r_[0, false_positives] / false_positives[-1]))


def best_accuracy(predicted: np.ndarray, positive: np.ndarray) -> BestThreshold:
    """Find the threshold with the highest accuracy; if there are several, the largest.

    The threshold is infinity if it is best to call nothing positive.

    >>> best_accuracy(np.array([4.0, 3.0, 1.0]), np.array([True, True, False]))
    BestThreshold(value=1.0, threshold=2.0, precision=1.0, recall=1.0)
    """
    counts = _threshold_counts(predicted, positive)
    positives = int(counts.hits[-1])
    true_negatives = len(positive) - positives - np.r_[0, counts.rows - counts.hits]
    accuracies = (np.r_[0, counts.hits] + true_negatives) / len(positive)
    return _best_threshold(accuracies, counts, max(positives, 1))


def best_f1(predicted: np.ndarray, positive: np.ndarray, positives: int | None = None) -> BestThreshold:
    """Find the threshold with the highest F1 of the positive class; `positives` as in `average_precision`."""
    counts = _threshold_counts(predicted, positive)
    total = int(counts.hits[-1]) if positives is None else positives
    return _best_threshold(2 * np.r_[0, counts.hits] / (np.r_[0, counts.rows] + total), counts, total)


def _threshold_counts(predicted: np.ndarray, positive: np.ndarray) -> _ThresholdCounts:
    """Count the rows and positives at or above each distinct prediction; there must be at least one row."""
    order = np.argsort(-predicted, kind="stable")
    descending = predicted[order]
    ends = np.r_[np.flatnonzero(np.diff(descending)), len(order) - 1]  # last row of each distinct prediction
    return _ThresholdCounts(descending[ends], np.cumsum(positive[order])[ends], ends + 1)


def _best_threshold(values: np.ndarray, counts: _ThresholdCounts, positives: int) -> BestThreshold:
    """Return the threshold with the largest value, lowered half-way to the next prediction to suit new rows.

    Args:
        values: (m + 1,) metric for a threshold above all predictions, then for each of the m thresholds.
        counts: counts at the m thresholds.
        positives: number of positives, at least one.
    """
    best = int(np.argmax(values))
    if best == 0:
        return BestThreshold(float(values[0]), float("inf"), 0.0, 0.0)
    index = best - 1  # the threshold's index: `values` has one more entry, at its beginning
    threshold = counts.thresholds[index]
    if index + 1 < len(counts.thresholds):
        below = counts.thresholds[index + 1]
        middle = (threshold + below) / 2
        threshold = middle if middle > below else threshold  # the two may be adjacent floats
    hits, rows = counts.hits[index], counts.rows[index]
    return BestThreshold(float(values[best]), float(threshold), float(hits / rows), float(hits / positives))


def recall_at(ranks: Sequence[np.ndarray], k: int) -> np.ndarray:
    """Compute (q,) recall@k: the proportion of each query's relevant targets among its first k results.

    Args:
        ranks: for each query the ranks of all relevant targets, from 1, ascending.
        k: number of results.

    >>> recall_at([np.array([1, 4]), np.array([2])], 3).tolist()
    [0.5, 1.0]
    """
    return np.array([np.count_nonzero(of_query <= k) / len(of_query) for of_query in ranks])


def reciprocal_rank(ranks: Sequence[np.ndarray]) -> np.ndarray:
    """Compute (q,) 1 / rank of each query's first relevant target.

    >>> reciprocal_rank([np.array([1, 4]), np.array([2])]).tolist()
    [1.0, 0.5]
    """
    return np.array([1.0 / of_query[0] for of_query in ranks])


def ndcg_at(ranks: Sequence[np.ndarray], k: int) -> np.ndarray:
    """Compute (q,) nDCG@k with gains 0 or 1 and discount log2(rank + 1) (Jarvelin and Kekalainen 2002).

    >>> ndcg_at([np.array([1, 4]), np.array([2])], 3).round(4).tolist()
    [0.6131, 0.6309]
    """
    ideal = np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))
    gains = [(1.0 / np.log2(of_query[of_query <= k] + 1.0)).sum() for of_query in ranks]
    return np.array(gains) / [ideal[min(len(of_query), k) - 1] for of_query in ranks]
