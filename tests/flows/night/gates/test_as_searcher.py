"""A candidate that a searcher could not use is refused, whichever of its files is damaged."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.errors import GatesRefused
from pipeline.flows.context import FlowContext
from pipeline.flows.night import nightly as nightly_module
from pipeline.flows.night.candidate import Candidate
from pipeline.flows.night.check_gates import judge_candidate
from pipeline.flows.night.gates import as_searcher
from pipeline.flows.night.gates.as_searcher import TryCandidate, try_as_searcher
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.index.search.open_in_child import check_opens
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.write_once import store_by_content
from pipeline.store.releases.manifest import READABLE, ReleaseManifest
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import files_of, new_files
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


def flipped(content: bytes) -> bytes:
    """Return the content with one bit changed in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


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
        patch.setattr("pipeline.store.records.release_units.MAX_LISTED", 0)
        nightly(job, Stages())
        changed = folder / "corpus" / "part-2.parquet"
        rows = pq.read_table(changed).slice(5)
        texts = pa.array(["a man reads", "a dog runs", *rows["text"].to_pylist()[2:]])
        pq.write_table(rows.set_column(1, "text", texts), changed)
        nightly(job, Stages())
        yield job, current_manifest(folder / "releases")


@pytest.fixture
def context(child: LocalWorkers, second_night: tuple[Job, ReleaseManifest]) -> FlowContext:
    job, _ = second_night
    return FlowContext(job, open_store(job.release.root), child, Stages())


def test_damage_to_any_kind_of_file_is_found_and_named(
    context: FlowContext, second_night: tuple[Job, ReleaseManifest]
):
    manifest, root = second_night[1], Path(context.store.uri)
    assert manifest.index.parts == 2
    assert try_as_searcher(context, None, manifest).passed
    files = new_files(context.store, manifest, None)
    trials = list(as_searcher._plan(manifest, files))
    assert sorted(file.path for trial in trials for file in trial.files) == [file.path for file in files]
    by_kind: dict[str, list[str]] = {}
    for file in files:
        by_kind.setdefault(kind_of(file.path), []).append(file.path)
    assert set(by_kind) >= KINDS
    task = TryCandidate(context.store, manifest.to_json())
    for kind, paths in by_kind.items():
        (trial,) = (trial for trial in trials if paths[0] in {file.path for file in trial.files})
        content, other = (
            (root / paths[0]).read_bytes(),
            root / (paths[-1] if paths[1:] else manifest.ids[0].path),
        )
        for damaged in (flipped(content), content[:-7], b"", other.read_bytes(), None):
            if damaged is None:
                (root / paths[0]).unlink()
            elif damaged != content:
                (root / paths[0]).write_bytes(damaged)
            sentences = task.work(trial)
            assert damaged == content or (len(sentences) == 1 and paths[0] in sentences[0]), (kind, sentences)
        (root / paths[0]).write_bytes(content)


def test_the_release_can_be_opened_in_a_process_of_limited_memory(
    context: FlowContext, second_night: tuple[Job, ReleaseManifest]
):
    check_opens(Releases(context.store), second_night[1])


def test_a_damaged_record_of_the_corpus_is_found(
    context: FlowContext, second_night: tuple[Job, ReleaseManifest]
):
    manifest = second_night[1]
    file = Path(context.store.uri, manifest.corpus.path)
    content = file.read_bytes()
    for damaged in (content[:-7], None):
        file.write_bytes(damaged) if damaged else file.unlink()
        gate = try_as_searcher(context, None, manifest)
        assert not gate.passed
        assert manifest.corpus.path in gate.sentence
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("suffix", "stop", "found"),
    [
        (".ivfdata", 4_096, "files that crash a process"),
        (".faiss", -7, "expected the id of unit"),
        (".faiss", 40, "read error"),
    ],
)
def test_a_file_with_the_right_sha256_whose_reader_crashes_or_fails_is_found(
    context: FlowContext, second_night: tuple[Job, ReleaseManifest], suffix: str, stop: int, found: str
):
    manifest = second_night[1]
    file = next(file for file in reversed(manifest.index.files) if file.path.endswith(suffix))
    content = context.store.read(file.path)
    crafted = FileRef.of(file.path, content[:stop], file.rows)
    files = tuple(crafted if each == file else each for each in manifest.index.files)
    index = manifest.index.model_copy(update={"files": files})
    context.store.write(file.path, content[:stop])
    try:
        gate = try_as_searcher(
            context, Releases(context.store).get(1), manifest.model_copy(update={"index": index})
        )
    finally:
        context.store.write(file.path, content)
    assert not gate.passed
    assert context.store.uri_of(file.path) in gate.sentence
    assert found in gate.sentence


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        pytest.param("config.json", marks=pytest.mark.slow),
        pytest.param("tokenizer.json", marks=pytest.mark.slow),
    ],
)
def test_a_damaged_file_of_the_encoder_with_the_right_sha256_is_named_as_it_is_stored(
    context: FlowContext, second_night: tuple[Job, ReleaseManifest], name: str
):
    manifest = second_night[1]
    encoder = manifest.encoder
    uri = f"{encoder.path}/{name}"
    content = context.store.read(uri)
    files = tuple(
        FileRef.of(name, b"garbage", each.rows) if each.path == name else each for each in encoder.files
    )
    damaged = manifest.model_copy(update={"encoder": encoder.model_copy(update={"files": files})})
    context.store.write(uri, b"garbage")
    try:
        gate = try_as_searcher(context, None, damaged)
    finally:
        context.store.write(uri, content)
    assert not gate.passed
    assert context.store.uri_of(uri) in gate.sentence


