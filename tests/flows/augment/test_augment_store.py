"""Units of an augmentation in the store: pruned, damaged, and in S3."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.flows.augment.augment import augment
from pipeline.log import Stages
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from tests.flows.augment.augmenting import worked_on
from tests.flows.augment.shuffled import LENIENT, MakeJob, rows_of, shuffles

pytestmark = pytest.mark.usefixtures("cluster", "shuffle_method")


def test_prune_keeps_the_newest_manifests_and_their_units(make_job: MakeJob, tmp_path: Path):
    settings = (LENIENT, "augment.unit_rows=50", shuffles(tmp_path))
    first = augment(make_job(*settings), Stages())
    pq.write_table(
        pa.table({"id": ["new"], "text": ["one more sentence than before"], "lang": ["en"]}),
        tmp_path / "corpus" / "part-9.parquet",
    )
    second = augment(make_job(*settings), Stages())
    pruned = prune(Releases(second.store), keep=1, grace_s=-60)
    assert pruned.files > 0
    assert not second.store.exists(first.series.path(1))
    assert len(rows_of(second)) == 401
    (tmp_path / "journal").unlink()
    pq.write_table(
        pa.table({"id": ["newer"], "text": ["and one more"], "lang": ["en"]}),
        tmp_path / "corpus" / "part-10.parquet",
    )
    assert len(rows_of(augment(make_job(*settings), Stages()))) == 402
    first_stage, second_stage = worked_on(tmp_path / "journal")
    assert first_stage == "a and one more"
    assert sorted(second_stage.split()) == sorted(["b", "a", "and", "one", "more"])


def test_damaged_unit_is_written_again(make_job: MakeJob, tmp_path: Path):
    settings = (LENIENT, "augment.unit_rows=50", "augment.variants.cut=crop")
    first = augment(make_job(*settings), Stages())
    rows, path = rows_of(first), tmp_path / "releases" / first.manifest.units[3].path
    path.write_bytes(path.read_bytes()[:-20])
    assert rows_of(augment(make_job(*settings), Stages())) == rows


def test_corpus_in_s3_is_augmented_in_s3(
    s3: str, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    store = open_store(f"{s3}/augmenting")
    for file in sorted((tmp_path / "corpus").glob("*")):
        store.write(f"corpus/{file.name}", file.read_bytes())
    settings = (LENIENT, "augment.unit_rows=50", "augment.variants.cut=crop", shuffles(tmp_path))
    remote = augment(
        make_job(*settings, f"corpus.uri={s3}/augmenting/corpus", f"release.root={s3}/augmenting/releases"),
        Stages(),
    )
    assert remote.uri.startswith("s3://")
    assert remote.report.startswith("s3://")
    assert rows_of(remote) == rows_of(augment(make_job(*settings), Stages()))
    again = augment(
        make_job(*settings, f"corpus.uri={s3}/augmenting/corpus", f"release.root={s3}/augmenting/releases"),
        Stages(),
    )
    assert (again.status, again.number) == ("unchanged", 1)
