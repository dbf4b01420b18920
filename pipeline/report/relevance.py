"""Values of the release report about a user's own judged queries."""

from dataclasses import dataclass


@dataclass(frozen=True)
class QueryScores:
    """A judged query with its score in the previous release and in this one."""

    query: str
    before: float
    now: float


@dataclass(frozen=True)
class SliceRow:
    """The scores of the judged queries in one slice, as texts."""

    name: str
    count: int
    scores: tuple[str, ...]
    """every metric with its interval"""
    change: str
    """change of the first metric since the previous release, with its interval; empty if unknown"""
    is_worse: bool
    """whether the whole interval of the change is below 0"""


@dataclass(frozen=True)
class RelevanceSection:
    """Measurements of gates.relevance."""

    metric: str
    """name of the metric"""
    sentences: tuple[str, ...]
    """what was measured, and how it differs from the previous release"""
    differing: int = 0
    """number of queries whose score differs from the previous release"""
    changed: tuple[QueryScores, ...] = ()
    """queries whose scores changed most, the largest loss first"""
    metrics: tuple[str, ...] = ()
    """names of the metrics of the slices"""
    slices: tuple[SliceRow, ...] = ()
    """the largest slices"""
    omitted_slices: int = 0
    """number of further slices"""
    slice_column: str = ""
    """the column of the slices"""
