"""One changed byte of a published file is reported with its sha256, by a searcher or by the next night."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.errors import DataError, PipelineError
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.publish import NightOutcome
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Corpus
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases
from tests.flows.conftest import current_manifest, job_arguments, sentences, write_corpus

pytestmark = pytest.mark.usefixtures("cluster")
SETTINGS = ("whiten.mode=off", "gates.recall_at_10=0.1", "index.kind=flat")


@pytest.fixture(scope="module")
def published(child: LocalWorkers, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a corpus and a release of it."""
    folder = tmp_path_factory.mktemp("published")
    write_corpus(folder / "corpus")
    with connect(ClusterSettings(), Stages(), local=child):
        nightly(load_settings(Job, None, (*job_arguments(folder, encoder), *SETTINGS)), Stages())
    return folder


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def searcher_files(manifest: ReleaseManifest) -> dict[str, str]:
    """Return the files that a searcher opens."""
    return {
        "index": manifest.index.files[0].path,
        "ids": manifest.ids[0].path,
        "encoder": f"{manifest.encoder.path}/{manifest.encoder.files[-1].path}",
    }


@pytest.mark.parametrize("kind", ["index", "ids", "encoder"])
def test_a_searcher_refuses_a_changed_file(published: Path, tmp_path: Path, kind: str):
    root = Path(shutil.copytree(published / "releases", tmp_path / "releases"))
    name = searcher_files(current_manifest(root))[kind]
    flip(root / name)
    with pytest.raises(DataError, match="sha256") as caught:
        open_release(root).search(sentences(1), 1)
    assert name.rsplit("/", 1)[-1] in str(caught.value)


def test_a_changed_manifest_is_refused(published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = Path(shutil.copytree(published / "releases", tmp_path / "releases"))
    flip(root / "releases" / "00000001" / "manifest.json")
    with pytest.raises(DataError, match="a published release"):
        open_release(root)
    with pytest.raises(DataError, match="sha256"):
        open_release(root, 1)
    assert "sha256" in capsys.readouterr().err


@pytest.fixture
def night(published: Path, encoder: Path, tmp_path: Path) -> Callable[..., NightOutcome]:
    """Run the next night over a copy of `published`, with one row less in its corpus."""
    for name in ("corpus", "releases"):
        shutil.copytree(published / name, tmp_path / name, copy_function=shutil.copy2)
    file = tmp_path / "corpus" / "part-0.parquet"
    pq.write_table(pq.read_table(file).slice(1), file)
    return lambda *more: nightly(
        load_settings(Job, None, (*job_arguments(tmp_path, encoder), *SETTINGS, *more)), Stages()
    )


@pytest.mark.parametrize("kind", ["corpus record", "key table", "unit"])
def test_the_next_night_refuses_a_changed_file_and_publishes_nothing(
    night: Callable[..., NightOutcome], tmp_path: Path, kind: str
):
    root = tmp_path / "releases"
    manifest = current_manifest(root)
    corpus = Corpus.load(open_store(root), manifest.corpus.path)
    assert corpus is not None
    name = {
        "corpus record": manifest.corpus.path,
        "key table": corpus.keys[0].path,
        "unit": manifest.units[0].path,
    }[kind]
    flip(root / name)
    with pytest.raises(PipelineError, match="sha256") as caught:
        night("index.kind=hnsw")  # another kind is filled from the units
    assert caught.value.exit_code == 3
    assert name.rsplit("/", 1)[-1] in str(caught.value)
    assert [commit.release for commit in Releases(open_store(root)).history()] == [1]


@pytest.mark.parametrize("kind", ["index", "ids"])
def test_the_next_night_rebuilds_a_changed_index_and_reports_it(
    night: Callable[..., NightOutcome], tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
):
    root = tmp_path / "releases"
    flip(root / searcher_files(current_manifest(root))[kind])
    assert night().status == "published"
    assert "sha256" in capsys.readouterr().err
    assert open_release(root).search([sentences(400)[7]], 1)["id"].to_pylist() == ["row-00007"]
