"""An index that a GPU trains and fills answers on the CPU as well as one of a CPU."""

import importlib.util
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tests.gpu.scale import PartTable, Scale

if TYPE_CHECKING:
    from pipeline.index.measure.truth import Neighbours, Queries
    from tests.index.clustered import Vectors

KINDS = ("ivf_flat", "ivf_sq8", "opq_ivf_pq", "IVF{lists}_HNSW32,RaBitQ,Refine(SQ8)")
NPROBE, QUERIES = 8, 300
UNIT_ROWS = 20_000
MOST_LOSS = 0.02  # of recall@10
LEAST_EQUAL = 0.99  # of the neighbours; others have almost equal scores
HEADER = ("what", "CPU s", "GPU s", "recall@10 CPU", "recall@10 GPU")
Result = TypeVar("Result")


class Built(NamedTuple):
    """Seconds to train and to fill an index, and its recall@10."""

    train_s: float
    fill_s: float
    recall: float


def index(scale: Scale) -> PartTable:
    """Train, fill and search on both. Without a GPU that faiss sees, the CPU takes its place."""
    if importlib.util.find_spec("faiss") is None:
        return PartTable("faiss is not installed", HEADER, [])
    from pipeline.index.gpu import sees_gpus
    from pipeline.index.measure.truth import ExactTopK, Queries
    from tests.index.clustered import clustered

    rows, on_gpu = scale.choose(3_000, 200_000), scale.on_gpu and sees_gpus()
    vectors, step = clustered(rows, dim=scale.choose(32, 64)), rows // QUERIES
    queries = Queries(vectors.addresses[::step], vectors.raw[::step])
    (exact, cpu_s), (found, gpu_s) = (
        timed(lambda gpu=gpu: ExactTopK(queries, on_gpu=gpu).search(vectors.batches(UNIT_ROWS)))  # type: ignore[misc]
        for gpu in (False, on_gpu)
    )
    equal = float((exact.addresses == found.addresses).mean())
    lines = [["exact neighbours", f"{cpu_s:.2f}", f"{gpu_s:.2f}", "1", f"{equal:.4f}"]]
    problems = [] if equal >= LEAST_EQUAL else [f"{equal:.1%} of the exact neighbours are those of the CPU"]
    for kind in KINDS[: scale.choose(2, len(KINDS))]:
        name = kind.format(lists=_lists(rows))
        cpu, gpu = (_build(name, vectors, queries, exact, on_gpu=each) for each in (False, on_gpu))
        lines.append([f"{name}, train", f"{cpu.train_s:.2f}", f"{gpu.train_s:.2f}", "", ""])
        recalls = f"{cpu.recall:.4f}", f"{gpu.recall:.4f}"
        lines.append([f"{name}, fill", f"{cpu.fill_s:.2f}", f"{gpu.fill_s:.2f}", *recalls])
        scale.report(lines[-1])
        if not abs(cpu.recall - gpu.recall) <= MOST_LOSS:
            problems.append(f"{name}: recall@10 {recalls[1]}, on the CPU {recalls[0]}")
    title = f"{rows:,} vectors of {vectors.raw.shape[1]} dimensions" + (
        "" if on_gpu else "; faiss sees no GPU, the CPU takes its place"
    )
    return PartTable(title, HEADER, lines, problems)


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result of a call and its seconds."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def _lists(rows: int) -> int:
    return 32 if rows < 100_000 else 512


def _build(kind: str, vectors: "Vectors", queries: "Queries", exact: "Neighbours", *, on_gpu: bool) -> Built:
    """Train and fill an index, and search it on the CPU."""
    import faiss

    from pipeline.index.build.build import fill, train
    from pipeline.index.build.index_shape import plan_index
    from pipeline.index.measure.recall import recall
    from pipeline.index.measure.search_effort import set_effort
    from pipeline.settings import IndexSettings

    rows, dim = vectors.raw.shape
    plan = plan_index(rows, dim, IndexSettings(kind=kind, nlist=_lists(rows)))
    made, train_s = timed(lambda: train(plan, None, vectors.raw[: plan.train_rows], on_gpu=on_gpu))
    _, fill_s = timed(lambda: fill(made, vectors.batches(UNIT_ROWS), on_gpu=on_gpu))
    assert faiss.deserialize_index(faiss.serialize_index(made)).ntotal == rows, "its file is one of a CPU"
    set_effort(made, NPROBE)
    return Built(train_s, fill_s, recall(made, queries, exact, (10,))[10].value)
