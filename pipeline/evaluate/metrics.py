"""Metrics of rankings, and of classifications by a threshold. A larger prediction is more likely positive."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BestThreshold:
    """Threshold that maximizes a metric. Predictions of at least the threshold count as positive.

    Attributes:
        value: the maximum of the metric.
        threshold: the threshold.
        precision: precision with this threshold.
        recall: recall with this threshold.
    """

    value: float
    threshold: float
    precision: float
    recall: float


def average_precision(predicted: np.ndarray, positive: np.ndarray, positives: int | None = None) -> float:
    """Average precision, in [0, 1]; equal predictions are ranked together.

    Args:
        predicted: (n,) similarities.
        positive: (n,) bool.
        positives: total number of positives, at least one, if not all of them are among the n.
    """
    hits, taken = _cumulated(predicted, positive)
    return float(
        (np.diff(hits, prepend=0) * hits / taken).sum() / (hits[-1] if positives is None else positives)
    )


def roc_auc(predicted: np.ndarray, positive: np.ndarray) -> float:
    """Area under the ROC curve: probability that a positive is predicted above a negative; ties count half.

    Both classes must occur.
    """
    hits, taken = _cumulated(predicted, positive)
    return float(np.trapezoid(np.r_[0, hits] / hits[-1], np.r_[0, taken - hits] / (taken - hits)[-1]))


def best_accuracy(predicted: np.ndarray, positive: np.ndarray) -> BestThreshold:
    """Find the threshold with the highest accuracy; if there are several, the largest.

    It is infinity if it is best to call nothing positive.
    """
    hits, taken = _cumulated(predicted, positive)
    true_negatives = (len(positive) - hits[-1]) - np.r_[0, taken - hits]
    return _best_threshold(
        (np.r_[0, hits] + true_negatives) / len(positive), predicted, hits, taken, max(int(hits[-1]), 1)
    )


def best_f1(predicted: np.ndarray, positive: np.ndarray, positives: int | None = None) -> BestThreshold:
    """Find the threshold with the highest F1 of the positive class; `positives` as in `average_precision`."""
    hits, taken = _cumulated(predicted, positive)
    total = int(hits[-1]) if positives is None else positives
    return _best_threshold(2 * np.r_[0, hits] / (np.r_[0, taken] + total), predicted, hits, taken, total)


def _cumulated(predicted: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the positives and the rows at or above each distinct prediction, in descending order."""
    order = np.argsort(-predicted, kind="stable")
    ends = np.r_[np.flatnonzero(np.diff(predicted[order])), len(order) - 1]
    return np.cumsum(positive[order])[ends], ends + 1


def _best_threshold(
    values: np.ndarray, predicted: np.ndarray, hits: np.ndarray, taken: np.ndarray, total: int
) -> BestThreshold:
    """Return the threshold with the largest value, half-way between two predictions, to suit new rows.

    Args:
        values: (m + 1,) metric for a threshold above all predictions, then at each of m distinct ones.
        predicted: (n,) predictions.
        hits: (m,) positives at or above each distinct prediction.
        taken: (m,) rows at or above each distinct prediction.
        total: number of positives.
    """
    best = int(np.argmax(values))
    if best == 0:
        return BestThreshold(float(values[0]), float("inf"), 0.0, 0.0)
    hit, count, descending = hits[best - 1], taken[best - 1], -np.sort(-predicted)
    last, below = descending[count - 1], descending[min(count, len(descending) - 1)]
    middle = (last + below) / 2
    threshold = middle if middle > below else last  # the two may be adjacent floats, or `last` the lowest
    return BestThreshold(float(values[best]), float(threshold), float(hit / count), float(hit / total))


def recall_at(ranks: Sequence[np.ndarray], k: int) -> np.ndarray:
    """Compute (q,) recall@k: the proportion of each query's relevant targets among its first k results.

    Args:
        ranks: for each query the ranks of all relevant targets, from 1, ascending.
        k: number of results.
    """
    return np.array([np.count_nonzero(each <= k) / len(each) for each in ranks])


def reciprocal_rank(ranks: Sequence[np.ndarray]) -> np.ndarray:
    """Compute (q,) 1 / rank of each query's first relevant target."""
    return np.array([1.0 / each[0] for each in ranks])


def ndcg_at(ranks: Sequence[np.ndarray], k: int) -> np.ndarray:
    """Compute (q,) nDCG@k with gains 0 or 1 and discount log2(rank + 1) (Jarvelin and Kekalainen 2002)."""
    ideal = np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))
    return np.array(
        [(1.0 / np.log2(each[each <= k] + 1.0)).sum() / ideal[min(len(each), k) - 1] for each in ranks]
    )
