"""Nights that publish nothing are in the list and on the page of releases, with time, reason and report."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError, GatesRefused
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.report.releases_page import end_recorded
from pipeline.log import Stages, listening
from pipeline.settings import Job
from pipeline.store.files.local import LocalStore
from pipeline.store.releases.release import Releases
from pipeline.store.releases.unpublished import record_night, unpublished_nights
from tests.conftest import CommandResult
from tests.report.pages import Page

Make = Callable[..., Job]


def drop_rows(folder: Path, rows: int) -> None:
    """Remove the first rows of a file of the corpus."""
    part = folder / "corpus" / "part-0.parquet"
    pq.write_table(pq.read_table(part).slice(rows), part)


@pytest.mark.usefixtures("cluster")
def test_refused_failed_and_waiting_nights_are_listed_with_reason_and_report(
    make_job: Make, tmp_path: Path, manta: Callable[..., CommandResult]
):
    plain = ("whiten.mode=off", "gates.recall_at_10=")
    job = make_job(*plain)
    root = Path(job.release.root)
    nightly(job, Stages())
    assert json.loads(manta("releases", "list", str(root), "--json").out)["unpublished"] == []
    drop_rows(tmp_path, 2)
    with pytest.raises(GatesRefused):
        nightly(make_job(*plain, "gates.max_size_gib=1e-9"), Stages())
    with pytest.raises(DataError):
        nightly(make_job(*plain, "corpus.text=absent"), Stages())
    assert manta("releases", "hold", str(root), "--reason", "an audit").code == 0
    nightly(job, Stages())

    listed = json.loads(manta("releases", "list", str(root), "--json").out)["unpublished"]
    assert [(night["status"], night["exit_code"]) for night in listed] == [
        ("waiting", 0),
        ("failed", 3),
        ("refused", 5),
    ]
    waiting, failed, refused = listed
    assert "held" in waiting["reason"]
    assert "an audit" in waiting["reason"]
    assert "absent" in failed["reason"]
    assert failed["report"] is None
    assert "GiB of index files" in refused["reason"]
    page = (root / "index.html").read_text()
    for night in (waiting, refused):
        assert (root / night["report"]).is_file()
        assert f'href="{night["report"]}"' in page
    shown = " ".join(Page(page).words.split())
    assert "Nights that published nothing" in shown
    assert all(night["reason"] in shown for night in listed)
    printed = manta("releases", "list", str(root)).out
    assert all(night["reason"] in printed and night["at"] in printed for night in listed)


@pytest.mark.usefixtures("cluster")
def test_a_night_that_fails_before_there_is_a_root_leaves_no_file(make_job: Make):
    job = make_job("corpus.text=absent")
    with pytest.raises(DataError):
        nightly(job, Stages())
    assert not list(Path(job.release.root).rglob("*.json"))


def test_the_oldest_records_go_and_a_damaged_one_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.store.releases.unpublished._MAX_NIGHTS", 3)
    store = LocalStore(str(tmp_path))
    for _ in range(5):
        record_night(store, "failed", "line\n" * 1_000)
    assert len(unpublished_nights(store)) == 3
    assert all("\n" not in night.reason and len(night.reason) <= 1_000 for night in unpublished_nights(store))
    next(tmp_path.rglob("candidates/nights/*.json")).write_text("{}")
    with listening() as said:
        assert len(unpublished_nights(store)) == 2
    assert any("left out of the list" in line for line in said)


def test_a_store_that_does_not_answer_delays_the_error_by_seconds_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Hanging(LocalStore):
        """A store whose listings wait until the test ends."""

        def list(self, prefix="", suffix=""):
            ended.wait(60)
            return super().list(prefix, suffix)

    monkeypatch.setattr("pipeline.flows.night.report.releases_page._RECORDING_S", 0.2)
    ended, start = threading.Event(), time.monotonic()
    with listening() as said, pytest.raises(DataError), end_recorded(Releases(Hanging(str(tmp_path)))):
        raise DataError("here", "one thing", "another", "do this")
    assert time.monotonic() - start < 10
    assert any("the store does not answer" in line for line in said)
    ended.set()
