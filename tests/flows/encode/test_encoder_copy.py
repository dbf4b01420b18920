"""Workers on other nodes load the same encoder from the copy below the root, without the driver's disk."""

from pathlib import Path

import pytest

from pipeline.flows.encode.encoder_copy import encoder_copy_path, encoder_for_workers, keep_encoder
from pipeline.flows.workers.ray_workers import RayWorkers
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.open_store import open_store

ELSEWHERE = RayWorkers(())  # workers on other machines, which cannot read this disk


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "options", [{}, {"pooling": "cls", "prompt": "text: ", "max_length": 20, "normalize": True}]
)
def test_the_copy_in_a_remote_root_is_the_same_encoder(
    s3: str, encoder: Path, tmp_path: Path, options: dict[str, object]
):
    settings = EncoderSettings.model_validate({"path": str(encoder), **options})
    store = open_store(f"{s3}/{tmp_path.name}")
    for_workers = encoder_for_workers(settings, store, ELSEWHERE)
    folder = open_folder(settings)
    assert for_workers == settings.model_copy(update={"path": store.uri_of(encoder_copy_path(folder))}), (
        "only the path changes"
    )
    assert open_folder(for_workers).space_id == folder.space_id
    assert dict(open_folder(for_workers).files) == dict(folder.files)
    texts = ["a man reads", "the lazy dog sleeps near the river"]
    assert (
        load_encoder(for_workers, EncodeSettings()).encode(texts)
        == load_encoder(settings, EncodeSettings()).encode(texts)
    ).all()


def test_the_copy_is_written_once_and_used_by_the_release(s3: str, encoder: Path, tmp_path: Path):
    settings, store = EncoderSettings(path=str(encoder)), open_store(f"{s3}/{tmp_path.name}")
    encoder_for_workers(settings, store, ELSEWHERE)
    before = store.list("encoders")
    encoder_for_workers(settings, store, ELSEWHERE)
    kept = keep_encoder(open_folder(settings), store)
    assert [(entry.path, entry.stamp, entry.modified) for entry in store.list("encoders")] == [
        (entry.path, entry.stamp, entry.modified) for entry in before
    ]
    assert {f"{kept.path}/{ref.path}" for ref in kept.files} == {entry.path for entry in before}


@pytest.mark.parametrize("remote", [True, False])
def test_files_too_large_for_memory_are_copied_unchanged(
    s3: str, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
):
    monkeypatch.setattr("pipeline.flows.encode.encoder_copy._MAX_IN_MEMORY", 1_000)
    folder = open_folder(EncoderSettings(path=str(encoder)))
    store = open_store(f"{s3}/{tmp_path.name}" if remote else tmp_path / "releases")
    for reference in keep_encoder(folder, store).files:
        assert (
            store.read(f"{encoder_copy_path(folder)}/{reference.path}")
            == folder.file(reference.path).read_bytes()
        )


def test_encoders_at_a_uri_or_for_a_local_root_are_not_copied(
    s3: str, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    remote = EncoderSettings(path=f"{s3}/elsewhere")
    assert encoder_for_workers(remote, open_store(f"{s3}/{tmp_path.name}"), ELSEWHERE) == remote
    monkeypatch.chdir(encoder.parent)
    here = encoder_for_workers(
        EncoderSettings(path=encoder.name), open_store(tmp_path / "releases"), ELSEWHERE
    )
    assert here.path == str(encoder.resolve())
    assert not (tmp_path / "releases").exists()
