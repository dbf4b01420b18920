"""Measure what it costs to write a part of an index again without some rows, by kind of index.

python -m tests.benchmarks.erase [ROWS] [KIND ...]

CPU seconds are those of this process on one thread, without the building of the index. Recall@10 is that of
200 rows as queries, before and after, among the rows that stay.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.index.build.build import fill, read_index, train, write_index
from pipeline.index.build.index_shape import plan_index
from pipeline.index.build.merge import FilledShard, merge_on_disk
from pipeline.index.erase.part import erase_from_part
from pipeline.index.library import faiss_threads
from pipeline.index.measure.truth import ExactTopK, Queries
from pipeline.index.structure import set_index_effort
from pipeline.settings import IndexSettings
from tests.index.clustered import clustered

DIM, QUERIES = 64, 200
ON_DISK = " on disk"
KINDS = (
    "flat",
    "IVF1000,Flat",
    "IVF1000,Flat" + ON_DISK,
    "IVF1000,SQ8",
    "IVF1000,PQ8x8np",
    "IVF1000,PQ16x4fs",
    "IVF1000,RaBitQ,Refine(SQ8)",
    "hnsw",
)
ERASED = (1, 100, 1_000)
_BLOCK = 50_000


def batches(rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield addresses and vectors in clusters, a block at a time."""
    for start in range(0, rows, _BLOCK):
        count = min(_BLOCK, rows - start)
        yield np.arange(start, start + count), clustered(count, seed=start, dim=DIM).raw


def build(kind: str, rows: int, folder: Path) -> tuple[Path, ...]:
    """Build a part of an index; returns its files."""
    factory = kind.removesuffix(ON_DISK)
    plan = plan_index(rows, DIM, IndexSettings(kind=factory, train_rows=20_000))
    index = train(plan, None, clustered(20_000, dim=DIM).raw)
    added = fill(index, batches(rows), rows=rows)
    write_index(index, folder / "shard.faiss")
    if not kind.endswith(ON_DISK):
        return (folder / "shard.faiss",)
    shard = FilledShard(
        folder / "shard.faiss", added.rows, added.probe_addresses, added.probe_vectors, "space"
    )
    index, lists = merge_on_disk([shard], folder)
    write_index(index, folder / "index.faiss")
    return (folder / "index.faiss", lists)


def recall(files: tuple[Path, ...], queries: Queries, truth: np.ndarray, erased: np.ndarray) -> float:
    """Return recall@10 at a search effort of 64. Erased rows among the answers are left out."""
    index = read_index(files[0], on_disk=len(files) > 1)
    set_index_effort(index, 64)
    _, found = index.search(queries.vectors, 40)
    pairs = zip(found, queries.addresses, strict=True)
    others = [row[(row != own) & ~np.isin(row, erased)][:10] for row, own in pairs]
    return float(np.mean([np.isin(truth[row, :10], others[row]).mean() for row in range(len(truth))]))


def measure(kind: str, rows: int) -> None:
    """Print a line for each number of erased rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = build(kind, rows, folder)
        drawn = np.random.default_rng(1).permutation(rows)
        for count in ERASED:
            erased, own = drawn[:count], np.sort(drawn[-QUERIES:])
            vectors = np.concatenate([raw[np.isin(addresses, own)] for addresses, raw in batches(rows)])
            queries = Queries(own, vectors)
            kept = (
                (addresses[~np.isin(addresses, erased)], raw[~np.isin(addresses, erased)])
                for addresses, raw in batches(rows)
            )
            truth = ExactTopK(queries).search(kept).addresses
            (folder / str(count)).mkdir()
            start = time.process_time()
            held, written = erase_from_part(files, erased, folder / str(count))
            cpu_s, size = time.process_time() - start, sum(file.stat().st_size for file in written)
            assert held == count
            before, after = (recall(each, queries, truth, erased) for each in (files, written))
            print(
                f"{kind:<28} {rows:>9,} {count:>6,} {size / 1e6:>9.1f} "
                f"{size / count / 1e6:>10.3f} {cpu_s:>8.2f} "
                f"{1e3 * cpu_s / count:>11.2f}   {before:.4f} {after:.4f}",
                flush=True,
            )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(
        "kind                              rows erased MB written MB per row    CPU s  CPU ms/row   recall@10"
    )
    with faiss_threads(1):
        for kind in sys.argv[2:] or KINDS:
            measure(kind, rows)


if __name__ == "__main__":
    main()
