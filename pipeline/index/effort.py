"""Search effort (nprobe of IVF, efSearch of HNSW): chosen by recall, and timed."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeline.index.build import threads
from pipeline.index.measured import CurvePoint, Latency
from pipeline.index.parts import indexes_of
from pipeline.index.recall import recall
from pipeline.index.structure import nlist_of, unwrap
from pipeline.index.truth import Neighbours, Queries

_BEYOND_TARGET = 2  # points of the curve after the chosen one: they show what more effort would buy
_FLAT_POINTS, _FLAT_GAIN = 4, 5e-4  # four points are a factor of four in effort
_EF_SEARCH = (16, 1024)


def effort_name(index: Any) -> str | None:
    """Return nprobe or efSearch; None for a kind that always searches everything.

    `index` is here and below a faiss index or `Parts`.
    """
    ann = unwrap(indexes_of(index)[0])
    if hasattr(ann, "nlist"):
        return "nprobe"
    return "efSearch" if hasattr(ann, "hnsw") else None


def get_effort(index: Any) -> int | None:
    """Return the search effort that is set in the index; None for exhaustive kinds."""
    name, ann = effort_name(index), unwrap(indexes_of(index)[0])
    return None if name is None else int(ann.nprobe if name == "nprobe" else ann.hnsw.efSearch)


def set_effort(index: Any, effort: int) -> None:
    """Set nprobe (at most nlist) or efSearch.

    A file written afterwards keeps it, so plain faiss searches with the same effort.
    """
    name = effort_name(index)
    for ann in map(unwrap, indexes_of(index)):
        if name == "nprobe":
            ann.nprobe = max(1, min(effort, ann.nlist))
        elif name == "efSearch":
            ann.hnsw.efSearch = max(1, effort)


def choose_effort(
    index: Any, queries: Queries, truth: Neighbours, target: float
) -> tuple[int | None, tuple[CurvePoint, ...]]:
    """Set the least effort whose recall@10 is above `target` with its whole 95 % interval.

    The interval makes sure that other queries reach the target too. If no effort reaches it, the one with the
    best recall is chosen. nprobe runs over 1, 2, 3, 4, 6, 8 ... nlist, efSearch over 16, 24, 32 ... 1,024.

    Returns:
        The chosen effort and the measured curve; (None, ()) for exhaustive kinds.
    """
    if effort_name(index) is None:
        return None, ()
    curve: list[CurvePoint] = []
    for effort in efforts(index):
        curve.append(point_at(index, queries, truth, effort))
        if sum(point.low >= target for point in curve) > _BEYOND_TARGET or is_flat(curve):
            break
    enough = [point for point in curve if point.low >= target]
    chosen = enough[0] if enough else max(curve, key=lambda point: (point.recall_at_10, -point.effort))
    set_effort(index, chosen.effort)
    return chosen.effort, tuple(curve)


def efforts(index: Any) -> Iterator[int]:
    """Yield search efforts to try, ascending: nprobe up to nlist, or efSearch from 16 to 1,024."""
    nlist = nlist_of(index)
    effort, most = (1, nlist) if nlist else _EF_SEARCH
    while effort < most:
        yield effort
        if effort > 1 and effort * 3 // 2 < most:
            yield effort * 3 // 2
        effort *= 2
    yield most


def is_flat(curve: list[CurvePoint]) -> bool:
    """Return whether more effort no longer helps: the missing answers are lost to compression."""
    return (
        len(curve) > _FLAT_POINTS
        and curve[-1].recall_at_10 - curve[-1 - _FLAT_POINTS].recall_at_10 < _FLAT_GAIN
    )


def curve_around(index: Any, queries: Queries, truth: Neighbours) -> tuple[CurvePoint, ...]:
    """Measure points from a quarter to twice the effort that is set; none for exhaustive kinds."""
    chosen = get_effort(index)
    if chosen is None:
        return ()
    most = nlist_of(indexes_of(index)[0]) or 2 * chosen
    tried = sorted({max(1, chosen // 4), max(1, chosen // 2), chosen, min(most, 2 * chosen)})
    curve = tuple(point_at(index, queries, truth, effort) for effort in tried)
    set_effort(index, chosen)
    return curve


def point_at(index: Any, queries: Queries, truth: Neighbours, effort: int) -> CurvePoint:
    """Set the effort in the index and measure recall and time."""
    set_effort(index, effort)
    with threads(1):
        start = time.perf_counter()
        found = recall(index, queries, truth, (10,))[10]
        elapsed = time.perf_counter() - start
    return CurvePoint(
        effort=effort, recall_at_10=found.value, low=found.low, query_ms=1e3 * elapsed / max(1, len(queries))
    )


def latency(index: Any, queries: Queries, most: int = 500) -> Latency:
    """Time single queries, at most `most` of them, on one thread, after one to warm up."""
    vectors = np.ascontiguousarray(queries.vectors[:most], dtype=np.float32)
    elapsed = []
    with threads(1):
        index.search(vectors[:1], 10)
        for row in range(len(vectors)):
            start = time.perf_counter()
            index.search(vectors[row : row + 1], 10)
            elapsed.append(1e3 * (time.perf_counter() - start))
    p50_ms, p99_ms = np.quantile(elapsed, [0.5, 0.99]).tolist()
    return Latency(queries=len(elapsed), p50_ms=p50_ms, p99_ms=p99_ms)
