"""Measure recall, latency and balance of an index, after its search effort is chosen.

Recall is also measured for queries near deleted rows, since users still search for deleted texts. The nearest
remaining rows of such a query are spread over many inverted lists, so it needs more effort than other
queries.
"""

from typing import Any, NamedTuple

import numpy as np

from pipeline.index.measure.metrics import CurvePoint, IndexMetrics, Proportion
from pipeline.index.measure.recall import recall
from pipeline.index.measure.search_effort import (
    MIN_GAIN,
    candidate_efforts,
    choose_effort,
    choose_for_users,
    effort_name,
    get_effort,
    levels_off,
    measure_around,
    measure_at,
    measure_latency,
    reaches,
    set_effort,
)
from pipeline.index.measure.searched_parts import SearchedParts
from pipeline.index.measure.truth import Neighbours, Queries
from pipeline.index.structure import fingerprint, nlist_of
from pipeline.settings import GateSettings, IndexSettings

_MIN_QUERIES = 10  # with fewer, the error of recall is larger than 0.1
_MAX_RAISE = 8  # factor; all queries pay for the higher effort


def measure(
    parts: SearchedParts,
    queries: Queries,
    truth: Neighbours,
    settings: IndexSettings,
    gates: GateSettings,
) -> IndexMetrics:
    """Set the search effort of a newly built index, and measure the index at this effort.

    The effort is `index.nprobe`, or is chosen on the even queries; metrics are measured on the odd ones.
    Queries whose own row is dead are left out of the choice; the effort is raised for them afterwards, and
    then for texts of users.

    Args:
        truth: the queries' exact neighbours.
        gates: with recall@10 that the effort is chosen for, of rows and of texts of users.
    """
    users, target = queries.of_users, gates.wanted_recall
    rows, known = queries[~users], truth[~users]
    is_dead = ~parts.holds(rows.addresses)
    even = rows[~is_dead][0::2], known[~is_dead][0::2]
    chosen, curve = choose_effort(parts, *even, target)
    raised_from, user_curve = None, None
    if settings.nprobe is not None and chosen is not None:
        set_effort(parts, settings.nprobe)
    else:
        raised_from = raise_effort(parts, rows[is_dead], known[is_dead], target)
    rows_effort = get_effort(parts)
    if settings.nprobe is None and users.any():
        user_curve = choose_for_users(
            parts, queries[users][0::2], truth[users][0::2], gates.wanted_user_recall
        )
    effort = get_effort(parts)
    if effort is not None and effort not in {point.effort for point in curve}:
        curve = tuple(sorted([*curve, measure_at(parts, *even, effort)], key=lambda point: point.effort))
    return measure_parts(parts, queries, truth, curve, user_curve).model_copy(
        update={
            "recall_near_dead": recall_near_dead(parts, rows, known, is_dead),
            "raised_from": raised_from,
            "rows_effort": rows_effort if users.any() else None,
        }
    )


class KeptEffort(NamedTuple):
    """The search effort of last night's index, and whether tonight may choose another for texts of users."""

    effort: int | None
    """effort of last night's index; None for exhaustive kinds"""
    rows_effort: int | None
    """the part of it that rows need; texts of users may need more"""
    target: float
    """recall@10 of texts of users that the effort is chosen for"""
    is_fixed: bool
    """whether the job sets the effort, by index.nprobe"""
    is_same_choice: bool
    """whether last night's effort was chosen for the same texts and the same target"""


def measure_extended(
    parts: SearchedParts, queries: Queries, truth: Neighbours, kept: KeptEffort
) -> IndexMetrics:
    """Measure an extended index at last night's search effort, or choose it again for texts of users.

    With the same texts the effort only rises, and only if they no longer reach the target at it, so that it
    does not change back and forth from night to night.

    Args:
        truth: the queries' exact neighbours.
    """
    users, user_curve = queries.of_users, None
    even = queries[users][0::2], truth[users][0::2]
    if kept.effort is not None:
        set_effort(parts, kept.effort)
    if kept.effort is not None and kept.rows_effort is not None and not kept.is_fixed:
        is_enough = False
        if users.any() and kept.is_same_choice:
            user_curve = measure_around(parts, *even, kept.rows_effort)
            point = next(point for point in user_curve if point.effort == kept.effort)
            is_enough = reaches(point, kept.target, len(even[0]))
        elif not kept.is_same_choice:
            set_effort(parts, kept.rows_effort)
        if users.any() and not is_enough:
            user_curve = choose_for_users(parts, *even, kept.target)
    measured = measure_parts(parts, queries, truth, None, user_curve)
    return measured.model_copy(update={"rows_effort": kept.rows_effort if users.any() else None})


def measure_parts(
    parts: SearchedParts,
    queries: Queries,
    truth: Neighbours,
    curve: tuple[CurvePoint, ...] | None = None,
    user_curve: tuple[CurvePoint, ...] | None = None,
) -> IndexMetrics:
    """Measure recall and latency on the odd queries, at the effort that is set in the parts.

    Args:
        queries: rows of the corpus, and possibly texts of users, whose recall is measured apart.
        truth: the queries' exact neighbours.
        curve: the curve of the even rows; None: measure a few points around the effort.
        user_curve: the same for the even texts of users.
    """
    users = queries.of_users
    (rows, known), (asked, answers) = ((queries[chosen], truth[chosen]) for chosen in (~users, users))
    odd = _odd(rows)
    if user_curve is None and len(asked):
        user_curve = measure_around(parts, asked[0::2], answers[0::2])
    recall_of_users = None
    if len(asked):
        recall_of_users = recall(parts, asked[_odd(asked)], answers[_odd(asked)], (10,))[10]
    return IndexMetrics(
        rows=parts.ntotal,
        recall={str(k): proportion for k, proportion in recall(parts, rows[odd], known[odd]).items()},
        effort=get_effort(parts),
        effort_name=effort_name(parts),
        curve=measure_around(parts, rows[0::2], known[0::2]) if curve is None else curve,
        latency=measure_latency(parts, rows[odd]),
        queries=len(rows[odd]),
        duplicate_addresses=parts.duplicates(),
        file_bytes=0,  # the caller knows the files
        nlist=nlist_of(parts.base),
        imbalance=parts.imbalance(),
        fingerprint=fingerprint(parts.base),
        user_recall=recall_of_users,
        user_queries=len(asked),
        user_curve=user_curve or (),
    )


def _odd(queries: Queries) -> slice:
    """Return the half that metrics are measured on: every other query, or the only one."""
    return slice(1, None, 2) if len(queries) > 1 else slice(None)


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
        chosen = next(point.effort for point in curve if point.recall_at_10 >= best - MIN_GAIN)
    set_effort(index, chosen)
    return None if chosen == before else before
