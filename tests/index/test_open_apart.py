"""Index files that would crash their reader, though their sha256 is right, end `releases verify` with 3."""

import multiprocessing
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import DataError
from pipeline.index import open_apart
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.release import Releases
from pipeline.store.store import open_store
from tests.conftest import CommandResult
from tests.index.published import Publisher, texts
from tests.models.folders import save_folder

ROWS = 120


@pytest.fixture
def publish(tmp_path: Path) -> Publisher:
    """Publishes corpora below `root`."""
    folder = save_folder(tmp_path / "encoder", "bert")
    return Publisher(open_store(tmp_path / "root"), folder, tmp_path)


def republish(publish: Publisher, manifest: ReleaseManifest, content: bytes) -> None:
    """Publish the release with another index file and the sha256 of that file."""
    (publish.scratch / "crafted").write_bytes(content)
    index = manifest.index.model_copy(
        update={"files": (publish.put(publish.scratch / "crafted", "indexes", ".faiss"),)}
    )
    candidate = manifest.model_copy(update={"parent": manifest.release, "release": 0, "index": index})
    Releases(publish.store).publish(candidate, str)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_a_header_with_a_huge_count_ends_verify_with_3(
    publish: Publisher, manta: Callable[..., CommandResult], kind: str
):
    manifest = publish(texts(ROWS), kind=kind)
    file = manifest.index.files[0].path
    content = publish.store.read(file)
    assert manta("releases", "verify", publish.store.uri).code == 0
    count = struct.pack("<q", ROWS)
    offset = content.rindex(count)  # the count of the addresses, which are last in the file
    republish(
        publish, manifest, content[:offset] + struct.pack("<q", 1 << 34) + content[offset + len(count) :]
    )
    ended = manta("releases", "verify", publish.store.uri)
    assert ended.code == 3, ended.err
    assert "expected files that a search can read, found MemoryError" in ended.err
    assert Releases(publish.store).get(2).index.files[0].path in ended.err


def never_end(*_: object) -> None:
    threading.Event().wait()


def test_a_reader_that_does_not_end_is_killed(publish: Publisher, monkeypatch: pytest.MonkeyPatch):
    manifest = publish(texts(ROWS))
    before = multiprocessing.active_children()
    monkeypatch.setattr(open_apart, "_open_and_search", never_end)
    monkeypatch.setattr(open_apart, "_START_S", 0.0)
    with pytest.raises(DataError, match="found files whose reader did not end in 0 s") as caught:
        open_apart.check_opens(Releases(publish.store), manifest)
    assert caught.value.exit_code == 3
    assert manifest.index.files[0].path in str(caught.value)
    assert set(multiprocessing.active_children()) <= set(before)


def test_an_index_of_fewer_rows_than_the_manifest_says_ends_verify_with_3(
    publish: Publisher, manta: Callable[..., CommandResult]
):
    few = publish(texts(ROWS // 2))
    content = publish.store.read(few.index.files[0].path)
    republish(publish, publish(texts(ROWS)), content)
    ended = manta("releases", "verify", publish.store.uri)
    assert ended.code == 3, ended.err
    assert f"expected {ROWS} live rows, found {ROWS // 2}" in ended.err
