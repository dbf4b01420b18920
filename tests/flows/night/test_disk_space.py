"""The space that preflight requires covers the files of a night, on a first night and beside a release."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.flows.night.disk_space import Room, check_room, needed
from pipeline.flows.night.nightly import nightly
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.local import LocalStore
from pipeline.store.store import open_store
from pipeline.text.corpus.reader import survey_files
from pipeline.text.corpus.sources import list_files
from tests.flows.conftest import write_corpus

pytestmark = pytest.mark.usefixtures("cluster")


def bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def room_of(job: Job) -> Room:
    files = list_files(job.corpus)
    rows = survey_files(files, job.corpus).rows
    return needed(job, open_store(job.release.root), {file: rows[file.name] or 0 for file in files})


def test_the_estimate_covers_what_a_night_writes_and_what_the_next_one_adds(
    make_job: Callable[..., Job], tmp_path: Path
):
    job = make_job("whiten.mode=off", "gates.recall_at_10=", "index.kind=flat", "encode.unit_rows=400")
    first = room_of(job)
    nightly(job, Stages())
    written = bytes_below(tmp_path / "releases")
    assert written <= sum(first.kept.values()) < 4 * written + (1 << 20)
    assert first.kept["encoder"] == bytes_below(next((tmp_path / "releases" / "encoders").iterdir()))
    assert room_of(job).kept["encoder"] == 0
    assert room_of(job).kept["vectors"] == 0
    write_corpus(tmp_path / "more", 400, files=1, seed=9)
    (tmp_path / "corpus" / "part-9.parquet").write_bytes((tmp_path / "more" / "part-0.parquet").read_bytes())
    second = room_of(job)
    assert 0 < second.kept["vectors"] <= first.kept["vectors"]
    assert (
        second.kept["index"] == first.kept["two indexes"]
    )  # one of twice as many rows; last night's is there already


def test_too_little_space_is_refused_with_the_parts(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    assert "vectors" in check_room(Room({"vectors": 10}, 5), store, "root")
    with pytest.raises(
        ConfigError, match=r"root: expected about .* free \(vectors .*, encoder .*, scratch .*\).*make room"
    ):
        check_room(Room({"vectors": 1 << 60, "encoder": 1 << 20}, 1 << 20), store, "root")
