"""Metrics of an index and row counts of a night: the input of the gates."""

import math
from dataclasses import dataclass
from typing import Self

from pipeline.config import Settings
from pipeline.text.tokens.coverage import ScriptCoverage

_Z = 1.959964  # standard normal quantile of a two-sided 95 % interval


class Proportion(Settings):
    """Hits among trials, with the 95 % interval of Wilson (1927); 1 without trials.

    The interval is sound at 0 and 1, and for few trials.
    """

    hits: int
    trials: int
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, hits: int, trials: int, independent: float | None = None) -> Self:
        """Return the proportion of hits.

        Args:
            independent: effective number of independent trials; None: all trials are independent.
        """
        if not trials:
            return cls(hits=0, trials=0, value=1.0, low=0.0, high=1.0)
        count = trials if independent is None else independent
        value, z2 = hits / trials, _Z**2 / count
        centre = (value + z2 / 2) / (1 + z2)
        half = _Z * math.sqrt(value * (1 - value) / count + z2 / (4 * count)) / (1 + z2)
        return cls(
            hits=hits, trials=trials, value=value, low=max(0.0, centre - half), high=min(1.0, centre + half)
        )


class CurvePoint(Settings):
    """Recall at one search effort, on the queries that choose it."""

    effort: int
    recall_at_10: float
    low: float = 0.0
    """lower end of its 95 % interval"""
    query_ms: float
    """mean time of one query in a batch, on one thread"""


class Latency(Settings):
    """Milliseconds of one query searched by itself on one thread, k = 10."""

    queries: int
    p50_ms: float
    p99_ms: float


class Measured(Settings):
    """Metrics of an index, which gates check and the report shows."""

    rows: int
    recall: dict[str, Proportion]
    """at rank 1, 10 and 100, on the half of the queries that did not choose the effort"""
    effort: int | None
    """nprobe, or efSearch of HNSW; null for exhaustive search"""
    effort_name: str | None
    curve: tuple[CurvePoint, ...]
    latency: Latency
    queries: int
    """number of queries that recall was measured with"""
    duplicate_addresses: int
    """addresses that occur more than once"""
    file_bytes: int
    nlist: int
    imbalance: float
    """of the list sizes: 1 if they are equal"""
    fingerprint: str
    """sha256 of the trained structure"""
    recall_near_dead: Proportion | None = None
    """at rank 10, for queries that are the vectors of dead rows; null if there are too few of them"""
    raised_from: int | None = None
    """effort that suffices for live rows, if queries near dead rows needed a higher one"""


@dataclass(frozen=True)
class Counted:
    """Row counts of a night. Every row that was read or reused has a vector or is quarantined."""

    read: int
    vectors: int
    quarantined: int
    bad_vectors: int = 0
    """stored vectors that are zero or not finite"""
    duplicate_ids: int = 0
    """repeated ids of the corpus"""
    covered: ScriptCoverage | None = None
    """None for a release of a version that did not count tokens"""
    most_quarantined: float = 1.0
    """limit of the proportion of quarantined rows"""
    failed_canaries: int = 0
    """canary texts whose vector is not finite"""
