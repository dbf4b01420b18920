"""Measure recall, latency and balance of an index, after its search effort is chosen."""

from pipeline.index.measure.metrics import CurvePoint, IndexMetrics
from pipeline.index.measure.near_dead import raise_effort, recall_near_dead
from pipeline.index.measure.recall import recall
from pipeline.index.measure.search_effort import (
    choose_effort,
    effort_name,
    get_effort,
    measure_around,
    measure_at,
    measure_latency,
    set_effort,
)
from pipeline.index.measure.searched_parts import SearchedParts
from pipeline.index.measure.truth import Neighbours, Queries
from pipeline.index.structure import fingerprint, nlist_of
from pipeline.settings import IndexSettings


def measure(
    parts: SearchedParts, queries: Queries, truth: Neighbours, settings: IndexSettings, target: float
) -> IndexMetrics:
    """Set the search effort of a newly built index, and measure the index at this effort.

    The effort is `index.nprobe`, or is chosen on the even queries; metrics are of the odd ones. Queries whose
    own row is dead are left out of the choice; the effort is raised for them afterwards.

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
