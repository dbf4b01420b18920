"""Measure searches with filters beside searches without: time and recall, by the proportion of passing rows.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.filters ROOT --kinds ivf_flat ivf_sq8 hnsw

ROOT receives a corpus of captions with columns price (drawn at random) and animal (whether the caption names
a dog or a horse, so that passing rows are close together), an encoder of random word vectors, which are
averaged, and a release for each kind of index. Times are of one query at a time, on one thread.
"""

import argparse
import functools
import re
import time
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.index.library import faiss_threads
from pipeline.index.search.search import OpenRelease, open_release
from pipeline.index.search_parameters import ivf_parameters
from pipeline.index.structure import unwrap
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.where.parse import parse_where
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
        if kind.startswith("ivf") and "refine" not in kind:
            with faiss_threads(1):
                rows = [_selectors(release, queries, where) for where in FILTERS]
            print_table(f"{kind}: selectors", rows, ["filter", "nprobe", "bitmap, ms", "hash set, ms"])


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
    ids, vectors, prices, animals = _rows(Path(release._releases.store.uri.removeprefix("file://")))
    is_passing = np.ones(len(ids), dtype=bool)
    if where is not None:
        number = re.sub(r"\D", "", where)
        is_passing = prices < int(number) if number else animals ^ where.startswith("not")
    names, scores = ids[is_passing], queries @ vectors[is_passing].T
    best = np.argpartition(-scores, min(10, len(names) - 1), axis=1)[:, :10]
    return [names[row].tolist() for row in best]


@functools.cache
def _rows(root: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return ids, normalized vectors, prices and animals of all rows; every release has the same."""
    units = open_release(root).manifest.units
    names = ["id", "vector", "price", "animal"]
    table = pa.concat_tables([pq.read_table(root / unit.path, columns=names) for unit in units])
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, DIM)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    columns = (np.array(table[name].to_pylist()) for name in ("id", "price", "animal"))
    ids, prices, animals = columns
    return ids, vectors, prices, animals


def _selectors(release: OpenRelease, queries: np.ndarray, where: str) -> list[str]:
    """Return the times of inverted lists with the bitmap of addresses and with faiss's hash set."""
    part, members = release._files._parts.base, release._files.filters.select(where).members
    ids = release._files.ids
    passing = np.concatenate(list(ids.matching(parse_where(where, ids.schema))))
    nprobe = min(unwrap(part).nlist, unwrap(part).nprobe * len(release) // len(passing))
    times = []
    for selector in (members.selector(), faiss.IDSelectorBatch(passing)):
        start = time.perf_counter()
        part.search(queries, 10, params=ivf_parameters(part, nprobe, selector))
        times.append(1e3 * (time.perf_counter() - start) / len(queries))
    return [f"`{where}`", f"{nprobe:,}", *(f"{each:.2f}" for each in times)]


if __name__ == "__main__":
    main()
