"""Compare building and searching an index with plain faiss: same factory string, training rows and nprobe.

    python -m tests.benchmarks.index

With MANTA_EVAL_DATA, the vectors are those of captions by the packaged all-MiniLM-L6-v2 (30,000 take about
two minutes on one core); without it, they are generated in clusters. Manta and plain faiss run one after the
other, with one thread.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow.parquet as pq

from pipeline.index.build.build import fill, read_index, train, write_index
from pipeline.index.build.index_shape import IndexPlan, plan_index
from pipeline.index.build.merge import FilledShard, merge
from pipeline.index.library import faiss_threads
from pipeline.index.measure.recall import recall
from pipeline.index.measure.search_effort import choose_effort, get_effort, set_effort
from pipeline.index.measure.truth import ExactTopK, Neighbours, Queries
from pipeline.index.refine import CANDIDATES_PER_ANSWER
from pipeline.settings import EncoderSettings, EncodeSettings, IndexSettings
from pipeline.settings.index_kinds import KINDS
from tests.benchmarks.machine import machine, print_table, spread

SINGLE_EVERY = 4  # every fourth query is also searched on its own
BATCH_ROWS = 8_192  # rows added at once
SHARDS = 3
TRAININGS = 3
FAISS_SEED = 1234  # seed of k-means in plain faiss
TARGET_RECALL = 0.95  # recall@10 for which nprobe is chosen


@dataclass(frozen=True)
class IndexBench:
    """The plan of an index, with the vectors and queries of the benchmark."""

    plan: IndexPlan
    addresses: np.ndarray
    raw: np.ndarray
    queries: Queries
    pairs: int

    def batches(self, rows: slice = slice(None)) -> list[tuple[np.ndarray, np.ndarray]]:
        addresses, raw = self.addresses[rows], self.raw[rows]
        return [
            (addresses[start : start + BATCH_ROWS], raw[start : start + BATCH_ROWS])
            for start in range(0, len(raw), BATCH_ROWS)
        ]


def seconds(work: Callable[[], object]) -> float:
    """Measure the wall time of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def vectors(rows: int) -> tuple[np.ndarray, str]:
    """Return (n, 384) float32 raw vectors, and a description of their source."""
    if root := os.environ.get("MANTA_EVAL_DATA"):
        from pipeline.models.inference.encoder import load_encoder

        texts = pq.read_table(Path(root, "captions", "shards"), columns=["text"])["text"].to_pylist()
        sampled = np.random.default_rng(0).permutation(len(texts))[:rows]
        encoder = load_encoder(EncoderSettings(), EncodeSettings(), "cpu")
        return encoder.encode([texts[row] for row in sampled]), "captions, all-MiniLM-L6-v2"
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(rows // 20, 384))
    generated = centres[rng.integers(0, len(centres), rows)] + rng.normal(size=(rows, 384))
    return generated.astype(np.float32), "generated clusters"


def train_peer(bench: IndexBench) -> Any:
    """Train with plain faiss.

    OPQ has Manta's number of iterations, because faiss's takes far longer, and a refined kind scores as many
    candidates again as Manta's, because faiss's own number finds far less.
    """
    index = faiss.index_factory(bench.plan.dim, bench.plan.factory, faiss.METRIC_INNER_PRODUCT)
    if isinstance(index, faiss.IndexPreTransform) and isinstance(
        step := faiss.downcast_VectorTransform(index.chain.at(0)), faiss.OPQMatrix
    ):
        step.niter = 20
    if isinstance(index, faiss.IndexRefine):
        index.k_factor = CANDIDATES_PER_ANSWER
    sample = bench.raw[: bench.plan.train_rows].copy()
    faiss.normalize_L2(sample)
    index.train(sample)
    return index


def train_ours(bench: IndexBench) -> Any:
    return train(bench.plan, None, bench.raw[: bench.plan.train_rows], FAISS_SEED)


def add_to_peer(index: Any, bench: IndexBench) -> Any:
    """Add the rows with their addresses. Refined kinds and kinds without lists need an id map for these."""
    has_ids = bench.plan.nlist and not isinstance(index, faiss.IndexRefine)
    keyed = index if has_ids else faiss.IndexIDMap2(index)
    for addresses, raw in bench.batches():
        unit = raw.copy()
        faiss.normalize_L2(unit)
        keyed.add_with_ids(unit, addresses)
    return keyed


def search_peer(index: Any, queries: np.ndarray) -> np.ndarray:
    unit = queries.copy()
    faiss.normalize_L2(unit)
    return np.asarray(index.search(unit, 11)[1])


def compare(bench: IndexBench, truth: Neighbours, folder: Path) -> list[str]:
    """Measure one line of the table: training, adding, and searching in a batch and one by one, in turn."""
    training = [
        (seconds(lambda: train_peer(bench)), seconds(lambda: train_ours(bench))) for _ in range(TRAININGS)
    ]
    ours_empty = faiss.serialize_index(train_ours(bench))
    peer_empty = faiss.serialize_index(train_peer(bench))
    built: dict[str, Any] = {}

    def add_ours() -> None:
        built["ours"] = faiss.deserialize_index(ours_empty)
        fill(built["ours"], bench.batches())

    def add_peer() -> None:
        built["peer"] = add_to_peer(faiss.deserialize_index(peer_empty), bench)

    adding = [(seconds(add_peer), seconds(add_ours)) for _ in range(bench.pairs)]
    choose_effort(built["ours"], bench.queries, truth, TARGET_RECALL)
    effort = _same_effort(built["peer"], built["ours"])
    sharded = _sharded(bench, ours_empty, folder)
    set_effort(sharded, effort)
    queries = bench.queries.vectors
    batch = [
        (
            seconds(lambda: search_peer(built["peer"], queries)),
            seconds(lambda: built["ours"].search(queries, 11)),
        )
        for _ in range(bench.pairs)
    ]
    singles = [
        (
            seconds(lambda: _one_by_one(built["peer"], queries, True)),
            seconds(lambda: _one_by_one(built["ours"], queries, False)),
        )
        for _ in range(bench.pairs)
    ]
    recalls = [recall(index, bench.queries, truth, (10,))[10].value for index in (built["ours"], sharded)]
    peer_recall = _peer_recall(built["peer"], bench, truth)
    return [
        bench.plan.factory,
        str(effort or "-"),
        _ratio(training),
        _ratio(adding),
        f"{len(bench.raw) / statistics.median(ours for _, ours in adding):,.0f}",
        _ratio(batch),
        _ratio(singles),
        f"{1e3 * statistics.median(ours for _, ours in singles) / len(queries[::SINGLE_EVERY]):.3f}",
        f"{peer_recall:.4f}",
        *(f"{value:.4f}" for value in recalls),
    ]


def _same_effort(peer: Any, ours: Any) -> int:
    """Set the search effort (nprobe or efSearch) of ours in the peer, and return it."""
    effort = get_effort(ours) or 0
    set_effort(peer, effort)
    return effort


def _one_by_one(index: Any, queries: np.ndarray, normalise: bool) -> None:
    for row in range(0, len(queries), SINGLE_EVERY):
        search_peer(index, queries[row : row + 1]) if normalise else index.search(queries[row : row + 1], 11)


def _sharded(bench: IndexBench, empty: np.ndarray, folder: Path) -> Any:
    """Fill copies of the empty index with parts of the rows, and merge them."""
    parts = []
    count = SHARDS if bench.plan.shardable else 1
    for number, rows in enumerate(np.array_split(np.arange(len(bench.raw)), count)):
        index = faiss.deserialize_index(empty)
        filled = fill(index, bench.batches(slice(rows[0], rows[-1] + 1)))
        write_index(index, folder / f"{number}.faiss")
        parts.append(
            FilledShard(
                folder / f"{number}.faiss", filled.rows, filled.probe_addresses, filled.probe_vectors, "space"
            )
        )
    write_index(merge(parts), folder / "merged.faiss")
    return read_index(folder / "merged.faiss")


def _peer_recall(peer: Any, bench: IndexBench, truth: Neighbours) -> float:
    """Measure recall@10 of plain faiss, whose queries must be normalised."""
    unit = bench.queries.vectors.copy()
    faiss.normalize_L2(unit)
    return recall(peer, Queries(bench.queries.addresses, unit), truth, (10,))[10].value


def _ratio(pairs: list[tuple[float, float]]) -> str:
    return spread([theirs / ours for theirs, ours in pairs])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=30_000)
    arguments.add_argument("--pairs", type=int, default=7)
    arguments.add_argument("--kinds", nargs="+", default=list(KINDS))
    options = arguments.parse_args()
    print(machine())
    raw, source = vectors(options.rows)
    addresses = (np.arange(len(raw)) >> 15 << 32) | (np.arange(len(raw)) & 32_767)
    asked = np.random.default_rng(1).choice(len(raw), min(400, len(raw)), replace=False)
    queries = Queries(addresses[asked], raw[asked])
    with faiss_threads(1), tempfile.TemporaryDirectory() as folder:
        exact = ExactTopK(queries)
        started = time.perf_counter()
        truth = exact.search([(addresses, raw)])
        exact_s = time.perf_counter() - started
        benches = [
            IndexBench(
                plan_index(len(raw), raw.shape[1], IndexSettings(kind=kind)),
                addresses,
                raw,
                queries,
                options.pairs,
            )
            for kind in options.kinds
        ]
        lines = [compare(bench, truth, Path(folder)) for bench in benches]
    print_table(
        (
            f"{len(raw):,} x {raw.shape[1]} ({source}), faiss {faiss.__version__}, 1 thread; times are plain "
            f"faiss / ours, median (least to most) of {options.pairs} pairs"
        ),
        lines,
        (
            "factory",
            "effort",
            "train",
            "add",
            "rows/s added",
            "search, batch",
            "search, single",
            "ms/query",
            "recall@10 plain",
            "ours",
            f"{SHARDS} shards",
        ),
    )
    print(
        f"\nexact neighbours of {len(queries)} queries beside the add pass: "
        f"{1e6 * exact_s / len(raw):.1f} us a row; {machine()}"
    )


if __name__ == "__main__":
    main()
