"""Metrics of an index, which gates check."""

import math
from typing import Self

from pipeline.config import Settings

_Z = 1.959964  # standard normal quantile of a two-sided 95 % interval


class Proportion(Settings):
    """Hits divided by trials, with the 95 % interval of Wilson (1927); 1 without trials.

    Unlike the normal approximation, the interval is valid for few trials and for proportions near 0 and 1.
    """

    hits: int
    trials: int
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, hits: int, trials: int, effective_trials: float | None = None) -> Self:
        """Compute the proportion and its interval.

        Args:
            effective_trials: effective sample size, if trials depend on each other; None: `trials`.
        """
        if not trials:
            return cls(hits=0, trials=0, value=1.0, low=0.0, high=1.0)
        count = trials if effective_trials is None else effective_trials
        value, z2 = hits / trials, _Z**2 / count
        centre = (value + z2 / 2) / (1 + z2)
        half = _Z * math.sqrt(value * (1 - value) / count + z2 / (4 * count)) / (1 + z2)
        return cls(
            hits=hits, trials=trials, value=value, low=max(0.0, centre - half), high=min(1.0, centre + half)
        )


class CurvePoint(Settings):
    """Recall at one search effort, on the half of the queries that the effort is chosen with."""

    effort: int
    recall_at_10: float
    low: float = 0.0
    """lower end of its 95 % interval"""
    query_ms: float
    """mean time of one query in a batch, on one thread"""


class Latency(Settings):
    """Time of single queries for ten answers on one thread, in milliseconds."""

    queries: int
    p50_ms: float
    p99_ms: float


class IndexMetrics(Settings):
    """Metrics of an index that gates check and the report shows."""

    rows: int
    recall: dict[str, Proportion]
    """recall by rank ("1", "10", "100"), on the half of the queries that the effort was not chosen with"""
    effort: int | None
    """nprobe, or efSearch of HNSW; null for exhaustive search"""
    effort_name: str | None
    """"nprobe" or "efSearch"; null for exhaustive search"""
    curve: tuple[CurvePoint, ...]
    """recall at several efforts, ascending; empty for exhaustive search"""
    latency: Latency
    queries: int
    """number of queries that recall was measured on"""
    duplicate_addresses: int
    """addresses that occur more than once"""
    file_bytes: int
    """size of all index files"""
    nlist: int
    """number of inverted lists; 0 without lists"""
    imbalance: float
    """imbalance of the list sizes: 1 if they are equal, higher otherwise"""
    fingerprint: str
    """sha256 of the trained state: centroids, codebooks, transforms"""
    recall_near_dead: Proportion | None = None
    """recall at rank 10 of queries that are vectors of dead rows; null if there are too few of them"""
    raised_from: int | None = None
    """the chosen effort before it was raised for queries near dead rows; null if it was not raised"""
    rows_effort: int | None = None
    """effort that rows of the corpus need as queries, which `effort` exceeds if texts of users need more;
    null without such texts
    """
    user_recall: Proportion | None = None
    """recall at rank 10 of queries of gates.queries, on the half that the effort was not chosen with; null
    without such texts
    """
    user_queries: int = 0
    """number of these texts, both halves"""
    user_curve: tuple[CurvePoint, ...] = ()
    """recall of their other half at several efforts, ascending; empty for exhaustive search"""
