"""A candidate that a searcher could not use is refused, whichever of its files is damaged."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.errors import GatesRefused
from pipeline.flows.night import nightly as nightly_module
from pipeline.flows.night.as_searcher import try_as_searcher
from pipeline.flows.night.candidate import Candidate
from pipeline.flows.night.gates import judge_candidate
from pipeline.flows.night.nightly import nightly
from pipeline.flows.run import Run
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.index.open_apart import check_opens
from pipeline.index.search import open_release
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from pipeline.store.manifest import READABLE, ReleaseManifest
from pipeline.store.once import store_by_content
from pipeline.store.release import Releases
from pipeline.store.store import open_store
from pipeline.store.verify import files_of, new_files
from tests.flows.conftest import current_manifest, job_arguments, write_corpus

Make = Callable[..., Job]
pytestmark = pytest.mark.usefixtures("cluster")
KINDS = {
    "encoders/*/config.json",
    "encoders/*/model.safetensors",
    "encoders/*/tokenizer.json",
    "ids/*.arrow",
    "indexes/*.faiss",
    "indexes/*.ivfdata",
    "indexes/queries-*.safetensors",
    "indexes/tombstones-*.parquet",
    "indexes/trained-*.faiss",
    "indexes/truth-*.safetensors",
    "keys/*/*.parquet",
    "keys/*/corpus.json",
    "keys/*/dead-*.parquet",
    "keys/*/texts-*.parquet",
    "moments/*/*-*.safetensors",
    "moments/canary-*.safetensors",
    "moments/merged-*.safetensors",
    "quarantine/*.parquet",
    "transforms/*.safetensors",
    "units/corpus/*.parquet",
    "units/tables/*.parquet",
    "units/vectors/*/*-*.parquet",
    "units/vectors/*/*.json",
}


def kind_of(path: str) -> str:
    """Return the path with a star for every number and digest."""
    return re.sub(r"[0-9a-f]{8,}|\d+", "*", path)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.fixture(scope="module")
def second_night(
    child: LocalWorkers, encoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Job, ReleaseManifest]]:
    """Two nights: a base with lists on disk, then new rows in a delta, dead rows, and a table of units."""
    folder = tmp_path_factory.mktemp("nights")
    file = write_corpus(folder / "corpus") / "part-0.parquet"
    (folder / "corpus" / "twice.parquet").write_bytes(file.read_bytes())
    settings = ("index.kind=ivf_flat", "index.on_disk=always", "corpus.max_quarantined=0.5", "whiten.mode=on")
    arguments = (
        *job_arguments(folder, encoder),
        *settings,
        "gates.recall_at_10=null",
        "whiten.k=20",
        "whiten.max_drift=9",
    )
    job = load_settings(Job, None, arguments)
    with connect(ClusterSettings(), Stages(), local=child), pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.store.release_units.MAX_LISTED", 0)
        nightly(job, Stages())
        changed = folder / "corpus" / "part-2.parquet"
        rows = pq.read_table(changed).slice(5)
        texts = pa.array(["a man reads", "a dog runs", *rows["text"].to_pylist()[2:]])
        pq.write_table(rows.set_column(1, "text", texts), changed)
        nightly(job, Stages())
        yield job, current_manifest(folder / "releases")


@pytest.fixture
def run(child: LocalWorkers, second_night: tuple[Job, ReleaseManifest]) -> Run:
    job, _ = second_night
    return Run(job, open_store(job.release.root), child, Stages())


def test_a_flipped_byte_in_any_kind_of_file_is_found(run: Run, second_night: tuple[Job, ReleaseManifest]):
    manifest, root = second_night[1], Path(run.store.uri)
    assert manifest.index.parts == 2
    assert try_as_searcher(run, None, manifest).passed
    kinds = {kind_of(file.path): file.path for file in files_of(run.store, manifest)}
    assert set(kinds) >= KINDS
    for kind, path in kinds.items():
        flip(root / path)
        gate = try_as_searcher(run, None, manifest)
        flip(root / path)
        assert not gate.passed, kind
        assert path in gate.sentence, gate.sentence


def test_the_release_can_be_opened_in_a_process_of_limited_memory(
    run: Run, second_night: tuple[Job, ReleaseManifest]
):
    check_opens(Releases(run.store), second_night[1])


def test_a_missing_or_truncated_file_is_found(run: Run, second_night: tuple[Job, ReleaseManifest]):
    manifest, root = second_night[1], Path(run.store.uri)
    for path in (manifest.ids[0].path, manifest.corpus.path, manifest.units[0].record):
        content = (root / path).read_bytes()
        for damaged in (content[:-7], None):
            (root / path).write_bytes(damaged) if damaged else (root / path).unlink()
            gate = try_as_searcher(run, None, manifest)
            assert not gate.passed
            assert path in gate.sentence
        (root / path).write_bytes(content)


def test_ids_that_no_searcher_opens_are_found_although_their_sha256_is_right(
    run: Run, second_night: tuple[Job, ReleaseManifest]
):
    manifest = second_night[1]
    content = run.store.read(manifest.ids[-1].path)
    broken = store_by_content(
        run.store, content.replace(b"a man reads", b"a man \xff\xff\xff\xff\xff"), "ids/0", ".arrow"
    )
    gate = try_as_searcher(run, None, manifest.model_copy(update={"ids": (*manifest.ids[:-1], broken)}))
    assert not gate.passed
    assert broken.path in gate.sentence
    assert "UTF8" in gate.sentence


def test_files_of_the_previous_release_are_read_again_only_if_it_was_not_opened(
    run: Run, second_night: tuple[Job, ReleaseManifest]
):
    manifest = second_night[1]
    first = Releases(run.store).get(1)
    shared = {file.path for file in files_of(run.store, first)}
    new = {file.path for file in new_files(run.store, manifest, first)}
    assert new
    assert not new & shared
    kept = next(file.path for file in first.index.files if file in manifest.index.files)
    flip(Path(run.store.uri, kept))
    try:
        assert try_as_searcher(run, first, manifest).passed
        not_opened = first.model_copy(update={"gates": {}})
        assert kept in try_as_searcher(run, not_opened, manifest).sentence
    finally:
        flip(Path(run.store.uri, kept))


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flip a byte of an index file when the candidate of a night is built. Returns the flipped file."""
    flipped: list[str] = []

    def judge(run: Run, previous: Any, candidate: Candidate, *others: Any, **options: Any) -> Any:
        if not flipped:
            flipped.append(candidate.manifest.index.files[-1].path)
            content = bytearray(run.store.read(flipped[0]))
            content[len(content) // 2] ^= 1
            run.store.write(flipped[0], bytes(content))
        return judge_candidate(run, previous, candidate, *others, **options)

    monkeypatch.setattr(nightly_module, "judge_candidate", judge)
    return flipped


@pytest.mark.parametrize(("where", "held"), [("disk", True), ("s3", False)])
def test_a_damaged_candidate_is_refused_and_kept_and_the_next_night_publishes(
    make_job: Make, damaged: list[str], tmp_path: Path, s3: str, cache: Path, where: str, held: bool
):
    root = str(tmp_path / "root") if where == "disk" else f"{s3}/{tmp_path.name}"
    job = make_job("whiten.mode=off", "gates.recall_at_10=0.1", f"release.root={root}")
    store = open_store(root)
    if held:
        damaged.append("")
        nightly(job, Stages())
        Releases(store).hold()
        write_corpus(tmp_path / "corpus", 410)
        damaged.clear()
    with pytest.raises(GatesRefused) as caught:
        nightly(job, Stages())
    assert caught.value.exit_code == 5
    assert store.uri_of(damaged[0]) in str(caught.value)
    folder = caught.value.candidate.removeprefix(f"{store.uri}/")
    assert damaged[0] in store.read(f"{folder}/report.html").decode()
    gates = ReleaseManifest.from_json(store.read(f"{folder}/manifest.json"), folder, store).gates
    assert [name for name, gate in gates.items() if not gate.passed] == [READABLE]
    assert Releases(store).numbers() == [1] * held
    store.delete(damaged[0])
    assert nightly(job, Stages()).status == ("held" if held else "published")
    assert len(open_release(root)) == 400
