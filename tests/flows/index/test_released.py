"""The index of a release is searched part by part on workers, with the answers of one machine."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pipeline.flows.index import parts_on_workers
from pipeline.flows.index.measure_tasks import ScanTruth
from pipeline.flows.index.records import load_truth
from pipeline.flows.index.released import scan_release, use_index
from pipeline.flows.night.gates.audit import MeasureIndex
from pipeline.flows.rows import LiveRows
from pipeline.index.measure.measure import measure_parts
from pipeline.index.measure.searched_parts import SearchedParts
from pipeline.log import Stages
from tests.counted import CountedBucket, CountedWorkers
from tests.flows.index.extending import Chain
from tests.flows.index.test_several_parts import parts_of


@dataclass(frozen=True, eq=False)
class FindNearest:
    """Search an index for the ten nearest rows of each vector."""

    vectors: np.ndarray

    def __call__(self, parts: SearchedParts) -> tuple[np.ndarray, np.ndarray]:
        return parts.search(self.vectors, 10)


@pytest.fixture
def workers() -> CountedWorkers:
    """Return workers of this process, which note the names of their tasks."""
    return CountedWorkers(CountedBucket())


def released(root: Path, workers: CountedWorkers, *overrides: str) -> Chain:
    """Publish an index of six units of 100 rows, and a night that changed some of them."""
    chain = Chain(root, workers, ("index.kind=ivf_flat", "index.nlist=8", *overrides))
    for _ in range(6):
        chain.add(100)
    chain.kill(20).night()
    chain.add(10).kill(10).night()
    workers.bucket.longest.clear()
    return chain


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [((), 1), ((parts_of(200),), 3), ((parts_of(200), "index.rewrite_gib=1e-9"), 4)],
    ids=["one part", "several", "a delta"],
)
def test_each_part_is_searched_by_a_worker_of_its_own(
    overrides: tuple[str, ...],
    parts: int,
    tmp_path: Path,
    workers: CountedWorkers,
    monkeypatch: pytest.MonkeyPatch,
):
    chain = released(tmp_path, workers, *overrides)
    assert chain.before is not None
    opened = list[tuple[str, int]]()
    open_parts = parts_on_workers.open_parts
    monkeypatch.setattr(
        parts_on_workers,
        "open_parts",
        lambda *given: opened.append(workers.bucket.task) or open_parts(*given),
    )
    asked = np.array([chain.vectors[address] for address in chain.live()[::17]]) + 0.01
    scores, addresses = use_index(chain.context(Stages()), chain.before, FindNearest(asked))
    expected = chain.parts().search(asked, 10)
    np.testing.assert_allclose(scores, expected[0], atol=1e-6)
    np.testing.assert_array_equal(addresses, expected[1])
    if parts == 1:
        assert set(workers.bucket.longest) == {"UseIndex"}
    else:
        assert opened == [("SearchPart", number) for number in range(parts)]


def test_metrics_are_those_of_the_index_on_one_machine(tmp_path: Path, workers: CountedWorkers):
    chain = released(tmp_path, workers, parts_of(200))
    assert chain.before is not None
    assert chain.before.index.queries is not None
    assert chain.before.index.truth is not None
    truth = scan_release(chain.context(Stages()), chain.before, chain.before.index.queries)
    queries, neighbours = truth.load()
    stored = load_truth(chain.store, chain.before.index.truth)
    known = stored.addresses >= 0  # those of last night that are still known
    np.testing.assert_array_equal(neighbours.addresses[known], stored.addresses[known])
    found = use_index(chain.context(Stages()), chain.before, MeasureIndex(truth))
    expected = measure_parts(chain.parts(), queries, neighbours)
    changing = {"latency", "curve"}  # times
    assert found.model_dump(exclude=changing) == expected.model_dump(exclude=changing)
    assert [(each.effort, each.recall_at_10) for each in found.curve] == [
        (each.effort, each.recall_at_10) for each in expected.curve
    ]


def test_a_scan_counts_the_rows_without_a_usable_vector(tmp_path: Path, workers: CountedWorkers):
    chain = released(tmp_path, workers)
    assert chain.before is not None
    assert chain.before.index.queries is not None
    source = LiveRows(chain.store, chain.space_id, "id", chain.dead_file())
    task = ScanTruth(source, None, chain.before.index.queries)
    assert task.work(tuple(chain.units)).unusable == 0
    chain.centres = np.full((1, chain.dim), -0.3)  # `add` shifts rows by 0.3
    chain.add(7, spread=0.0, centre=0)
    assert task.work(tuple(chain.units)).unusable == 7
