"""The space that preflight requires covers the files of a night, on a first night and beside a release."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.planning.preflight import SpaceEstimate, check_disk_space, estimate_space
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.local import LocalStore
from pipeline.store.files.open_store import open_store
from pipeline.text.formats.reader import survey_files
from pipeline.text.sources.sources import list_files
from tests.flows.conftest import write_corpus

pytestmark = pytest.mark.usefixtures("cluster")


def bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def estimate_of(job: Job) -> SpaceEstimate:
    files = list_files(job.corpus)
    rows = survey_files(files, job.corpus).rows
    return estimate_space(job, open_store(job.release.root), {file: rows[file.name] or 0 for file in files})


def test_the_estimate_covers_the_files_of_this_night_and_the_next(
    make_job: Callable[..., Job], tmp_path: Path
):
    job = make_job("whiten.mode=off", "gates.recall_at_10=", "index.kind=flat", "encode.unit_rows=400")
    first = estimate_of(job)
    nightly(job, Stages())
    written = bytes_below(tmp_path / "releases")
    assert written <= sum(first.stored.values()) < 4 * written + (1 << 20)
    assert first.stored["encoder"] == bytes_below(next((tmp_path / "releases" / "encoders").iterdir()))
    assert estimate_of(job).stored["encoder"] == 0
    assert estimate_of(job).stored["vectors"] == 0
    write_corpus(tmp_path / "more", 400, files=1, seed=9)
    (tmp_path / "corpus" / "part-9.parquet").write_bytes((tmp_path / "more" / "part-0.parquet").read_bytes())
    second = estimate_of(job)
    assert 0 < second.stored["vectors"] <= first.stored["vectors"]
    # The new index has twice as many rows, and last night's index is stored already.
    assert second.stored["index"] == first.stored["two indexes"]


def test_too_little_space_is_refused_listing_the_parts(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    assert "vectors" in check_disk_space(SpaceEstimate({"vectors": 10}, 5), store, "root")
    with pytest.raises(
        ConfigError, match=r"root: expected about .* free \(vectors .*, encoder .*, scratch .*\).*make room"
    ):
        check_disk_space(SpaceEstimate({"vectors": 1 << 60, "encoder": 1 << 20}, 1 << 20), store, "root")
