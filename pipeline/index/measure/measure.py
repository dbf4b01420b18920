"""Measure recall, latency and balance of an index, after its search effort is chosen.

Recall is also measured for queries near deleted rows, since users still search for deleted texts. The nearest
remaining rows of such a query are spread over many inverted lists, so it needs more effort than other
queries.
"""

from typing import Any

import numpy as np

from pipeline.index.measure.metrics import CurvePoint, IndexMetrics, Proportion
from pipeline.index.measure.recall import recall
from pipeline.index.measure.search_effort import (
    candidate_efforts,
    choose_effort,
    effort_name,
    get_effort,
    levels_off,
    measure_around,
    measure_at,
    measure_latency,
    set_effort,
)
from pipeline.index.measure.searched_parts import SearchedParts
from pipeline.index.measure.truth import Neighbours, Queries
from pipeline.index.structure import fingerprint, nlist_of
from pipeline.settings import IndexSettings

_MIN_QUERIES = 10  # with fewer, the error of recall is larger than 0.1
_MAX_RAISE = 8  # factor; all queries pay for the higher effort
_MIN_GAIN = 0.01  # recall; if no effort reaches the target, a smaller gain does not justify more effort


def measure(
    parts: SearchedParts, queries: Queries, truth: Neighbours, settings: IndexSettings, target: float
) -> IndexMetrics:
    """Set the search effort of a newly built index, and measure the index at this effort.

    The effort is `index.nprobe`, or is chosen on the even queries; metrics are measured on the odd ones.
    Queries whose own row is dead are left out of the choice; the effort is raised for them afterwards.

    Args:
        truth: the queries' exact neighbours.
        target: recall@10 that the effort is chosen for.
    """
    is_dead = ~parts.holds(queries.addresses)
    even = queries[~is_dead][0::2], truth[~is_dead][0::2]
    chosen, curve = choose_effort(parts, *even, target)
    raised_from = None
    if settings.nprobe is not None and chosen is not None:
        set_effort(parts, settings.nprobe)
    elif raised_from := raise_effort(parts, queries[is_dead], truth[is_dead], target):
        raised_to = get_effort(parts)
        assert raised_to is not None
        raised = measure_at(parts, *even, raised_to)
        others = [point for point in curve if point.effort != raised.effort]
        curve = tuple(sorted([*others, raised], key=lambda point: point.effort))
    return measure_parts(parts, queries, truth, curve).model_copy(
        update={
            "recall_near_dead": recall_near_dead(parts, queries, truth, is_dead),
            "raised_from": raised_from,
        }
    )


def measure_parts(
    parts: SearchedParts, queries: Queries, truth: Neighbours, curve: tuple[CurvePoint, ...] | None = None
) -> IndexMetrics:
    """Measure recall and latency on the odd queries, at the effort that is set in the parts.

    Args:
        truth: the queries' exact neighbours.
        curve: the curve of the even queries; None: measure a few points around the effort.
    """
    odd = slice(1, None, 2) if len(queries) > 1 else slice(None)
    return IndexMetrics(
        rows=parts.ntotal,
        recall={str(k): proportion for k, proportion in recall(parts, queries[odd], truth[odd]).items()},
        effort=get_effort(parts),
        effort_name=effort_name(parts),
        curve=measure_around(parts, queries[0::2], truth[0::2]) if curve is None else curve,
        latency=measure_latency(parts, queries[odd]),
        queries=len(queries[odd]),
        duplicate_addresses=parts.duplicates(),
        file_bytes=0,  # the caller knows the files
        nlist=nlist_of(parts.base),
        imbalance=parts.imbalance(),
        fingerprint=fingerprint(parts.base),
    )


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
