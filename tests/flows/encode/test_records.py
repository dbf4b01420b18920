"""Later nights do not read the records of a release's units one by one."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.flows.encode.encode import load_records
from pipeline.flows.night.nightly import nightly
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Corpus
from pipeline.store.releases.release import Releases
from tests.faults import FaultyProxy, Request
from tests.flows.conftest import job_arguments, write_corpus

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store the units of every release as a table."""
    monkeypatch.setattr("pipeline.store.records.release_units.MAX_LISTED", 0)


def test_records_from_a_release_equal_the_stored_ones(make_job: Callable[..., Job]):
    job = make_job("whiten.mode=off", "index.kind=flat")
    nightly(job, Stages())
    store = open_store(job.release.root)
    current = Releases(store).get_or_current(None)
    corpus = Corpus.read(store, current.corpus)
    stored = load_records(store, corpus, job, None)
    assert len(stored) == len(corpus.units) == 8
    assert load_records(store, corpus, job, current) == stored
    first, second, third, *others = current.units
    for unit in others:
        store.write(unit.record, b"unread")
    store.delete(first.record)
    store.delete(second.path)
    assert third.moments is not None
    store.write(third.moments.path, b"another size")
    undamaged = {unit.corpus.sha256 for unit in others}
    assert load_records(store, corpus, job, current) == {name: stored[name] for name in undamaged}


@pytest.fixture
def requests(faulty: FaultyProxy, s3: str, encoder: Path, tmp_path: Path) -> Callable[[int], list[Request]]:
    """Run a night with `changed` changed rows over a root in S3. Returns the requests of its driver."""
    write_corpus(tmp_path / "corpus", 120, files=2)
    arguments = job_arguments(tmp_path, encoder)
    root = f"release.root={s3}/{tmp_path.name}"
    more = ("corpus.keep=[]", "encode.unit_rows=12", "whiten.mode=off", "index.kind=flat", root)
    job = load_settings(Job, None, (*arguments, *more))

    def run(changed: int) -> list[Request]:
        part = tmp_path / "corpus" / "part-0.parquet"
        table = pq.read_table(part)
        texts = [f"again {text}" for text in table["text"].to_pylist()[:changed]]
        others = table["text"].to_pylist()[changed:]
        if changed:
            pq.write_table(table.set_column(1, "text", pa.array([*texts, *others])), part)
        faulty.log = []
        nightly(job, Stages())
        return faulty.log

    run(0)
    return run


def test_later_nights_do_not_read_the_files_of_unchanged_units(requests: Callable[[int], list[Request]]):
    def paths(log: list[Request], part: str) -> set[str]:
        return {request.path for request in log if request.method != "PUT" and f"/{part}/" in request.path}

    nothing = requests(0)
    assert not paths(nothing, "units/vectors")
    assert not paths(nothing, "units/corpus")
    assert len(nothing) < 40
    changed = requests(3)
    assert 0 < len(paths(changed, "units/vectors")) < 5, "the files of the one new unit"
