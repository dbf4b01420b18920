"""Confidence intervals by the paired bootstrap (Efron and Tibshirani 1993; Koehn 2004)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.evaluate import EvaluationTask

LEVEL = 0.95


@dataclass(frozen=True)
class ScoreEstimate:
    """A score, or a difference of scores, with its 95 % percentile interval.

    BCa intervals (Efron 1987) would also correct for bias and skewness, but need the value again for each
    row that is left out. BCa is better for few rows and for values near a bound: for average precision over
    100 pairs, percentile intervals contain the true value in 89 to 93 % of samples, BCa intervals in 93 to
    96 %.
    """

    value: float | None
    """the value on all rows; None if it is undefined"""
    low: float | None = None
    """lower end of the interval; None if there is no interval"""
    high: float | None = None
    """upper end of the interval"""

    @property
    def excludes_zero(self) -> bool:
        """True if the interval does not include 0, so that a difference is significant."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def interval(self, format_number: Callable[[float | None], str]) -> str:
        """Format the interval: 70.12 to 74.40; empty if there is none."""
        if self.low is None or self.high is None:
            return ""
        return f"{format_number(self.low)} to {format_number(self.high)}"


def resample_rows(evidence: Mapping[str, np.ndarray], resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the row indices (n,) of each resample, drawn with replacement within each stratum."""
    count = len(next(iter(evidence.values())))
    strata = rows_by_label(evidence.get("stratum", np.zeros(count, np.int64)))
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.concatenate([rows[rng.integers(len(rows), size=len(rows))] for rows in strata])


def rows_by_label(labels: np.ndarray) -> Sequence[np.ndarray]:
    """Return the ascending row indices of each distinct label, for labels (n,).

    >>> [rows.tolist() for rows in rows_by_label(np.array([7, 3, 7]))]
    [[1], [0, 2]]
    """
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def statistics(
    task: EvaluationTask, evidence: Mapping[str, np.ndarray], resamples: int, seed: int
) -> np.ndarray:
    """Compute the task's value on each resample: (resamples,), nan where undefined.

    With equal seeds, all candidates are measured on the same resamples.
    """
    return np.array([task.statistic(evidence, rows) for rows in resample_rows(evidence, resamples, seed)])


def estimate(value: float | None, resampled_values: np.ndarray) -> ScoreEstimate:
    """Return a value or difference with its interval; no interval if it is undefined on all resamples."""
    defined = resampled_values[~np.isnan(resampled_values)]
    if value is None or not len(defined):
        return ScoreEstimate(value)
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return ScoreEstimate(float(value), float(low), float(high))
