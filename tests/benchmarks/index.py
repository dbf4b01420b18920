"""Index build and search against plain faiss: same factory string, training rows, threads and nprobe,
interleaved: python -m tests.benchmarks.index

With MANTA_EVAL_DATA the vectors are those of captions by the packaged all-MiniLM-L6-v2 (30,000 take about two
minutes on one core), else generated clusters.
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

from pipeline.index.build import fill, read_index, threads, train, write_index
from pipeline.index.effort import choose_effort, get_effort, set_effort
from pipeline.index.merge import Part, merge
from pipeline.index.plan import IndexPlan, plan_index
from pipeline.index.recall import recall
from pipeline.index.truth import ExactTopK, Neighbours, Queries
from pipeline.settings import EncoderSettings, EncodeSettings, IndexSettings
from pipeline.settings.index_kinds import KINDS
from tests.benchmarks.machine import machine, print_table, spread

EVERY = 4  # of the queries is searched by itself
BATCH = 8_192  # rows added at once, by both
SHARDS = 3
TRAININGS = 3
FAISS_SEED = 1234  # what plain faiss starts k-means from
TARGET = 0.95  # recall@10 that nprobe is chosen for


@dataclass(frozen=True)
class Bench:
    plan: IndexPlan
    addresses: np.ndarray
    raw: np.ndarray
    queries: Queries
    pairs: int

    def batches(self, rows: slice = slice(None)) -> list[tuple[np.ndarray, np.ndarray]]:
        addresses, raw = self.addresses[rows], self.raw[rows]
        return [
            (addresses[start : start + BATCH], raw[start : start + BATCH])
            for start in range(0, len(raw), BATCH)
        ]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def vectors(rows: int) -> tuple[np.ndarray, str]:
    """(n, 384) float32 raw vectors, and what they are."""
    if root := os.environ.get("MANTA_EVAL_DATA"):
        from pipeline.models.inference.encoder import load_encoder

        texts = pq.read_table(Path(root, "captions", "shards"), columns=["text"])["text"].to_pylist()
        chosen = np.random.default_rng(0).permutation(len(texts))[:rows]
        return load_encoder(EncoderSettings(), EncodeSettings(), "cpu").encode(
            [texts[row] for row in chosen]
        ), "captions, all-MiniLM-L6-v2"
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(rows // 20, 384))
    return (centres[rng.integers(0, len(centres), rows)] + rng.normal(size=(rows, 384))).astype(
        np.float32
    ), "generated clusters"


def peer_trained(bench: Bench) -> Any:
    """What a person writes with plain faiss; OPQ, which faiss would train far longer, gets our number of
    rounds.
    """
    index = faiss.index_factory(bench.plan.dim, bench.plan.factory, faiss.METRIC_INNER_PRODUCT)
    if isinstance(index, faiss.IndexPreTransform) and isinstance(
        step := faiss.downcast_VectorTransform(index.chain.at(0)), faiss.OPQMatrix
    ):
        step.niter = 20
    sample = bench.raw[: bench.plan.train_rows].copy()
    faiss.normalize_L2(sample)
    index.train(sample)
    return index


def trained(bench: Bench) -> Any:
    return train(bench.plan, None, bench.raw[: bench.plan.train_rows], FAISS_SEED)


def peer_add(index: Any, bench: Bench) -> Any:
    keyed = index if bench.plan.nlist else faiss.IndexIDMap2(index)
    for addresses, raw in bench.batches():
        unit = raw.copy()
        faiss.normalize_L2(unit)
        keyed.add_with_ids(unit, addresses)
    return keyed


def peer_search(index: Any, queries: np.ndarray) -> np.ndarray:
    unit = queries.copy()
    faiss.normalize_L2(unit)
    return np.asarray(index.search(unit, 11)[1])


def compare(bench: Bench, truth: Neighbours, folder: Path) -> list[str]:
    """One line of the table: training, adding, searching in a batch and one by one; peer's time over ours,
    pairs alternating.
    """
    training = [
        (seconds(lambda: peer_trained(bench)), seconds(lambda: trained(bench))) for _ in range(TRAININGS)
    ]
    ours_empty = faiss.serialize_index(trained(bench))
    peer_empty = faiss.serialize_index(peer_trained(bench))
    built: dict[str, Any] = {}

    def add_ours() -> None:
        built["ours"] = faiss.deserialize_index(ours_empty)
        fill(built["ours"], bench.batches())

    def add_peer() -> None:
        built["peer"] = peer_add(faiss.deserialize_index(peer_empty), bench)

    adding = [(seconds(add_peer), seconds(add_ours)) for _ in range(bench.pairs)]
    choose_effort(built["ours"], bench.queries, truth, TARGET)
    effort = _same_effort(built["peer"], built["ours"])
    sharded = _sharded(bench, ours_empty, folder)
    set_effort(sharded, effort)
    asked = bench.queries.vectors
    batch = [
        (seconds(lambda: peer_search(built["peer"], asked)), seconds(lambda: built["ours"].search(asked, 11)))
        for _ in range(bench.pairs)
    ]
    singles = [
        (
            seconds(lambda: _one_by_one(built["peer"], asked, True)),
            seconds(lambda: _one_by_one(built["ours"], asked, False)),
        )
        for _ in range(bench.pairs)
    ]
    shares = [recall(index, bench.queries, truth, (10,))[10].value for index in (built["ours"], sharded)]
    peer_share = _peer_recall(built["peer"], bench, truth)
    return [
        bench.plan.factory,
        str(effort or "-"),
        _ratio(training),
        _ratio(adding),
        f"{len(bench.raw) / statistics.median(ours for _, ours in adding):,.0f}",
        _ratio(batch),
        _ratio(singles),
        f"{1e3 * statistics.median(ours for _, ours in singles) / len(asked[::EVERY]):.3f}",
        f"{peer_share:.4f}",
        *(f"{share:.4f}" for share in shares),
    ]


def _same_effort(peer: Any, ours: Any) -> int:
    effort = get_effort(ours) or 0
    set_effort(peer, effort)
    return effort


def _one_by_one(index: Any, queries: np.ndarray, normalise: bool) -> None:
    for row in range(0, len(queries), EVERY):
        peer_search(index, queries[row : row + 1]) if normalise else index.search(queries[row : row + 1], 11)


def _sharded(bench: Bench, empty: np.ndarray, folder: Path) -> Any:
    parts = []
    count = SHARDS if bench.plan.shardable else 1
    for number, rows in enumerate(np.array_split(np.arange(len(bench.raw)), count)):
        index = faiss.deserialize_index(empty)
        filled = fill(index, bench.batches(slice(rows[0], rows[-1] + 1)))
        write_index(index, folder / f"{number}.faiss")
        parts.append(
            Part(
                folder / f"{number}.faiss", filled.rows, filled.probe_addresses, filled.probe_vectors, "space"
            )
        )
    write_index(merge(parts), folder / "merged.faiss")
    return read_index(folder / "merged.faiss")


def _peer_recall(peer: Any, bench: Bench, truth: Neighbours) -> float:
    """recall@10 by the same rule, on the plain index: its queries are normalised first."""
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
    chosen = arguments.parse_args()
    print(machine())
    raw, what = vectors(chosen.rows)
    addresses = (np.arange(len(raw)) >> 15 << 32) | (np.arange(len(raw)) & 32_767)
    asked = np.random.default_rng(1).choice(len(raw), min(400, len(raw)), replace=False)
    queries = Queries(addresses[asked], raw[asked])
    with threads(1), tempfile.TemporaryDirectory() as folder:
        fold = ExactTopK(queries)
        started = time.perf_counter()
        truth = fold.of([(addresses, raw)])
        exact_s = time.perf_counter() - started
        benches = [
            Bench(
                plan_index(len(raw), raw.shape[1], IndexSettings(kind=kind)),
                addresses,
                raw,
                queries,
                chosen.pairs,
            )
            for kind in chosen.kinds
        ]
        lines = [compare(bench, truth, Path(folder)) for bench in benches]
    print_table(
        (
            f"{len(raw):,} x {raw.shape[1]} ({what}), faiss {faiss.__version__}, 1 thread; times are plain "
            f"faiss / ours, median (least to most) of {chosen.pairs} pairs"
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