def test_time_is_given_for_all_files_that_a_trial_uses(second_night: tuple[Job, ReleaseManifest]):
    manifest = second_night[1]
    assert manifest.tombstones
    (trial, _) = as_searcher._plan(manifest, [manifest.tombstones])
    part = manifest.index_parts()[-1]
    assert trial.part == 1
    assert trial.read == sum(file.bytes for file in (*part.files, *part.ids, manifest.tombstones))


def test_files_are_used_in_a_process_without_the_state_of_the_night(
    context: FlowContext, second_night: tuple[Job, ReleaseManifest], monkeypatch: pytest.MonkeyPatch
):
    manifest = second_night[1]
    (trial, *_) = as_searcher._plan(
        manifest, new_files(context.store, manifest, Releases(context.store).get(1))
    )
    assert trial.part == 1
    assert trial.head_of is not None
    for poisoned in ("ReleaseFiles", "try_release", "RowChanges", "load_transform"):
        monkeypatch.setattr(as_searcher, poisoned, None)
    monkeypatch.setattr("pipeline.index.files.parts.read_index", None)
    assert TryCandidate(context.store, manifest.to_json()).work(trial) == ()


def test_ids_that_no_searcher_opens_are_found_although_their_sha256_is_right(
    context: FlowContext, second_night: tuple[Job, ReleaseManifest]
):
    manifest = second_night[1]
    content = context.store.read(manifest.ids[-1].path)
    broken = store_by_content(
        context.store, content.replace(b"a man reads", b"a man \xff\xff\xff\xff\xff"), "ids/0", ".arrow"
    )
    gate = try_as_searcher(context, None, manifest.model_copy(update={"ids": (*manifest.ids[:-1], broken)}))
    assert not gate.passed
    assert broken.path in gate.sentence
    assert "UTF8" in gate.sentence


def test_files_of_the_previous_release_are_read_again_only_if_it_was_not_opened(
    context: FlowContext, second_night: tuple[Job, ReleaseManifest]
):
    manifest = second_night[1]
    first = Releases(context.store).get(1)
    shared = {file.path for file in files_of(context.store, first)}
    new = {file.path for file in new_files(context.store, manifest, first)}
    assert new
    assert not new & shared
    kept = next(file.path for file in first.index.files if file in manifest.index.files)
    content = context.store.read(kept)
    context.store.write(kept, flipped(content))
    try:
        assert try_as_searcher(context, first, manifest).passed
        not_opened = first.model_copy(update={"gates": {}})
        assert kept in try_as_searcher(context, not_opened, manifest).sentence
    finally:
        context.store.write(kept, content)


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flip a byte of an index file when the candidate of a night is built. Returns the flipped file."""
    names: list[str] = []

    def judge(context: FlowContext, previous: Any, candidate: Candidate, *others: Any, **options: Any) -> Any:
        if not names:
            names.append(candidate.manifest.index.files[-1].path)
            context.store.write(names[0], flipped(context.store.read(names[0])))
        return judge_candidate(context, previous, candidate, *others, **options)

    monkeypatch.setattr(nightly_module, "judge_candidate", judge)
    return names


@pytest.mark.parametrize(
    ("where", "held"), [("disk", True), pytest.param("s3", False, marks=pytest.mark.slow)]
)
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


def test_units_whose_addresses_exceed_the_memory_are_published(
    make_job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(Releases, "next_ordinal", lambda self: memory // (512 << 20) + 1)
    write_corpus(tmp_path / "corpus", 100)
    assert nightly(make_job("whiten.mode=off", "gates.recall_at_10=null"), Stages()).status == "published"
