"""Short campaigns: nights with kills, truncated files, full disks and two drivers at once leave the same root
as undisturbed nights. The disturbed root is the folder "fire", the undisturbed one is "peace".
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.store.files.base import PARTIAL
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from tests.chaos.campaign import Campaign, Plans, Report
from tests.chaos.points import POINTS, Shot, point_of
from tests.flows.conftest import ROOT, job_arguments, sentences
from tests.models.folders import save_folder
from tests.server import SERVERS

pytestmark = pytest.mark.slow
NO_FAULTS = {"kills": 0.0, "points": 0, "cuts": 0, "full": 0, "twice": 0.0, "minutes": 9.0}


def kills(when: str, *points: str) -> tuple[Shot, ...]:
    return tuple(Shot(point, when, "kill") for point in points)


# For each night: whether it starts Ray, and its faults. After "torn" the file is truncated and the process is
# killed, after "cut" a file is truncated, and "full" is an error of a full disk.
SCHEDULE = (
    (
        False,
        (
            *kills("before", "corpus unit", "key table", "corpus record", "record", "index part", "commit"),
            *kills("after", "data", "part record", "manifest"),
        ),
    ),
    (
        False,
        (
            *kills("before", "data", "moments", "ids", "index file", "manifest"),
            *kills("after", "corpus record", "record", "grown record", "commit"),
            Shot("key table", "after", "torn"),
            Shot("moments", "after", "cut"),
            Shot("merged moments", "before", "full"),
        ),
    ),
    (True, (*kills("before", "record"), *kills("after", "data", "report"))),
)


def assert_sound(report: Report, least_kills: int) -> None:
    assert report.sound, report.table()
    assert (report.lost, report.doubled, report.differing) == (0, 0, 0)
    assert report.kills >= least_kills, report.table()


def test_nights_with_faults_end_as_nights_without(tmp_path: Path):
    report = Campaign(tmp_path, Plans(seed=11, rows=120, no_heads=True, **{**NO_FAULTS, "kills": 0.2})).play(
        SCHEDULE
    )
    assert_sound(report, 20)
    assert (report.nights, report.with_ray) == (3, 1)
    assert {"torn", "cut", "full"} <= set(report.tally.faults), report.table()


@pytest.mark.parametrize("point", ["corpus unit", "moments"])
def test_a_night_whose_file_disappears_ends_with_75_and_the_next_run_makes_it_again(
    point: str, tmp_path: Path
):
    """A lifecycle rule of a bucket does that, or somebody who tidies up. No row is lost."""
    night = (False, (Shot(point, "after", "gone"),))
    report = Campaign(tmp_path, Plans(seed=11, rows=60, no_heads=True, **NO_FAULTS)).play([night, night])
    assert_sound(report, 0)
    assert dict(report.tally.codes) == {"75": 2, "0": 2}, report.table()
    assert report.tally.faults["gone"] == 2, report.table()


def test_nights_killed_at_each_record_of_several_parts_end_as_nights_without(tmp_path: Path):
    kinds = ("merged part record", "grown record")
    schedule = [(False, (*kills("before", kind), *kills("after", kind))) for kind in kinds]
    report = Campaign(tmp_path, Plans(seed=11, rows=120, part_rows=50, **NO_FAULTS)).play(schedule)
    assert_sound(report, 4)
    assert set(report.tally.kills) == {f"{when} {kind}" for when in ("before", "after") for kind in kinds}
    current = Releases(open_store(tmp_path / "fire")).current()
    assert current is not None
    assert current.index.parts > 1


def test_a_worker_killed_repeatedly_at_one_unit_quarantines_no_row(tmp_path: Path):
    report = Campaign(tmp_path, Plans(seed=12, rows=40, **NO_FAULTS)).play(
        [(False, 5 * kills("before", "data"))]
    )
    assert_sound(report, 5)
    disturbed, undisturbed = (Releases(open_store(tmp_path / root)).current() for root in ("fire", "peace"))
    assert disturbed is not None
    assert undisturbed is not None
    assert disturbed.rows == undisturbed.rows
    assert disturbed.counts["quarantined"] == undisturbed.counts["quarantined"]
    assert disturbed.rows == disturbed.counts["total"] >= 40, "no row was quarantined"
    assert not list((tmp_path / "fire").rglob("*.attempts/*")), "attempts of a finished unit are deleted"


def test_two_drivers_at_once_publish_one_release_a_night(tmp_path: Path):
    report = Campaign(tmp_path, Plans(seed=13, rows=60, **{**NO_FAULTS, "twice": 1.0})).play(
        [(False, kills("after", "lease")), (False, kills("before", "manifest"))]
    )
    assert_sound(report, 2)
    assert [commit.kind for commit in Releases(open_store(tmp_path / "fire")).history()] == [
        "publish",
        "publish",
    ]


def test_without_hard_links_truncated_files_are_written_again(tmp_path: Path):
    """Without hard links a record gets its name before its content: a kill in between leaves it truncated."""
    torn = tuple(
        Shot(point, "after", "torn")
        for point in ("corpus record", "record", "training record", "manifest", "commit")
    )
    assert_sound(
        Campaign(tmp_path, Plans(seed=14, rows=60, no_links=True, **NO_FAULTS)).play([(False, torn)]), 5
    )


@pytest.mark.parametrize("store", list(SERVERS))
def test_nights_on_an_object_store_that_are_killed_end_as_nights_without(store: str, tmp_path: Path):
    shots = (*kills("before", "data", "manifest", "commit"), *kills("after", "record", "commit"))
    report = Campaign(tmp_path, Plans(seed=16, rows=40, store=store, **NO_FAULTS)).play([(False, shots)])
    assert_sound(report, 5)


def test_a_full_disk_ends_the_night_with_75_and_leaves_no_partial_file(tmp_path: Path):
    """A limit on file sizes simulates the full disk: the driver's files fit, the vectors of a unit do not."""
    (tmp_path / "corpus").mkdir()
    texts = sentences(3000)
    pq.write_table(
        pa.table({"id": [f"row-{row}" for row in range(3000)], "text": texts, "lang": ["en"] * 3000}),
        tmp_path / "corpus" / "part.parquet",
    )
    small = ("encode.unit_rows=3000", "cluster.small_rows=10000", "whiten.mode=off", "index.kind=flat")
    arguments = [*job_arguments(tmp_path, save_folder(tmp_path / "encoder", "bert")), *small]
    largest = 24 * 3000 * 8  # bytes; the vectors have 48 * 4 a row

    def night(limit: int) -> tuple[int, dict[str, object]]:
        program = (
            f"import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); "
            "runpy.run_module('jobs.nightly', run_name='__main__')"
        )
        command = [sys.executable, "-c", program, "--json", *arguments]
        ended = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return ended.returncode, json.loads(ended.stdout)

    code, answer = night(largest)
    assert (code, answer["error"]) == (75, "TransientError"), answer
    assert "space for a new file" in str(answer["message"])
    store = open_store(tmp_path / "releases")
    assert Releases(store).current() is None
    assert [entry.path for entry in store.list("units/vectors") if ".attempts/" not in entry.path] == []
    assert not [path for path in (tmp_path / "releases").rglob(f"{PARTIAL}*") if path.is_file()]
    code, answer = night(resource.RLIM_INFINITY)
    assert (code, answer["status"], answer["rows"]) == (0, "published", 3000)


def test_every_file_of_a_release_has_a_named_fault_point(tmp_path: Path):
    Campaign(tmp_path, Plans(seed=15, rows=40, **NO_FAULTS)).play([(False, ())])
    paths = [entry.path for entry in open_store(tmp_path / "fire").list()]
    assert {"manifest", "commit", "corpus unit", "data", "index file"} <= set(map(point_of, paths))
    assert [path for path in paths if point_of(path) not in POINTS] == []
