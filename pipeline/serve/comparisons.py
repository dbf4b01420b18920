"""Compare the answers of two releases to the same requests, and say what follows for the second release.

Answers are compared by id. Requests count as independent; the queries of one request are not, so that a
request gives one value. Intervals are 95 % intervals: of a proportion by Wilson (1927) with the effective
number of requests by Kish (1965), which is valid for values from 0 to 1; of a mean by the central limit
theorem, from 30 requests on; of a median by order statistics (Conover 1999, section 3.2).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel

from pipeline.index.measure.metrics import Proportion

DEPTH = 10
"""answers of each query that are compared"""
_KEPT = 10_000  # requests whose comparison is kept; older ones are replaced
_Z = 1.959964  # standard normal quantile of a two-sided 95 % interval
_LEAST = 30  # requests for an interval of a mean
_ENOUGH = 100  # requests for a verdict
_SAME, _DIFFERENT = 0.9, 0.5  # overlaps from which answers are nearly the same, and below which they differ
_SLOWER = 2.0  # ratio of the medians from which a release is called slower

Answer = tuple[str | int, float]
"""id and score of one answer"""


class AnswerComparison(NamedTuple):
    """AnswerComparison of the answers to one request, and the seconds that both releases took."""

    hits: int
    """answers among the first ten of both releases, over all queries"""
    places: int
    """compared answers: of each query, the number of first ten answers of the release that has more"""
    tau: float
    """Kendall's tau of the ids that both have, mean over queries; nan without a query with two such ids"""
    shift: float
    """score of the second release minus score of the first, mean over the ids that both have; nan without"""
    first_s: float
    """duration of the request at the first release, with the time that it waited"""
    second_s: float
    """duration of the search at the second release, alone and at a low priority"""


class Estimate(BaseModel):
    """A number with its 95 % interval."""

    value: float
    low: float | None = None
    """lower end of the interval; null without an interval"""
    high: float | None = None


class Differences(BaseModel):
    """Differences between the answers of two releases."""

    requests: int
    """requests whose answers were compared, of which the latest 10,000 count"""
    overlap_at_10: Estimate | None
    """proportion of the first ten answers that both releases have"""
    kendall_tau: Estimate | None
    """rank correlation of the ids that both have"""
    score_shift: Estimate | None
    """how much higher the second release scores the same id"""
    first_ms: Estimate | None
    """median duration of a request at the first release, with the time that it waited"""
    second_ms: Estimate | None
    """median duration of the same search at the second release, alone and at a low priority"""
    first_p99_ms: float | None
    second_p99_ms: float | None


def compare(
    first: Sequence[Sequence[Answer]], second: Sequence[Sequence[Answer]], first_s: float, second_s: float
) -> AnswerComparison:
    """Compare the answers of two releases to the queries of one request, best answers first.

    >>> compare([[("a", 0.5), ("b", 0.25)]], [[("a", 0.75), ("c", 0.5)]], 1, 1)[:4]
    (1, 2, nan, 0.25)
    """
    hits = places = 0
    taus, shifts = list[float](), list[float]()
    for one, other in zip(first, second, strict=True):
        one, other = one[:DEPTH], other[:DEPTH]
        scores = dict(other)
        places += max(len(one), len(other))
        common = [row_id for row_id, _ in one if row_id in scores]
        hits += len(common)
        shifts += [scores[row_id] - score for row_id, score in one if row_id in scores]
        if len(common) > 1:
            rank_of = {row_id: rank for rank, (row_id, _) in enumerate(other)}
            taus.append(kendall_tau([rank_of[row_id] for row_id in common]))
    return AnswerComparison(hits, places, _mean(taus), _mean(shifts), first_s, second_s)


def kendall_tau(ranks: Sequence[int]) -> float:
    """Return Kendall's (1938) tau between the order of a sequence and the order of its values.

    >>> kendall_tau([0, 1, 2]), kendall_tau([2, 1, 0])
    (1.0, -1.0)
    """
    pairs = [(one, other) for number, one in enumerate(ranks) for other in ranks[number + 1 :]]
    return sum(1 if one < other else -1 for one, other in pairs) / len(pairs)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


