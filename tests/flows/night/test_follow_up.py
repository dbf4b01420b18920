"""Nights end with exports and a prune. A failed one leaves the release published, shows in exit code and
metrics, and is tried again by the next night, whatever that night publishes.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, GatesRefused
from pipeline.flows.night.nightly import nightly
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.lease import SERVED, lease
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import content_faults
from tests.conftest import CommandResult
from tests.flows.conftest import ANY_CORPUS, job_arguments, sentences, write_corpus

Make = Callable[..., Job]
QUICK = ("whiten.mode=off", "index.kind=flat", "gates.recall_at_10=", *ANY_CORPUS)
pytestmark = pytest.mark.usefixtures("cluster")


def write_rows(folder: Path, count: int) -> set[str]:
    """Make a corpus of `count` rows tonight's. Returns the ids of these rows."""
    ids = [f"row-{number:05d}" for number in range(count)]
    pq.write_table(
        pa.table({"id": ids, "text": sentences(count), "lang": ["en"] * count}),
        folder / "corpus" / "part-0.parquet",
    )
    return set(ids)


@pytest.fixture
def job_of(tmp_path: Path, make_job: Make) -> Make:
    """Make a job over a corpus of one file, which keeps two releases and exports to files of changes."""
    for number in (1, 2):
        (tmp_path / "corpus" / f"part-{number}.parquet").unlink()
    after = f"release.after=[{{kind: parquet, target: {tmp_path / 'out'}, name: docs}}]"
    metrics = f"release.metrics_file={tmp_path / 'night.prom'}"
    return lambda *overrides: make_job(*QUICK, "release.keep=2", after, metrics, *overrides)


def exported_ids(folder: Path) -> set[str]:
    """Apply the change sets of a target in their order, with pyarrow alone."""
    ids = set[str]()
    for manifest in sorted(folder.glob("docs/*/manifest.json")):
        changes = json.loads(manifest.read_text())
        ids = set() if changes["is_whole"] else ids
        for kind, change in (("upserts", ids.update), ("deletes", ids.difference_update)):
            for file in changes[kind]:
                change(pq.read_table(folder / file["path"])["id"].to_pylist())
    return ids


@pytest.mark.slow
def test_every_night_exports_its_release_and_keeps_two_complete_ones(job_of: Make, tmp_path: Path):
    for number, count in enumerate((120, 130, 90), start=1):
        ids = write_rows(tmp_path, count)
        outcome = nightly(job_of(), Stages())
        assert (outcome.status, outcome.release, outcome.failures) == ("published", number, ())
        assert exported_ids(tmp_path / "out") == ids
    releases = Releases(open_store(tmp_path / "releases"))
    assert releases.numbers() == [2, 3]
    assert not any(content_faults(releases.store, releases.get(number)) for number in (2, 3))
    assert not any((tmp_path / "releases" / "releases" / "00000001").iterdir())
    releases.rollback(2)
    releases.hold()
    held = nightly(job_of(), Stages())
    assert (held.status, held.release, held.failures) == ("held", 2, ())
    assert len(exported_ids(tmp_path / "out")) == 130, "the target follows the release that is current"
    assert releases.numbers() == [2, 3], "the held release was the older one"


def test_a_failed_export_is_tried_again_by_a_night_that_publishes_nothing(job_of: Make, tmp_path: Path):
    ids = write_rows(tmp_path, 60)
    (tmp_path / "out").write_text("a file where the target's folder would be")
    stages = Stages()
    outcome = nightly(job_of(), stages)
    assert (outcome.status, outcome.release) == ("published", 1)
    assert [step["step"] for step in outcome.facts["after"] if "error" in step] == [
        f"export parquet {tmp_path / 'out'} docs"
    ]
    assert len(outcome.failures) == 1
    metrics = (tmp_path / "night.prom").read_text()
    assert 'ray_manta_nights_total{exit_code="75",outcome="published"} 1.0\n' in metrics
    assert f'ray_manta_follow_up_failed{{step="export parquet {tmp_path / "out"} docs"}} 1.0\n' in metrics
    assert 'ray_manta_follow_up_failed{step="prune"} 0.0\n' in metrics
    again = nightly(job_of(), Stages())
    assert (again.status, len(again.failures)) == ("unchanged", 1)
    (tmp_path / "out").unlink()
    last = nightly(job_of(), Stages())
    assert (last.status, last.failures) == ("unchanged", ())
    assert exported_ids(tmp_path / "out") == ids
    metrics = (tmp_path / "night.prom").read_text()
    assert 'ray_manta_nights_total{exit_code="0",outcome="unchanged"} 1.0\n' in metrics
    assert "manta_follow_up_failed{" in metrics
    assert "} 1.0" not in metrics.partition("# HELP ray_manta_nights_total")[0].partition("follow_up")[2]


