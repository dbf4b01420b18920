"""The last step of a build: parts are merged, the search effort is chosen, the index is measured and written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.index.build import write_index
from pipeline.index.kinds import IndexPlan
from pipeline.index.merge import Part, duplicates, merge, merge_on_disk
from pipeline.index.parts import Parts
from pipeline.index.structure import fingerprint, ivf_of
from pipeline.index.truth import Neighbours, Queries
from pipeline.index.validate import (
    CurvePoint,
    Measured,
    choose_nprobe,
    curve_around,
    effort_name,
    get_effort,
    latency,
    recall,
    set_effort,
)
from pipeline.settings import GateSettings, IndexSettings

_TARGET = 0.95  # recall@10 that nprobe is chosen for when the gate is off


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

    truth: the queries' exact neighbours over all parts. The second file, if the plan keeps lists on disk, has a name that the first refers to: store it
    under that name, beside the first.
    """
    lists: tuple[Path, ...] = ()
    if plan.on_disk:
        index, on_disk = merge_on_disk(parts, folder)
        lists = (on_disk,)
    else:
        index = merge(parts)
    file = folder / "index.faiss"
    measured = measure(index, queries, truth, settings, gates.recall_at_10)
    write_index(index, file)
    files = (file, *lists)
    return files, measured.model_copy(
        update={"file_bytes": sum(each.stat().st_size for each in files)}
    ).model_dump(mode="json")


def measure(
    index: Any, queries: Queries, truth: Neighbours, settings: IndexSettings, target: float | None
) -> Measured:
    """Search effort chosen on the even queries (or as set) and put into `index`; recall and latency on the odd ones."""
    chosen, curve = choose_nprobe(index, queries[0::2], truth[0::2], _TARGET if target is None else target)
    if settings.nprobe is not None and chosen is not None:
        set_effort(index, settings.nprobe)
    return measure_parts(Parts([index]), queries, truth, curve)


def measure_parts(
    parts: Parts, queries: Queries, truth: Neighbours, curve: tuple[CurvePoint, ...] | None = None
) -> Measured:
    """Recall and latency on the odd queries at the effort that the parts have. curve: as measured on the even ones; None: a few points around that effort."""
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
        nlist=_nlist(base),
        imbalance=parts.imbalance(),
        fingerprint=fingerprint(base),
    )


def _nlist(index: Any) -> int:
    ivf = ivf_of(index)
    return 0 if ivf is None else int(ivf.nlist)
