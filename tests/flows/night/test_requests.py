"""Requests of a night to an object store: their number for each unit does not depend on the number of units,
and in no stage does a sequence of requests grow with the units.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers.cluster import connect
from pipeline.index.build.index_shape import GIB
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from tests.counted import CountedBucket, CountedWorkers, RequestPath, counted_bucket
from tests.flows.conftest import job_arguments, write_corpus

pytestmark = pytest.mark.slow
UNIT_ROWS, FEW, MANY = 20, 24, 72
# Sizes by which a night divides its work, for units of so few rows.
_SCALED = {
    "pipeline.flows.night.ingest_workers.SMALL_INPUT": 0,
    "pipeline.flows.night.gates.as_searcher._SMALL_BYTES": 0,
    "pipeline.text.key_tables.keys.BUCKET_ROWS": 4 * UNIT_ROWS,
    "pipeline.text.ingest.bucket_plan._MAX_BUCKETS": 4,
    "pipeline.flows.index.build._SHARD_VALUES": 5 * UNIT_ROWS * 48,
    "pipeline.flows.index.build._SHARD_ROWS_PER_LIST": 1,
    "pipeline.flows.transform.moments.MERGE_GROUP": 4,
    "pipeline.flows.encode.samples.LEAST_SAMPLED_ROWS": 1,
}
_PART_GIB = 10 * UNIT_ROWS * (4 * 48 + 8) / GIB
# Each bucket of these reads from the files of all groups or parts before it: buckets times groups.
_SHUFFLES = ("ResolveBucket", "WriteUnits", "ResolveTexts", "GatherCopies")
_PER_UNIT = 40  # requests of all other tasks and the driver
_FILES_OF_UNIT = 9  # requests of the gate that opens the candidate: one for each new file
_IN_THREADS = 1 / 4  # requests of one item for each further unit: small files that threads read together
# A stage that makes requests for every unit, one after the other, is longer: 20 rows are a unit or two.
_WHOLE = 1.5  # requests on the longest path of a whole night, for each further 20 rows


class Night(NamedTuple):
    """Requests of a night: their number by task ("" is the driver), the longest path of an item of each task,
    and the longest path of the night.
    """

    requests: Counter[str]
    items: dict[str, RequestPath]
    whole: RequestPath


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountedBucket]:
    """Return a bucket; everything that is divided by rows is divided as for units of 32,768 rows or more."""
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    for name, scaled in _SCALED.items():
        monkeypatch.setattr(name, scaled)
    # a child could not open the bucket, which is in this process; here its requests are counted, too
    monkeypatch.setattr(
        "pipeline.flows.night.gates.as_searcher.run_in_child", lambda work, *_: work(lambda _: None)
    )
    with counted_bucket() as counted:
        yield counted


def nights(units: int, folder: Path, encoder: Path, bucket: CountedBucket) -> list[Night]:
    """Run a first night over this number of units, and a second one over 15 % more rows."""
    found = []
    for seed in (0, 1):
        write_corpus(folder / "corpus", units * UNIT_ROWS + 3 * seed * units, files=2)
        overrides = (
            *job_arguments(folder, encoder),
            f"encode.unit_rows={UNIT_ROWS}",
            f"release.root=s3://bucket/{units}",
            "index.kind=ivf_flat",
            "index.nlist=2",
            "index.shards=null",
            f"index.part_gib={_PART_GIB:.12f}",
            "gates.recall_at_10=0.1",
        )
        bucket.log.clear()
        bucket.longest.clear()
        bucket.path = RequestPath()
        with connect(ClusterSettings(), Stages(), local=CountedWorkers(bucket)):
            assert nightly(load_settings(Job, None, overrides), Stages()).status == "published"
        found.append(Night(Counter(each.task for each in bucket.log), dict(bucket.longest), bucket.path))
    return found


def test_requests_grow_with_the_units_and_no_sequence_of_them_does(
    bucket: CountedBucket, tmp_path: Path, encoder: Path
):
    few = nights(FEW, tmp_path / "few", encoder, bucket)
    many = nights(MANY, tmp_path / "many", encoder, bucket)
    longest = Counter[str]()
    for night in few:
        longest |= Counter({task: path.requests for task, path in night.items.items()})
    for before, after in zip(few, many, strict=True):
        print(before, after, sep="\n")
        for task, path in after.items.items():
            assert path.requests <= longest[task] + _IN_THREADS * (MANY - FEW) + 4, task
        assert after.requests["TryCandidate"] < _FILES_OF_UNIT * MANY
        others = (*_SHUFFLES, "TryCandidate")
        linear = sum(after.requests.values()) - sum(after.requests[task] for task in others)
        assert linear < _PER_UNIT * MANY
        assert after.whole.requests - before.whole.requests < _WHOLE * (MANY - FEW)
