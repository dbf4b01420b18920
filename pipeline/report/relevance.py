"""Values of the release report about a user's own judged queries."""

from dataclasses import dataclass


@dataclass(frozen=True)
class QueryScores:
    """A judged query with its score in the previous release and in this one."""

    query: str
    before: float
    now: float


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