class Comparisons:
    """The latest comparisons. One thread adds, others may read."""

    def __init__(self) -> None:
        self._values = np.zeros((_KEPT, len(AnswerComparison._fields)))
        self._count = 0

    def add(self, comparison: AnswerComparison) -> None:
        """Add the comparison of a request."""
        self._values[self._count % _KEPT] = comparison
        self._count += 1

    def differences(self) -> Differences:
        """Return the differences, with their intervals."""
        hits, places, tau, shift, first_s, second_s = self._values[: min(self._count, _KEPT)].T.copy()
        return Differences(
            requests=self._count,
            overlap_at_10=_overlap(hits, places),
            kendall_tau=_mean_estimate(tau),
            score_shift=_mean_estimate(shift),
            first_ms=_median(1_000 * first_s),
            second_ms=_median(1_000 * second_s),
            first_p99_ms=_p99(1_000 * first_s),
            second_p99_ms=_p99(1_000 * second_s),
        )


def _overlap(hits: np.ndarray, places: np.ndarray) -> Estimate | None:
    """Return the proportion of hits, with requests of `places` answers as units."""
    if not places.any():
        return None
    effective = float(places.sum() ** 2 / (places**2).sum())
    found = Proportion.of(int(hits.sum()), int(places.sum()), effective)
    return Estimate(value=found.value, low=found.low, high=found.high)


def _mean_estimate(values: np.ndarray) -> Estimate | None:
    """Return the mean of the values that are not nan."""
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    mean = float(values.mean())
    if len(values) < _LEAST:
        return Estimate(value=mean)
    half = _Z * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(value=mean, low=mean - half, high=mean + half)


def _median(values: np.ndarray) -> Estimate | None:
    if not len(values):
        return None
    ordered, count = np.sort(values), len(values)
    half = _Z * math.sqrt(count) / 2
    low, high = math.floor(count / 2 - half), math.ceil(count / 2 + half)  # ranks from 1
    median = float(np.median(ordered))
    if low < 1 or high + 1 > count:  # too few for a distribution-free interval
        return Estimate(value=median)
    return Estimate(value=median, low=float(ordered[low - 1]), high=float(ordered[high]))


def _p99(values: np.ndarray) -> float | None:
    return float(np.quantile(values, 0.99)) if len(values) else None


def verdict(name: str, first: int, found: Differences, outcomes: Mapping[str, int], command: str) -> str:
    """Say in one sentence what the comparison shows, and what to do.

    Args:
        name: the second release, such as "release 7" or "candidate 12ab".
        first: number of the first release.
        outcomes: number of requests by outcome; see `Shadow`.
        command: the command that makes the second release current.
    """
    overlap, failed = found.overlap_at_10, outcomes.get("failed", 0)
    if overlap is None or found.requests < _ENOUGH:
        return f"Only {found.requests:,} requests were compared: wait for {_ENOUGH} or more."
    numbers = (
        f"Over {found.requests:,} requests, {name} gives {overlap.value:.1%} of the first ten answers of "
        f"release {first} (95 % interval {overlap.low:.1%} to {overlap.high:.1%})"
    )
    if found.kendall_tau is not None:
        numbers += f"; Kendall's tau of the common ids is {found.kendall_tau.value:.2f}"
    if failed:
        return (
            f"{numbers}. But it failed {failed:,} requests that release {first} answered: do not publish it, "
            "the log of the service says why."
        )
    if found.first_ms and found.second_ms and found.second_ms.value > _SLOWER * found.first_ms.value:
        numbers += (
            f"; its searches take {found.second_ms.value:.0f} ms alone at a low priority, requests to "
            f"release {first} {found.first_ms.value:.0f} ms with waiting (medians)"
        )
    assert overlap.low is not None
    if overlap.low >= _SAME:
        return f"{numbers}. The answers are nearly the same; to publish it: {command}"
    if overlap.value < _DIFFERENT:
        return (
            f"{numbers}. Most answers differ: do not publish it unless that is intended; manta evaluate says "
            "which answers are better."
        )
    return f"{numbers}. Some answers differ: see with manta evaluate which are better, then: {command}"
