"""Measure the CPU times from which `manta plan` computes the hours of a night.

    python -m tests.benchmarks.rates

Prints the constants of `pipeline/flows/night/planning/cost.py`. Each step runs on one thread, on random
vectors, and its CPU time is counted, so that a busy machine changes little.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.index.build.build import fill, train, write_index
from pipeline.index.build.centroids import BLOCK_ROWS, GROUPS_PER_ROW, CentroidGroups, sum_by_group
from pipeline.index.build.index_shape import plan_index
from pipeline.index.build.kind_trial import Pilot
from pipeline.index.build.merge import FilledShard, count_duplicates, merge
from pipeline.index.build.sample import hash_order, id_bytes
from pipeline.index.library import faiss_threads
from pipeline.index.measure.kind_recall import KindVariant
from pipeline.index.measure.search_effort import set_effort
from pipeline.index.measure.truth import NOT_A_ROW, ExactTopK, Queries
from pipeline.index.structure import addresses_of
from pipeline.settings import CorpusSettings, IndexSettings
from pipeline.settings.index_kinds import DIMS_PER_BYTE
from pipeline.stats.moments import Moments, merge_tree
from pipeline.store.files.base import sha256_of
from pipeline.store.files.local import LocalStore
from pipeline.store.rows.address import to_addresses
from pipeline.text.ingest.ingest import ingest
from tests.benchmarks.machine import machine

_BATCH = 8_192


def cpu_s(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the least CPU seconds of a call, in all threads of this process."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def random_vectors(rows: int, dim: int) -> np.ndarray:
    """Return normal vectors (rows, dim) float32."""
    return np.random.default_rng(0).standard_normal((rows, dim), dtype=np.float32)


def batches(vectors: np.ndarray, first: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (addresses, vectors) in the batches that units are read in."""
    for start in range(0, len(vectors), _BATCH):
        block = vectors[start : start + _BATCH]
        yield np.arange(first + start, first + start + len(block)), block


def _queries(dim: int) -> Queries:
    """Return as many queries as a night samples, which are not rows."""
    return Queries(np.full(1_000, NOT_A_ROW), random_vectors(1_000, dim))


def ingestion(rows: int, characters: int) -> float:
    """Ingest texts of a length, and return nanoseconds for each row."""
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
        folder = Path(top, "corpus")
        folder.mkdir()
        texts = [(f"{number:010d} " + 200 * "word ")[:characters] for number in range(rows)]
        ids = [f"row-{number:010d}" for number in range(rows)]
        pq.write_table(pa.table({"id": ids, "text": texts}), folder / "part.parquet")
        settings, store = CorpusSettings(uri=str(folder)), LocalStore(f"{top}/root")
        return 1e9 / rows * cpu_s(lambda: ingest(settings, 32_768, store), repeats=1)


def moments(dim: int, rows: int = 32_768) -> None:
    """Compute the moments of a unit, write its vectors, and merge moments of units."""
    vectors = random_vectors(rows, dim)
    of_unit = cpu_s(lambda: [Moments.of(block) for _, block in batches(vectors)])
    content = Moments.of(vectors[:_BATCH]).to_bytes()
    merged = cpu_s(lambda: merge_tree(Moments.from_bytes(content) for _ in range(16)))
    print(
        f"d = {dim}: MOMENTS_NS_PER_PRODUCT = {1e9 * of_unit / rows / dim**2:.4f}; "
        f"MERGE_NS_PER_PRODUCT = {1e9 * merged / 16 / dim**2:.2f}"
    )
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
        file = Path(top, "vectors.parquet")
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dim)
        table = pa.table({"vector": column})
        written = cpu_s(lambda: pq.write_table(table, file, compression="none", use_dictionary=False))
        hashed = cpu_s(lambda: sha256_of(file))
        read = cpu_s(lambda: pq.read_table(file))
    per_byte = 1e9 / vectors.nbytes
    print(
        f"d = {dim}: writing, hashing, reading {per_byte * written:.2f}, {per_byte * hashed:.2f}, "
        f"{per_byte * read:.2f} ns a byte"
    )


def training(dim: int, nlist: int = 1_024) -> None:
    """Train the lists of an index."""
    plan = plan_index(64 * nlist, dim, IndexSettings(kind="ivf_flat", nlist=nlist, on_disk="never"))
    vectors = random_vectors(plan.train_rows, dim)
    products = 10 * plan.train_rows * nlist * dim
    print(f"d = {dim}: KMEANS_PRODUCTS_PER_S = {products / cpu_s(lambda: train(plan, None, vectors), 1):.3g}")


