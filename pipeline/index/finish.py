"""The last step of a build: parts are merged, the search effort is chosen, the index is measured and written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.index.build import write_index
from pipeline.index.merge import Part, duplicates, merge, merge_on_disk
from pipeline.index.near_dead import absent, raise_effort, recall_near_dead
from pipeline.index.parts import Parts
from pipeline.index.plan import IndexPlan
from pipeline.index.structure import fingerprint, nlist_of
from pipeline.index.truth import Neighbours, Queries
from pipeline.index.validate import (
    CurvePoint,
    Measured,
    choose_nprobe,
    curve_around,
    effort_name,
    get_effort,
    latency,
    point_at,
    recall,
    set_effort,
)
from pipeline.settings import GateSettings, IndexSettings


def finish(
    plan: IndexPlan,
    settings: IndexSettings,
    gates: GateSettings,
    queries: Queries,
    parts: Sequence[Part],
    truth: Neighbours,
    folder: Path,
) -> tuple[tuple[Path, ...], dict[str, Any]]:
    """The published files, written into `folder`, and what was measured (`Measured` as a dict).

    truth: the queries' exact neighbours over all parts. The second file, if the plan keeps lists on disk, has
        a name that the first refers to: store it under that name, beside the first.
    """
    lists: tuple[Path, ...] = ()
    if plan.on_disk:
        index, on_disk = merge_on_disk(parts, folder)
        lists = (on_disk,)
    else:
        index = merge(parts)
    file = folder / "index.faiss"
    measured = measure(index, queries, truth, settings, gates.wanted_recall)
    write_index(index, file)
    files = (file, *lists)
    return files, measured.model_copy(
        update={"file_bytes": sum(each.stat().st_size for each in files)}
    ).model_dump(mode="json")


def measure(
    index: Any, queries: Queries, truth: Neighbours, settings: IndexSettings, target: float
) -> Measured:
    """Search effort chosen on the even queries (or as set) and put into `index`; recall and latency on the
    odd ones.

    Queries whose own row the index does not hold, since it is dead, take no part in the choice; the effort is
    raised for them afterwards.
    """
    gone = absent(index, queries)
    even = queries[~gone][0::2], truth[~gone][0::2]
    chosen, curve = choose_nprobe(index, *even, target)
    raised_from = None
    if settings.nprobe is not None and chosen is not None:
        set_effort(index, settings.nprobe)
    elif raised_from := raise_effort(index, queries[gone], truth[gone], target):
        curve = _with_point(curve, point_at(index, *even, get_effort(index) or raised_from))
    parts = Parts([index])
    near = recall_near_dead(parts, queries, truth, gone)
    return measure_parts(parts, queries, truth, curve).model_copy(
        update={"recall_near_dead": near, "raised_from": raised_from}
    )


def _with_point(curve: tuple[CurvePoint, ...], point: CurvePoint) -> tuple[CurvePoint, ...]:
    """The curve with that point in its place."""
    others = [each for each in curve if each.effort != point.effort]
    return tuple(sorted([*others, point], key=lambda each: each.effort))


def measure_parts(
    parts: Parts, queries: Queries, truth: Neighbours, curve: tuple[CurvePoint, ...] | None = None
) -> Measured:
    """Recall and latency on the odd queries at the effort that the parts have. curve: as measured on the even
    ones; None: a few points around that effort.
    """
    base, odd = parts.base, slice(1, None, 2) if len(queries) > 1 else slice(None)
    return Measured(
        rows=parts.ntotal,
        recall={str(k): share for k, share in recall(parts, queries[odd], truth[odd]).items()},
        effort=get_effort(base),
        effort_name=effort_name(base),
        curve=curve_around(parts, queries[0::2], truth[0::2]) if curve is None else curve,
        latency=latency(parts, queries[odd]),
        queries=len(queries[odd].addresses),
        duplicate_addresses=duplicates(parts.addresses()).count,
        file_bytes=0,
        nlist=nlist_of(base),
        imbalance=parts.imbalance(),
        fingerprint=fingerprint(base),
    )
