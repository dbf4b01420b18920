"""Compare centroids of lists, and ways to find the nearest one, with those of faiss: CPU time and recall.

    python -m tests.benchmarks.lists --vectors texts.npy
    python -m tests.benchmarks.lists --vectors texts.npy --lists 16384 --rows-per-list 3

A row is a point between the vectors of a text and of one of its nearest texts, plus the difference of two
other texts as noise, so that there are enough rows for many lists. Everything runs on one thread. Above 4,096
lists, faiss trains none, because that takes hours.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import faiss
import numpy as np

from pipeline.index.build.centroids import CentroidGroups, train_centroids
from pipeline.index.library import faiss_threads
from tests.benchmarks.index import vectors
from tests.benchmarks.machine import machine

QUERIES, NPROBES, ROUNDS = 1_000, (1, 4, 16, 64), 10
MAX_FAISS_LISTS = 4_096

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result of a call, and its CPU seconds."""
    start = time.process_time()
    return work(), time.process_time() - start


def between(texts: np.ndarray, rows: int, seed: int = 0) -> np.ndarray:
    """Return vectors (rows, d) float32 of length 1 that are distributed like those of texts."""
    rng = np.random.default_rng(seed)
    _, near = faiss.knn(texts, texts, 32, metric=faiss.METRIC_INNER_PRODUCT)
    first = rng.integers(0, len(texts), rows)
    second = near[first, rng.integers(0, 32, rows)]
    weight = rng.uniform(0, 0.6, (rows, 1)).astype(np.float32)
    found = texts[first] * (1 - weight) + texts[second] * weight
    noise = texts[rng.integers(0, len(texts), rows)] - texts[rng.integers(0, len(texts), rows)]
    found += noise * rng.uniform(0.07, 0.35, (rows, 1)).astype(np.float32)
    faiss.normalize_L2(found)
    return found


def assignments(centroids: np.ndarray, rows: np.ndarray) -> None:
    """Print how fast a graph and groups find the lists of rows, and how many miss the nearest one."""
    flat = faiss.IndexFlatIP(rows.shape[1])
    graph = faiss.IndexHNSWFlat(rows.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    flat.add(centroids)
    graph.add(centroids)
    best = np.einsum("nd,nd->n", rows, centroids[flat.search(rows, 1)[1][:, 0]])
    groups = CentroidGroups.of(centroids)
    ways = {"graph": lambda: graph.search(rows, 1)[1][:, 0], "groups": lambda: groups.nearest(rows)}
    for _ in range(2):  # in turn
        for name, find in ways.items():
            found, cpu_s = timed(find)
            scores = np.einsum("nd,nd->n", rows, centroids[found])
            print(
                f"{name}: {1e6 * cpu_s / len(rows):.1f} us a row, "
                f"{(scores < best - 1e-6).mean():.2%} not in the nearest list, "
                f"mean cosine {(best - scores).mean():.5f} lower",
                flush=True,
            )


def print_recall(name: str, centroids: np.ndarray, rows: np.ndarray, queries: np.ndarray) -> None:
    """Print recall@10 at each nprobe, if every row is in its nearest list."""
    quantizer = faiss.IndexFlatIP(rows.shape[1])
    index = faiss.IndexIVFFlat(quantizer, rows.shape[1], len(centroids), faiss.METRIC_INNER_PRODUCT)
    quantizer.add(centroids)
    index.is_trained = True
    index.add(rows)
    _, best = faiss.knn(queries, rows, 10, metric=faiss.METRIC_INNER_PRODUCT)
    found = []
    for index.nprobe in NPROBES:
        answers = index.search(queries, 10)[1]
        hits = [len(np.intersect1d(one, other)) for one, other in zip(answers, best, strict=True)]
        found.append(f"{index.nprobe}: {np.mean(hits) / 10:.4f}")
    print(f"{name}: recall@10 by nprobe {', '.join(found)}", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--vectors", type=Path, help="a .npy file of texts' vectors, instead of captions")
    arguments.add_argument("--lists", type=int, default=1_024)
    arguments.add_argument("--rows-per-list", type=int, default=64)
    options = arguments.parse_args()
    texts = np.load(options.vectors) if options.vectors else vectors(20_000)[0]
    faiss.normalize_L2(texts)
    print(f"{options.lists:,} lists of {options.rows_per_list} rows; {machine()}", flush=True)
    with faiss_threads(1):
        rows = between(texts, options.lists * options.rows_per_list + QUERIES)
        rows, queries = rows[:-QUERIES], rows[-QUERIES:]
        ours, cpu_s = timed(lambda: train_centroids(rows, options.lists, ROUNDS, seed=0))
        print(f"in two levels: trained in {cpu_s:.1f} s of CPU", flush=True)
        assignments(ours, between(texts, 8_192, seed=1))
        if options.lists <= MAX_FAISS_LISTS:
            print_recall("in two levels", ours, rows, queries)
            settings = {"niter": ROUNDS, "spherical": True, "max_points_per_centroid": 1 << 30}
            for name, kind in {"faiss": faiss.Kmeans, "SuperKMeans of faiss": faiss.SuperKmeans}.items():
                peer = kind(rows.shape[1], options.lists, **settings)
                _, cpu_s = timed(lambda peer=peer: peer.train(rows))
                print(f"{name}: trained in {cpu_s:.1f} s of CPU", flush=True)
                print_recall(name, peer.centroids, rows, queries)


if __name__ == "__main__":
    main()