@pytest.mark.slow
def test_a_prune_that_has_to_wait_is_made_up_for_also_after_a_refused_candidate(job_of: Make, tmp_path: Path):
    releases = Releases(open_store(tmp_path / "releases"))
    for count in (60, 61):
        write_rows(tmp_path, count)
        nightly(job_of(), Stages())
    write_rows(tmp_path, 62)
    with lease(releases.store, "duplicates/leases"):
        waiting = nightly(job_of(), Stages())
    assert (waiting.status, waiting.release, len(waiting.failures)) == ("published", 3, 1)
    assert "duplicates/leases" in waiting.failures[0]
    assert releases.numbers() == [1, 2, 3]
    write_rows(tmp_path, 10)
    with pytest.raises(GatesRefused):
        nightly(job_of("gates.max_deleted=0.1"), Stages())
    assert releases.numbers() == [2, 3]
    assert 'exit_code="5"' in (tmp_path / "night.prom").read_text(), "the refusal decides the exit code"


@pytest.mark.slow
def test_a_night_keeps_the_release_that_a_service_reads(job_of: Make, tmp_path: Path):
    write_rows(tmp_path, 60)
    nightly(job_of(), Stages())
    releases = Releases(open_store(tmp_path / "releases"))
    with lease(releases.store, SERVED, release=1):
        for count in (61, 62, 63):
            write_rows(tmp_path, count)
            assert not nightly(job_of(), Stages()).failures
        assert releases.numbers() == [1, 3, 4]
        assert not content_faults(releases.store, releases.get(1))
    assert not nightly(job_of(), Stages()).failures
    assert releases.numbers() == [3, 4]


def test_the_command_ends_with_75_if_only_what_follows_the_release_failed(
    manta: Callable[..., CommandResult], tmp_path: Path, encoder: Path
):
    write_corpus(tmp_path / "corpus", count=60, files=1)
    (tmp_path / "out").write_text("")
    after = f"release.after=[{{kind: parquet, target: {tmp_path / 'out'}}}]"
    arguments = [*job_arguments(tmp_path, encoder), *QUICK, after]
    ended = manta("nightly", "--json", *arguments)
    answer = json.loads(ended.out)
    assert (ended.code, answer["status"], answer["release"]) == (75, "published", 1)
    assert "error" in answer["after"][0]
    ended = manta("nightly", *arguments)
    assert ended.code == 75
    assert "release 1 with 60 rows stays current" in ended.out
    assert "  failed  export parquet" in ended.out
    assert "the next night tries again" in ended.out
    (tmp_path / "out").unlink()
    assert manta("nightly", *arguments).code == 0


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("{kind: parqet, target: out}", "parquet"),
        ("{kind: pgvector, target: 'postgresql://user:word@db/docs'}", "not shown"),
    ],
)
def test_a_target_that_can_never_be_used_is_refused_before_any_work(
    make_job: Make, target: str, found: str, tmp_path: Path
):
    with pytest.raises(ConfigError, match=found):
        nightly(make_job(f"release.after=[{target}]"), Stages())
    assert not (tmp_path / "releases").exists()


def test_keep_leaves_the_release_that_searches_may_still_read(make_job: Make):
    with pytest.raises(ConfigError, match=r"release\.keep"):
        make_job("release.keep=1")
