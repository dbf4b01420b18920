"""Nights whose index has several parts: report, search, gates again, rollback, pruning and checking."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.flows.night.gates.audit import remeasure
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers.cluster import connect
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import content_faults
from tests.counted import CountedBucket, CountedWorkers
from tests.flows.conftest import current_manifest, part_size, sentences


@pytest.fixture
def bucket() -> Iterator[CountedBucket]:
    """Let nights run on workers of this process; the bucket records the names of their tasks."""
    bucket = CountedBucket()
    with connect(ClusterSettings(), Stages(), local=CountedWorkers(bucket)):
        yield bucket


def searched(root: str) -> dict[str, str]:
    """Search the current release for texts of its corpus. Returns the id that each of them finds."""
    texts = sentences(400)[::40]
    return dict(zip(texts, open_release(root).search(texts, 1)["id"].to_pylist(), strict=True))


def faults(root: str, manifest: ReleaseManifest) -> list[object]:
    return list(content_faults(open_store(root), manifest))


def test_an_index_of_several_parts_goes_through_nights_rollback_and_pruning(
    make_job: Callable[..., Job], tmp_path: Path, bucket: CountedBucket
):
    queries = tmp_path / "queries.txt"
    queries.write_text("\n".join(sentences(20, seed=5)))
    job = make_job(
        "index.kind=flat",
        part_size(150),
        "whiten.mode=off",
        f"gates.queries={queries}",
    )
    first = nightly(job, Stages())
    root, before = Path(first.root), current_manifest(Path(first.root))
    assert before.index.parts == 3
    found = searched(first.root)
    assert list(found.values()) == [f"row-{row:05d}" for row in range(0, 400, 40)]

    rows = pq.read_table(tmp_path / "corpus" / "part-0.parquet")
    pq.write_table(rows.slice(1), tmp_path / "corpus" / "part-0.parquet")  # without row-00000
    added = pa.table({"id": ["new-1"], "text": ["a new dog"], "lang": ["en"]})
    pq.write_table(added, tmp_path / "corpus" / "part-9.parquet")
    second = nightly(job, Stages())
    after = current_manifest(root)
    assert (second.status, second.rows, after.index.parts) == ("published", 400, 3)
    old, new = before.index_parts(), after.index_parts()
    assert [one.files == other.files for one, other in zip(old, new, strict=True)] == [False, True, False]
    assert "recall@10 queries" in Path(second.report).read_text()
    assert open_release(root).search("a new dog", 1)["id"].to_pylist() == ["new-1"]

    bucket.longest.clear()
    again = remeasure(job, Stages())
    assert {"SearchPart", "DescribePart", "ScanTruth"} <= set(bucket.longest)
    assert "UseIndex" not in bucket.longest
    assert all(gate.passed for gate in again.gates.values())
    assert again.measured.recall["10"].value == 1.0
    assert again.measured.file_bytes == sum(
        Path(root, file.path).stat().st_size for file in after.index.files
    )

    assert faults(first.root, after) == []
    releases = Releases(open_store(root))
    releases.rollback(1)
    assert searched(first.root) == found
    pruned = prune(releases, keep=1)
    assert (pruned.kept, pruned.removed) == ((1,), (2,))
    gone = {file.path for file in after.index.files} - {file.path for file in before.index.files}
    assert len(gone) == 2
    assert not any(Path(root, path).exists() for path in gone)
    assert faults(first.root, before) == []
    third = nightly(job, Stages())
    assert (third.status, third.rows, current_manifest(root).index.parts) == ("published", 400, 3)
    ids = open_release(root).search(np.ones((1, 48), np.float32), 400)["id"].to_pylist()
    assert len(set(ids)) == 400
