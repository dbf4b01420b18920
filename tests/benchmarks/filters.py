"""Measure searches with filters beside searches without: time and recall, by the proportion of passing rows.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.filters ROOT --kinds ivf_flat ivf_sq8 hnsw

ROOT receives a corpus of captions with columns price (drawn at random) and animal (whether the caption names
a dog or a horse, so that passing rows are close together), an encoder of random word vectors, which are
averaged, and a release for each kind of index. Times are of one query at a time, on one thread.
"""

import argparse
import re
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.index.search import OpenRelease, open_release
from pipeline.index.threads import faiss_threads
from pipeline.log import Stages
from pipeline.settings import Job
from tests.benchmarks.machine import machine, print_table
from tests.benchmarks.night import captions

DIM, QUERIES, PRICES = 384, 200, 1_000_000
FILTERS = (
    *(f"price < {round(PRICES * proportion)}" for proportion in (0.5, 0.1, 0.05, 0.01, 0.001)),
    "animal",
    "not animal",
)


def main() -> None:
    """Publish a release for each kind, measure it, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument(
        "--kinds", nargs="+", default=["flat", "ivf_flat", "ivf_sq8", "ivf_rabitq_refine", "hnsw"]
    )
    parser.add_argument("--rows", type=int, default=135_070)
    arguments = parser.parse_args()
    texts = _write_corpus(arguments.root, arguments.rows)
    print(machine())
    for kind in arguments.kinds:
        release = _publish(arguments.root, kind)
        queries = release.encode(texts)
        with faiss_threads(1):
            rows = [_measure(release, queries, where) for where in (None, *FILTERS)]
        print_table(
            f"{kind}: {len(release):,} rows",
            rows,
            ["filter", "passing", "first, ms", "p50, ms", "p99, ms", "recall@10"],
        )


def _write_corpus(root: Path, rows: int) -> list[str]:
    """Write corpus and word vectors, and return the texts of queries, which are not in the corpus."""
    table = pq.read_table(captions(), columns=["id", "text"]).slice(0, rows)
    rng = np.random.default_rng(0)
    is_query = np.zeros(len(table), dtype=bool)
    is_query[rng.choice(len(table), QUERIES, replace=False)] = True
    words = sorted(set(re.findall(r"\w+", " ".join(table["text"].to_pylist()).lower())))
    (root / "corpus").mkdir(parents=True, exist_ok=True)
    vectors = rng.normal(size=(len(words), DIM)).astype(np.float32)
    with open(root / "words.txt", "w", encoding="utf-8") as file:
        for word, vector in zip(words, vectors, strict=True):
            print(word, *(f"{number:.4f}" for number in vector), file=file)
    table = table.append_column("price", pa.array(rng.integers(0, PRICES, len(table))))
    animals = pc.match_substring_regex(table["text"], r"\b(dog|dogs|horse|horses)\b", ignore_case=True)
    table = table.append_column("animal", animals)
    pq.write_table(table.filter(pa.array(~is_query)), root / "corpus" / "part.parquet", row_group_size=20_000)
    return list(table.filter(pa.array(is_query))["text"].to_pylist())


def _publish(root: Path, kind: str) -> OpenRelease:
    settings = (
        f"corpus.uri={root}/corpus",
        "corpus.keep=[price, animal]",
        f"encoder.path={root}/words.txt",
        f"index.kind={kind}",
        "encode.unit_rows=20000",
        "whiten.mode=off",
        f"release.root={root}/releases",
    )
    nightly(load_settings(Job, None, settings), Stages())
    return open_release(root / "releases")


def _measure(release: OpenRelease, queries: np.ndarray, where: str | None) -> list[str]:
    """Return a line of the table."""
    start = time.perf_counter()
    release.search(queries[:1], 10, where=where)
    first_ms = 1e3 * (time.perf_counter() - start)
    elapsed_ms, found = [], []
    for query in queries:
        start = time.perf_counter()
        found.append(release.search(query[None], 10, where=where)["id"].to_pylist())
        elapsed_ms.append(1e3 * (time.perf_counter() - start))
    exact = _exact(release, queries, where)
    hits = [
        len(set(answers) & set(expected)) / max(1, len(expected))
        for answers, expected in zip(found, exact, strict=True)
    ]
    passing = len(release) if where is None else release.count(where)
    p50, p99 = np.quantile(elapsed_ms, [0.5, 0.99])
    name = "none" if where is None else f"`{where}`"
    return [name, f"{passing:,}", f"{first_ms:.1f}", f"{p50:.2f}", f"{p99:.2f}", f"{np.mean(hits):.4f}"]


def _exact(release: OpenRelease, queries: np.ndarray, where: str | None) -> list[list[str]]:
    """Return the ids of the ten nearest passing rows, compared by numpy."""
    root = Path(release._releases.store.uri.removeprefix("file://"))
    table = pa.concat_tables(
        [
            pq.read_table(root / unit.path, columns=["id", "vector", "price", "animal"])
            for unit in release.manifest.units
        ]
    )
    if where is not None:
        number = re.sub(r"\D", "", where)
        is_passing = pc.less(table["price"], int(number)) if number else table["animal"]
        table = table.filter(pc.invert(is_passing) if where.startswith("not") else is_passing)
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, DIM)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = np.array(table["id"].to_pylist())
    scores = queries @ vectors.T
    return [ids[np.argsort(-row, kind="stable")[:10]].tolist() for row in scores]


if __name__ == "__main__":
    main()
