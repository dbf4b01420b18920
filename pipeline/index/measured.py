"""Values measured on an index, and the numbers of rows of a night, by which the gates judge."""

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
            independent: number of independent trials that these amount to; None: all are independent.
        """
        if not trials:
            return cls(hits=0, trials=0, value=1.0, low=0.0, high=1.0)
        count = trials if independent is None else independent
        value, z2 = hits / trials, _Z**2 / count
        centre = (value + z2 / 2) / (1 + z2)
        half = _Z * math.sqrt(value * (1 - value) / count + z2 / (4 * count)) / (1 + z2)
        low, high = max(0.0, centre - half), min(1.0, centre + half)
        return cls(hits=hits, trials=trials, value=value, low=low, high=high)


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
    """Measurements of an index, which gates judge and the report shows."""

    rows: int
    recall: dict[str, Proportion]
    """at rank 1, 10 and 100, on the half of the queries that did not choose the effort"""
    effort: int | None
    """nprobe, or efSearch of HNSW; null for exhaustive search"""
    effort_name: str | None
    curve: tuple[CurvePoint, ...]
    latency: Latency
    queries: int
    duplicate_addresses: int
    file_bytes: int
    nlist: int
    imbalance: float
    fingerprint: str
    recall_near_dead: Proportion | None = None
    """at rank 10, for queries whose own row is dead: there deletions cluster; null if they are too few"""
    raised_from: int | None = None
    """effort that live rows need, if it was raised for the sake of queries near dead rows"""


@dataclass(frozen=True)
class Counted:
    """Rows of a night: read (or reused) = vectors + quarantined."""

    read: int
    vectors: int
    quarantined: int
    bad_vectors: int = 0
    """vectors in the units that are zero or not finite"""
    duplicate_ids: int = 0
    """ids of the user that repeat"""
    covered: ScriptCoverage | None = None
    """None for a release of a version that did not count tokens"""
    most_quarantined: float = 1.0
    """proportion of the rows that may be quarantined"""
    failed_canaries: int = 0
    """canary texts whose vector is not finite"""
