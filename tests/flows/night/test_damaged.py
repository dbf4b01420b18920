"""The next night writes a missing file of the current release again even if the corpus has not changed."""

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.errors import DataError
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.publish import NightOutcome
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.index.search.search import open_release
from pipeline.log import Stages, listening
from pipeline.settings import ClusterSettings, Job
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Corpus
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import bytes_to_read, content_faults, size_faults
from tests.conftest import CommandResult
from tests.flows.conftest import current_manifest, job_arguments, sentences, write_corpus

pytestmark = pytest.mark.usefixtures("cluster")
SETTINGS = ("whiten.mode=on", "whiten.k=20", "gates.recall_at_10=0.1", "index.kind=IVF4,Flat")
KINDS = (
    "index",
    "ids",
    "trained",
    "queries",
    "truth",
    "encoder",
    "canary",
    "transform",
    "fitted",
    "fitted_on",
    "moments",
    "vectors",
    "record",
    "unit moments",
    "texts of a unit",
    "key table",
    "text table",
    "corpus record",
    "quarantine",
)


@pytest.fixture(scope="module")
def published(child: LocalWorkers, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a corpus, one row of which is quarantined, and a whitened release of it."""
    folder = tmp_path_factory.mktemp("published")
    write_corpus(folder / "corpus", 200)
    (folder / "corpus" / "twice.parquet").write_bytes((folder / "corpus" / "part-0.parquet").read_bytes())
    with connect(ClusterSettings(), Stages(), local=child):
        nightly(
            load_settings(
                Job, None, (*job_arguments(folder, encoder), *SETTINGS, "corpus.max_quarantined=0.5")
            ),
            Stages(),
        )
    return folder


@pytest.fixture
def night(published: Path, encoder: Path, tmp_path: Path) -> Callable[..., NightOutcome]:
    """Run the next night over a copy of `published` with the same corpus."""
    for name in ("corpus", "releases"):
        shutil.copytree(published / name, tmp_path / name, copy_function=shutil.copy2)
    arguments = [
        argument.replace(str(tmp_path / "corpus"), str(published / "corpus"))
        for argument in job_arguments(tmp_path, encoder)
    ]
    job = load_settings(Job, None, (*arguments, *SETTINGS, "corpus.max_quarantined=0.5"))
    return lambda **options: nightly(job, Stages(), **options)


def file_of(root: Path, kind: str) -> Path:
    manifest = current_manifest(root)
    corpus = Corpus.from_json((root / manifest.corpus.path).read_bytes(), "")
    assert manifest.whitening is not None
    unit, whitening = manifest.units[0], manifest.whitening
    references = {
        "index": manifest.index.files[0],
        "ids": manifest.ids[0],
        "trained": manifest.index.trained,
        "queries": manifest.index.queries,
        "truth": manifest.index.truth,
        "canary": manifest.canary,
        "transform": manifest.transform,
        "fitted": whitening.fitted,
        "fitted_on": whitening.fitted_on,
        "moments": manifest.moments,
        "unit moments": unit.moments,
        "texts of a unit": unit.corpus,
        "key table": corpus.keys[0],
        "text table": corpus.texts[0],
        "corpus record": manifest.corpus,
        "quarantine": corpus.quarantine,
    }
    paths = {
        "vectors": unit.path,
        "record": unit.record,
        "encoder": f"{manifest.encoder.path}/{manifest.encoder.files[-1].path}",
    }
    reference = references.get(kind)
    return root / (reference.path if reference is not None else paths[kind])


def test_a_complete_release_is_unchanged_and_nothing_is_written(
    night: Callable[..., NightOutcome], tmp_path: Path
):
    def listing() -> dict[str, int]:
        return {entry.path: int(entry.stamp) for entry in open_store(tmp_path / "releases").list()}

    store, read = open_store(tmp_path / "releases"), list[int]()
    assert content_faults(store, current_manifest(tmp_path / "releases"), read.append) == []
    assert sum(read) == bytes_to_read(store, current_manifest(tmp_path / "releases")), "the bar ends at 100 %"
    assert night().status == "unchanged"  # index.html names the root, which is a copy
    before = listing()
    assert night().status == "unchanged"
    assert night(verify=True).status == "unchanged"
    assert listing() == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_deleted_file_is_written_again(night: Callable[..., NightOutcome], tmp_path: Path, kind: str):
    root = tmp_path / "releases"
    lost = file_of(root, kind)
    lost.unlink()
    with listening() as messages:
        outcome = night()
    assert outcome.status == "published"
    assert [sentence for sentence in messages if f"{lost.relative_to(root)} is gone" in sentence]
    manifest = current_manifest(root)
    assert manifest.release == 2
    assert content_faults(open_store(root), manifest) == []
    assert open_release(root).search([sentences(200)[7]], 1)["id"].to_pylist() == ["row-00007"]
    assert night().status == "unchanged"


@pytest.mark.parametrize("kind", ["index", "vectors", "key table", "encoder"])
def test_a_truncated_file_is_written_again(night: Callable[..., NightOutcome], tmp_path: Path, kind: str):
    root = tmp_path / "releases"
    cut = file_of(root, kind)
    cut.write_bytes(cut.read_bytes()[:-7])
    assert [fault.path for fault in size_faults(open_store(root), current_manifest(root))] == [
        cut.relative_to(root).as_posix()
    ]
    assert night().status == "published"
    assert content_faults(open_store(root), current_manifest(root)) == []


@pytest.mark.parametrize("verify", [False, True])
def test_a_corpus_record_of_another_version_is_written_again(
    night: Callable[..., NightOutcome], tmp_path: Path, verify: bool
):
    """The manifest vouches for the record, which has a key that this version does not know."""
    root, releases = tmp_path / "releases", Releases(open_store(tmp_path / "releases"))
    record = json.loads(file_of(root, "corpus record").read_bytes())
    record.pop("seal")
    content = json.dumps(record | {"of_later": 1}).encode() + b"\n"
    manifest = current_manifest(root)
    file_of(root, "corpus record").write_bytes(content)
    reference = manifest.corpus.model_copy(
        update={"sha256": sha256(content).hexdigest(), "bytes": len(content)}
    )
    releases.publish(
        manifest.model_copy(update={"corpus": reference, "parent": 1, "release": 0}), lambda number: ""
    )
    with listening() as messages:
        assert night(verify=verify).status == "published"
    assert any("was written by another version" in sentence for sentence in messages)
    assert current_manifest(root).release == 3
    assert content_faults(open_store(root), current_manifest(root)) == []
    assert night().status == "unchanged"


@pytest.mark.parametrize("kind", ["index", "vectors", "transform"])
def test_a_changed_file_is_refused_and_written_again_after_it_is_deleted(
    night: Callable[..., NightOutcome], tmp_path: Path, kind: str
):
    root = tmp_path / "releases"
    file = file_of(root, kind)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert night().status == "unchanged", "sizes do not reveal the change"
    with pytest.raises(DataError, match=rf"{file.name}: expected sha256.*delete it and run again") as caught:
        night(verify=True)
    assert caught.value.exit_code == 3
    file.unlink()
    assert night(verify=True).status == "published"
    assert content_faults(open_store(root), current_manifest(root)) == []


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("encoder", "search"),
        ("index", "search"),
        ("encoder", "evaluate"),
        ("transform", "evaluate"),
        ("index", "evaluate without tasks"),
        ("vectors", "evaluate without tasks"),
        ("key table", "evaluate without tasks"),
    ],
)
@pytest.mark.parametrize("harm", ["gone", "cut short"])
def test_search_and_evaluate_name_the_damaged_file(
    published: Path, tmp_path: Path, manta: Callable[..., CommandResult], kind: str, command: str, harm: str
):
    root = Path(shutil.copytree(published / "releases", tmp_path / "releases"))
    (tmp_path / "tasks" / "sts").mkdir(parents=True)
    pairs = {
        "sentence1": ["a dog runs", "a man reads"] * 4,
        "sentence2": ["the dog", "a river"] * 4,
        "score": [1.0, 2.0] * 4,
    }
    pq.write_table(pa.table(pairs), tmp_path / "tasks" / "sts" / "STSB-dev.parquet")
    file = file_of(root, kind)
    content = file.read_bytes()
    file.unlink()
    if harm == "cut short":
        file.write_bytes(content[:-7])
    arguments = {
        "search": ("search", str(root), "a dog runs"),
        "evaluate": (
            "evaluate",
            f"evaluate.tasks={tmp_path / 'tasks'}",
            "evaluate.candidates=[release:current]",
            f"release.root={root}",
        ),
        "evaluate without tasks": ("evaluate", f"release.root={root}"),
    }
    ended = manta(*arguments[command])
    assert ended.code == 3, ended.err
    assert str(file) in ended.err
    assert "restore" in ended.err
