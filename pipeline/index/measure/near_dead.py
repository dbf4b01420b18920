"""Recall and search effort for queries near deleted rows.

Users still search for deleted texts. The nearest remaining rows of such a query are spread over many inverted
lists, so it needs more effort than other queries.
"""

from typing import Any

import numpy as np

from pipeline.index.measure.metrics import CurvePoint, Proportion
from pipeline.index.measure.recall import recall
from pipeline.index.measure.search_effort import (
    candidate_efforts,
    get_effort,
    levels_off,
    measure_at,
    set_effort,
)
from pipeline.index.measure.searched_parts import SearchedParts
from pipeline.index.measure.truth import Neighbours, Queries

_MIN_QUERIES = 10  # with fewer, the error of recall is larger than 0.1
_MAX_RAISE = 8  # factor; all queries pay for the higher effort
_MIN_GAIN = 0.01  # recall; if no effort reaches the target, a smaller gain does not justify more effort


def recall_near_dead(
    parts: SearchedParts, queries: Queries, truth: Neighbours, is_dead: np.ndarray
) -> Proportion | None:
    """Measure recall@10 of the queries whose own row is dead; None if there are fewer than ten.

    Args:
        is_dead: mask (q,) of these queries.
    """
    if is_dead.sum() < _MIN_QUERIES:
        return None
    return recall(parts, queries[is_dead], truth[is_dead], (10,))[10]


def raise_effort(index: Any, queries: Queries, truth: Neighbours, target: float) -> int | None:
    """Raise the search effort set in `index` until recall@10 of the queries is at least `target`.

    The effort rises at most eightfold. If that is not enough, the lowest effort is set whose recall is at
    most 0.01 below the best.

    Args:
        queries: queries whose own row is dead.
        truth: their exact neighbours.

    Returns:
        The previous effort; None if it is unchanged, because it is enough or there are too few queries.
    """
    before = get_effort(index)
    if before is None or len(queries) < _MIN_QUERIES:
        return None
    curve: list[CurvePoint] = []
    higher = [effort for effort in candidate_efforts(index) if before < effort <= _MAX_RAISE * before]
    for effort in (before, *higher):
        curve.append(measure_at(index, queries, truth, effort))
        if curve[-1].recall_at_10 >= target or levels_off(curve):
            break
    chosen = curve[-1].effort
    if curve[-1].recall_at_10 < target:
        best = max(point.recall_at_10 for point in curve)
        chosen = next(point.effort for point in curve if point.recall_at_10 >= best - _MIN_GAIN)
    set_effort(index, chosen)
    return None if chosen == before else before
