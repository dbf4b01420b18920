"""Choose and time the search effort: nprobe of an IVF index, efSearch of HNSW.

`index` is a faiss index or `SearchedParts` in all functions.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeline.index.library import faiss_threads
from pipeline.index.measure.metrics import CurvePoint, Latency, Proportion
from pipeline.index.measure.recall import recall
from pipeline.index.measure.searched_parts import SearchedParts, indexes_of, query_ms
from pipeline.index.measure.truth import Neighbours, Queries
from pipeline.index.structure import nlist_of, set_index_effort, unwrap

_BEYOND_TARGET = 2  # points of the curve after the chosen point, which show the gain from more effort
# The curve has levelled off if recall gains less than this over four points, a factor of four in effort.
_PLATEAU_POINTS, _PLATEAU_GAIN = 4, 5e-4
MIN_GAIN = 0.01  # recall; if no effort reaches the target, a smaller gain does not justify more effort
_EF_SEARCH = (16, 1024)  # lowest and highest efSearch that is tried


def effort_name(index: Any) -> str | None:
    """Return the name "nprobe" or "efSearch"; None for a kind that always searches everything."""
    ann = unwrap(indexes_of(index)[0])
    if hasattr(ann, "nlist"):
        return "nprobe"
    return "efSearch" if hasattr(ann, "hnsw") else None


def get_effort(index: Any) -> int | None:
    """Return the search effort that is set in the index; None for exhaustive kinds."""
    name, ann = effort_name(index), unwrap(indexes_of(index)[0])
    return None if name is None else int(ann.nprobe if name == "nprobe" else ann.hnsw.efSearch)


def set_effort(index: Any, effort: int) -> None:
    """Set nprobe (at most nlist) or efSearch. Index files store the effort, so plain faiss uses it too."""
    for faiss_index in indexes_of(index):
        set_index_effort(faiss_index, effort)


def choose_effort(
    index: Any, queries: Queries, truth: Neighbours, target: float
) -> tuple[int | None, tuple[CurvePoint, ...]]:
    """Set the lowest effort at which the 95 % interval of recall@10 is above `target`.

    With the whole interval above the target, other queries are likely to reach it, too. If no effort reaches
    it, the effort with the best recall is set. nprobe 1, 2, 3, 4, 6, 8 ... nlist or efSearch 16, 24, 32 ...
    1,024 are tried.

    Returns:
        The chosen effort and the measured curve; (None, ()) for exhaustive kinds.
    """
    if effort_name(index) is None:
        return None, ()
    curve: list[CurvePoint] = []
    for effort in candidate_efforts(index):
        curve.append(measure_at(index, queries, truth, effort))
        if sum(point.low >= target for point in curve) > _BEYOND_TARGET or levels_off(curve):
            break
    sufficient = [point for point in curve if point.low >= target]
    best = max(curve, key=lambda point: (point.recall_at_10, -point.effort))
    chosen = sufficient[0] if sufficient else best
    set_effort(index, chosen.effort)
    return chosen.effort, tuple(curve)


def choose_for_users(
    index: Any, queries: Queries, truth: Neighbours, target: float
) -> tuple[CurvePoint, ...]:
    """Raise the search effort set in `index` until the 95 % interval of recall@10 is above `target`.

    A few queries have a wide interval: that of fewer than eight reaches below 0.95 even if no answer is
    missing. If a search without a miss would not suffice, recall itself must reach the target. If no effort
    reaches it, the lowest effort is set whose recall is at most 0.01 below the best.

    Args:
        queries: texts of users.
        truth: their exact neighbours.

    Returns:
        The measured curve, which begins at the effort that was set; empty for exhaustive kinds.
    """
    if (before := get_effort(index)) is None:
        return ()
    curve: list[CurvePoint] = []
    for effort in (before, *(each for each in candidate_efforts(index) if each > before)):
        curve.append(measure_at(index, queries, truth, effort))
        if reaches(curve[-1], target, len(queries)) or levels_off(curve):
            break
    chosen = curve[-1]
    if not reaches(chosen, target, len(queries)):
        best = max(point.recall_at_10 for point in curve)
        chosen = next(point for point in curve if point.recall_at_10 >= best - MIN_GAIN)
    set_effort(index, chosen.effort)
    return tuple(curve)


def reaches(point: CurvePoint, target: float, queries: int) -> bool:
    """Return whether the interval of the recall of so many queries is above `target`, or the recall itself if
    no interval of so few queries can be.
    """
    without_a_miss = Proportion.of(10 * queries, 10 * queries).low
    return (point.low if without_a_miss >= target else point.recall_at_10) >= target


def candidate_efforts(index: Any) -> Iterator[int]:
    """Yield search efforts to try, ascending: nprobe up to nlist, or efSearch from 16 to 1,024."""
    nlist = nlist_of(indexes_of(index)[0])
    effort, highest = (1, nlist) if nlist else _EF_SEARCH
    while effort < highest:
        yield effort
        if effort > 1 and effort * 3 // 2 < highest:
            yield effort * 3 // 2
        effort *= 2
    yield highest


def levels_off(curve: list[CurvePoint]) -> bool:
    """Return whether more effort no longer helps, because compression loses the missing answers."""
    return (
        len(curve) > _PLATEAU_POINTS
        and curve[-1].recall_at_10 - curve[-1 - _PLATEAU_POINTS].recall_at_10 < _PLATEAU_GAIN
    )


def measure_around(
    index: Any, queries: Queries, truth: Neighbours, also: int | None = None
) -> tuple[CurvePoint, ...]:
    """Measure the curve from a quarter to twice the effort that is set, and at the effort `also`.

    It is empty for exhaustive kinds.
    """
    current = get_effort(index)
    if current is None:
        return ()
    highest = nlist_of(indexes_of(index)[0]) or 2 * current
    efforts = {max(1, current // 4), max(1, current // 2), current, min(highest, 2 * current)}
    efforts |= set() if also is None else {also}
    curve = tuple(measure_at(index, queries, truth, effort) for effort in sorted(efforts))
    set_effort(index, current)
    return curve


def measure_at(index: Any, queries: Queries, truth: Neighbours, effort: int) -> CurvePoint:
    """Set the effort in the index, and measure recall@10 and the time of a query."""
    set_effort(index, effort)
    with faiss_threads(1):
        clock = index.clock if isinstance(index, SearchedParts) else time.perf_counter
        start = clock()
        recall_at_10 = recall(index, queries, truth, (10,))[10]
        elapsed_s = clock() - start
    return CurvePoint(
        effort=effort,
        recall_at_10=recall_at_10.value,
        low=recall_at_10.low,
        query_ms=1e3 * elapsed_s / max(1, len(queries)),
    )


def measure_latency(index: Any, queries: Queries, max_queries: int = 500) -> Latency:
    """Time up to `max_queries` queries, one after the other on one thread, after a first one to warm up."""
    vectors = np.ascontiguousarray(queries.vectors[:max_queries], dtype=np.float32)
    elapsed_ms = index.query_ms(vectors) if isinstance(index, SearchedParts) else query_ms(index, vectors)
    p50_ms, p99_ms = np.quantile(elapsed_ms, [0.5, 0.99]).tolist()
    return Latency(queries=len(elapsed_ms), p50_ms=p50_ms, p99_ms=p99_ms)