def assignment(dim: int, nlist: int = 16_384, rows: int = 2_048) -> None:
    """Find the nearest list of each row, exhaustively and in groups of lists; build a graph of them."""
    centroids, vectors = random_vectors(nlist, dim), random_vectors(BLOCK_ROWS, dim)
    faiss.normalize_L2(centroids)
    faiss.normalize_L2(vectors)
    flat, graph = faiss.IndexFlatIP(dim), faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT)
    flat.add(centroids)
    built = cpu_s(lambda: graph.add(centroids), repeats=1)
    exhaustive = cpu_s(lambda: flat.search(vectors[:rows], 1))
    groups = CentroidGroups.of(centroids)
    nearest = groups.nearest(vectors)
    grouped = cpu_s(lambda: groups.nearest(vectors))
    compared = len(groups.members) + GROUPS_PER_ROW * nlist / len(groups.members)
    added = cpu_s(lambda: sum_by_group(vectors, nearest, nlist))
    print(
        f"d = {dim}: FLAT_PRODUCTS_PER_S = {rows * nlist * dim / exhaustive:.3g}; "
        f"GROUPED_PRODUCTS_PER_S = {len(vectors) * compared * dim / grouped:.3g}; "
        f"GRAPH_BUILD_NS_PER_VALUE = {1e9 * built / nlist / dim:.0f}; "
        f"MEAN_NS_PER_VALUE = {1e9 * added / len(vectors) / dim:.2f}",
        flush=True,
    )


def filling(dim: int, kind: str, rows: int = 32_768) -> None:
    """Fill, merge and search shards, and find the exact neighbours of queries."""
    plan = plan_index(rows, dim, IndexSettings(kind=kind, nlist=16, train_rows=2_048, on_disk="never"))
    vectors, queries = random_vectors(rows, dim), _queries(dim)
    index = train(plan, None, vectors[: plan.train_rows])
    truth_s = cpu_s(lambda: ExactTopK(queries).search(batches(vectors)))
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as top:
        shards, fill_s = [], 0.0
        for number, half in enumerate(np.split(vectors, 2)):
            index.reset()
            start = time.process_time()
            result = fill(index, batches(half, int(to_addresses(number, 0))))
            fill_s += time.process_time() - start
            path = Path(top, f"{number}.faiss")
            write_index(index, path)
            probes = result.probe_addresses, result.probe_vectors
            shards.append(FilledShard(path, len(half), *probes, space_id="space"))
        size = sum(shard.path.stat().st_size for shard in shards)
        merge_s = cpu_s(lambda: write_index(merge(shards), Path(top, "merged.faiss")))
        merged = merge(shards)
    check_s = cpu_s(lambda: count_duplicates(addresses_of(merged)))
    set_effort(merged, 16)
    search_s = cpu_s(lambda: merged.search(queries.vectors, 10), repeats=1)
    print(
        f"d = {dim}, {kind}: CODE_NS_PER_VALUE = {1e9 * fill_s / rows / dim:.1f}; "
        f"TRUTH_PRODUCTS_PER_S = {len(queries) * dim * rows / truth_s:.3g}; "
        f"MERGE_NS_PER_BYTE = {1e9 * (merge_s - check_s) / size:.1f}; "
        f"CHECK_NS_PER_ROW = {1e9 * check_s / rows:.0f}; "
        f"SCAN_NS_PER_VALUE = {1e9 * search_s / len(queries) / rows / dim:.3f}",
        flush=True,
    )


def pilots(dim: int, rows: int = 10_000) -> None:
    """Measure one of the kinds that `auto` measures for a billion rows."""
    pilot = Pilot.of(random_vectors(rows, dim), None)
    spent_s = cpu_s(lambda: pilot.measure(KindVariant("ivf_rabitq_refine", DIMS_PER_BYTE)), repeats=1)
    print(f"d = {dim}: PILOT_NS_PER_VALUE = {1e9 * spent_s / rows / dim:.0f}", flush=True)


def ids(rows: int = 100_000) -> None:
    """Hash ids, by which rows are sampled, and count repeated ones, as a gate does."""
    names = pa.array([f"row-{number:010d}" for number in range(rows)])
    hashed = cpu_s(lambda: hash_order(id_bytes(names), "train"))
    counted = cpu_s(lambda: pc.count_distinct(names))
    print(f"ID_NS = {1e9 * hashed / rows:.0f}; GATES_NS_PER_ROW = {1e9 * counted / rows:.0f}", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--dim", type=int, nargs="+", default=[384, 1_024])
    options = arguments.parse_args()
    print(machine(), flush=True)
    ids()
    with faiss_threads(1):
        for dim in options.dim:
            for kind in ("ivf_rabitq_refine", "ivf_sq8", "ivf_flat"):
                filling(dim, kind)
            pilots(dim)
            moments(dim)
            assignment(dim)
            training(dim)
    short, long = (ingestion(100_000, characters) for characters in (40, 800))
    per_byte = (long - short) / (800 - 40)
    print(f"INGEST_NS_PER_ROW = {short - 40 * per_byte:.0f}; INGEST_NS_PER_BYTE = {per_byte:.2f}")


if __name__ == "__main__":
    main()
