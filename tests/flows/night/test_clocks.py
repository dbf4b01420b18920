"""Nights whose clock is hours off: each continues from the previous one, and prune deletes no file in use."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.flows.night.nightly import nightly
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from tests.flows.conftest import sentences, write_corpus


@pytest.mark.usefixtures("cluster")
def test_nights_with_clocks_thirty_hours_ahead_and_forty_behind_follow_each_other(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
):
    job = make_job("whiten.mode=off", "index.kind=flat", "gates.recall_at_10=")
    clock, ns = time.time, time.time_ns
    for number, hours in enumerate((0, 30, -40, 0), start=1):
        monkeypatch.setattr(time, "time", lambda hours=hours: clock() + 3600 * hours)
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: ns() + 3600 * 10**9 * hours)
        write_corpus(Path(job.corpus.uri), count=100 + number, files=1, seed=number)
        outcome = nightly(job, Stages())
        assert (outcome.status, outcome.release) == ("published", number)
        assert nightly(job, Stages()).status == "unchanged"
        found = open_release(job.release.root).search(sentences(100 + number, seed=number)[:3], 1)
        assert found["id"].to_pylist() == ["row-00000", "row-00001", "row-00002"]
        releases = Releases(open_store(job.release.root))
        assert prune(releases, keep=1).kept == (number,)
        current = releases.current()
        assert current is not None
        assert all(releases.store.exists(file.path) for file in current.references())
    assert [commit.release for commit in releases.history()] == [1, 2, 3, 4]
