"""Pairs of sentences on which two candidates differ, as values that the page of an evaluation shows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DifferingPair:
    """Two sentences; gold: what people say of them; similarities and ranks by the two candidates, ranks as the proportion of pairs less alike."""

    left: str
    right: str
    gold: str
    similarities: tuple[float, float]
    ranks: tuple[float, float]


@dataclass(frozen=True)
class Disagreement:
    """Pairs of a task whose ranks by two candidates are furthest apart."""

    task: str
    first: str
    other: str
    pairs: tuple[DifferingPair, ...]
