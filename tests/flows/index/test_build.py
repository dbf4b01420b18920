"""The stored files of a built index have the measured values."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import faiss
import numpy as np
import pytest

from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.tasks import Item, Pool, Result, Task
from pipeline.index.measure.search_effort import get_effort
from pipeline.log import RunningStage
from tests.counted import CountedBucket, CountedWorkers
from tests.flows.index.extending import Chain

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.mark.parametrize("on_disk", ["never", "always"])
def test_a_build_writes_files_with_the_measured_values(cluster: Workers, tmp_path: Path, on_disk: str):
    overrides = ("index.kind=ivf_flat", "index.nlist=30", f"index.on_disk={on_disk}", "index.queries=200")
    chain = Chain(tmp_path / "root", cluster, overrides).add(1_000).add(2_000)
    built = chain.night()
    chain.assert_sound(exhaustive=False)
    suffixes = [".faiss", ".ivfdata"] if on_disk == "always" else [".faiss"]
    assert [Path(file.path).suffix for file in built.files] == suffixes
    measured, parts = built.measured, chain.parts()
    assert (measured.rows, measured.queries, measured.duplicate_addresses) == (3_000, 100, 0)
    assert measured.file_bytes == sum(chain.store.size(file.path) for file in built.files)
    assert measured.recall["10"].value > 0.9
    assert measured.effort == get_effort(parts)
    assert built.examples
    for example in built.examples:
        found = parts.search(chain.vectors[example.query][None], 5)[1][0]
        others = found[found != example.query][: len(example.neighbours)]
        np.testing.assert_array_equal([address for address, _ in example.neighbours], others)


def test_a_worker_uses_the_gpus_that_it_was_assigned_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Indexes on the CPU are in the place of those on a GPU."""
    copied: list[faiss.Index] = []

    def copy_to_gpus(index: faiss.Index) -> faiss.Index:
        copied.append(index)
        return index

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", copy_to_gpus)
    files, uses = [], []
    settings = ("index.kind=ivf_flat", "index.nlist=8")
    for name, assigned, more in (
        ("none", False, ()),
        ("to train", True, ()),
        ("to fill", False, ("cluster.index_gpus=0.5",)),
    ):
        monkeypatch.setattr("pipeline.flows.index.tasks.gpu_assigned", lambda assigned=assigned: assigned)
        copied.clear()
        chain = Chain(tmp_path / name, CountedWorkers(CountedBucket()), (*settings, *more))
        chain.add(600).add(400)
        files.append([file.sha256 for file in chain.night().files])
        uses.append(len(copied))
    assert uses == [0, 1, 4], "the centroids, and for each of two shards the lists and the queries"
    assert files[0] == files[1] == files[2]


class NotedMemory(CountedWorkers):
    """Workers that note the memory which each kind of task asks for, in bytes."""

    memory: dict[str, float]

    def map_units(
        self, task: Task[Item, Result], items: Sequence[Item], pool: Pool, bar: RunningStage | None = None
    ) -> Iterator[tuple[int, Result]]:
        self.memory = {**getattr(self, "memory", {}), type(task).__name__: pool.memory}
        return super().map_units(task, items, pool, bar)


@pytest.mark.parametrize("kind", ["flat", "ivf_flat", "hnsw"])
def test_filling_asks_for_twice_the_memory_of_its_largest_shard(tmp_path: Path, kind: str):
    workers = NotedMemory(CountedBucket())
    chain = Chain(tmp_path, workers, (f"index.kind={kind}", "index.shards=3"))
    for rows in (100, 100, 400):
        chain.add(rows)
    chain.night()
    assert chain.built is not None
    # the index holds 600 rows in the file, and a shard at most 400
    largest = 2 * chain.built.measured.file_bytes * (400 if kind != "hnsw" else 600) / 600
    assert 0.9 * largest < workers.memory["FillShard"] < 1.4 * largest
