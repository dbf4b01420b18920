"""Pairs of sentences on which two candidates differ, as values of the evaluation page."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DifferingPair:
    """Two sentences with a gold score, and their similarities and ranks by two candidates.

    Attributes:
        left: first sentence.
        right: second sentence.
        gold: human score.
        similarities: by each candidate.
        ranks: proportion of pairs that are less similar, by each candidate.
    """

    left: str
    right: str
    gold: str
    similarities: tuple[float, float]
    ranks: tuple[float, float]


@dataclass(frozen=True)
class Disagreement:
    """Pairs of a task whose ranks by two candidates differ most."""

    task: str
    first: str
    other: str
    pairs: tuple[DifferingPair, ...]
