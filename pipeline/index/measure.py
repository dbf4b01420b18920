"""Measure an index that was built or extended."""

from typing import Any

from pipeline.index.effort import (
    choose_effort,
    curve_around,
    effort_name,
    get_effort,
    latency,
    point_at,
    set_effort,
)
from pipeline.index.measured import CurvePoint, Measured
from pipeline.index.merge import count_duplicates
from pipeline.index.near_dead import raise_effort, recall_near_dead, without_own_row
from pipeline.index.parts import Parts
from pipeline.index.recall import recall
from pipeline.index.structure import fingerprint, nlist_of
from pipeline.index.truth import Neighbours, Queries
from pipeline.settings import IndexSettings


def measure(
    index: Any, queries: Queries, truth: Neighbours, settings: IndexSettings, target: float
) -> Measured:
    """Choose the search effort on the even queries, or take that of the settings, and measure the odd ones.

    The effort is set in `index`. Queries whose own row is dead, so that the index does not hold it, take no
    part in the choice; the effort is raised for them afterwards.

    Args:
        truth: the queries' exact neighbours.
        target: recall@10 that the effort is chosen for.
    """
    gone = without_own_row(index, queries)
    even = queries[~gone][0::2], truth[~gone][0::2]
    chosen, curve = choose_effort(index, *even, target)
    raised_from = None
    if settings.nprobe is not None and chosen is not None:
        set_effort(index, settings.nprobe)
    elif raised_from := raise_effort(index, queries[gone], truth[gone], target):
        raised = point_at(index, *even, get_effort(index) or raised_from)
        others = [point for point in curve if point.effort != raised.effort]
        curve = tuple(sorted([*others, raised], key=lambda point: point.effort))
    parts = Parts([index])
    return measure_parts(parts, queries, truth, curve).model_copy(
        update={"recall_near_dead": recall_near_dead(parts, queries, truth, gone), "raised_from": raised_from}
    )


def measure_parts(
    parts: Parts, queries: Queries, truth: Neighbours, curve: tuple[CurvePoint, ...] | None = None
) -> Measured:
    """Measure recall and latency on the odd queries, at the effort that is set in the parts.

    Args:
        truth: the queries' exact neighbours.
        curve: as measured on the even queries; None: a few points around the effort are measured on them.
    """
    odd = slice(1, None, 2) if len(queries) > 1 else slice(None)
    return Measured(
        rows=parts.ntotal,
        recall={str(k): found for k, found in recall(parts, queries[odd], truth[odd]).items()},
        effort=get_effort(parts),
        effort_name=effort_name(parts),
        curve=curve_around(parts, queries[0::2], truth[0::2]) if curve is None else curve,
        latency=latency(parts, queries[odd]),
        queries=len(queries[odd]),
        duplicate_addresses=count_duplicates(parts.addresses())[0],
        file_bytes=0,
        nlist=nlist_of(parts.base),
        imbalance=parts.imbalance(),
        fingerprint=fingerprint(parts.base),
    )
