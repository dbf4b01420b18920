"""Queries near deleted rows: users still ask for deleted texts, whose nearest rows are now in many lists."""

from typing import Any

import numpy as np

from pipeline.index.effort import efforts, get_effort, is_flat, point_at, set_effort
from pipeline.index.measured import CurvePoint, Proportion
from pipeline.index.parts import Parts
from pipeline.index.recall import recall
from pipeline.index.structure import addresses_of
from pipeline.index.truth import Neighbours, Queries

_FEWEST = 10  # queries: with fewer, recall near dead rows is not known to a tenth
# Times the effort that live rows need, which all queries pay for the sake of those near dead rows.
_MOST_RAISED = 8
_NEARLY = 0.01  # of recall: if the target is out of reach, more effort has to gain at least that


def without_own_row(index: Any, queries: Queries) -> np.ndarray:
    """Return a mask (q,) of the queries whose own row the index does not hold."""
    gone = np.ones(len(queries), dtype=bool)
    for addresses in addresses_of(index):
        gone &= ~np.isin(queries.addresses, addresses)
    return gone


def recall_near_dead(
    parts: Parts, queries: Queries, truth: Neighbours, gone: np.ndarray
) -> Proportion | None:
    """Measure recall@10 of the queries whose own row is dead; None if they are too few.

    Args:
        gone: mask (q,) of these queries.
    """
    return recall(parts, queries[gone], truth[gone], (10,))[10] if gone.sum() >= _FEWEST else None


def raise_effort(index: Any, queries: Queries, truth: Neighbours, target: float) -> int | None:
    """Raise the search effort set in `index` until recall@10 of the queries is at least `target`.

    The effort rises at most eightfold. If that is not enough, it becomes the least whose recall is within a
    point of the best one.

    Args:
        queries: queries whose own row is dead.
        truth: their exact neighbours.

    Returns:
        The effort that was set before; None if it stays, because it is enough or the queries are too few.
    """
    before = get_effort(index)
    if before is None or len(queries) < _FEWEST:
        return None
    tried: list[CurvePoint] = []
    for effort in (before, *(each for each in efforts(index) if before < each <= _MOST_RAISED * before)):
        tried.append(point_at(index, queries, truth, effort))
        if tried[-1].recall_at_10 >= target or is_flat(tried):
            break
    least = min(target, max(point.recall_at_10 for point in tried) - _NEARLY)
    chosen = next(point.effort for point in tried if point.recall_at_10 >= least)
    if tried[-1].recall_at_10 >= target:
        chosen = tried[-1].effort
    set_effort(index, chosen)
    return None if chosen == before else before
