"""Index files that would crash their reader, though their sha256 is right, end `releases verify` with 3."""

import importlib
import multiprocessing
import os
import struct
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.errors import ConfigError, DataError, ModelError, PipelineError, TransientError
from pipeline.index.search import open_in_child
from pipeline.index.search.open_in_child import ChildLimits, end_idle_child, prepare_child, run_in_child
from pipeline.index.search.use_as_searcher import Reading
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases
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
    monkeypatch.setattr(open_in_child, "_open_and_search", never_end)
    monkeypatch.setattr(open_in_child, "_START_S", 0.0)
    with pytest.raises(DataError, match="found files whose reader did not end in 0 s") as caught:
        open_in_child.check_opens(Releases(publish.store), manifest)
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


def fail(error: Exception, reading: Reading) -> None:
    reading(["root/announced"])
    raise error


@pytest.mark.parametrize(
    "error",
    [
        struct.error("unpack requires 4 bytes"),
        pytest.param(StopIteration(), marks=pytest.mark.slow),
        pytest.param(ModelError("/tmp/gone", "a", "b", "c"), marks=pytest.mark.slow),
    ],
)
def test_whatever_a_reader_raises_is_an_error_of_the_file_that_it_read(error: Exception):
    with pytest.raises((DataError, ModelError)) as caught:
        run_in_child(partial(fail, error), ["root/first"], ChildLimits(60.0), "delete them")
    assert "root/announced" in str(caught.value)
    assert "root/first" not in str(caught.value)
    assert str(error).removeprefix("/tmp/gone: ") in str(caught.value)


def test_an_error_that_names_a_copy_of_a_file_also_names_the_file():
    error = ConfigError("/tmp/gone/config.json", "settings", "none", "restore them")
    with pytest.raises(ConfigError, match=r"^root/announced \(/tmp/gone/config.json\): expected settings"):
        run_in_child(partial(fail, error), [], ChildLimits(60.0), "delete them")


@pytest.mark.parametrize(("memory", "kind"), [(None, TransientError), (1 << 30, DataError)])
def test_files_are_not_to_be_deleted_because_memory_is_lacking(memory: int | None, kind: type[PipelineError]):
    with pytest.raises(kind, match=r"root/announced.*found MemoryError") as caught:
        run_in_child(partial(fail, MemoryError()), [], ChildLimits(60.0, memory), "delete them")
    assert "delete" not in str(caught.value)


def write_process(path: Path, reading: Reading) -> None:
    path.write_text(f"{os.getpid()}")


def kill_itself(reading: Reading) -> None:
    reading(["root/announced"])
    os.kill(os.getpid(), 9)


def write_variable(path: Path, reading: Reading) -> None:
    path.write_text(os.environ["MANTA_CHANGED"])


def write_whether_pandas(path: Path, reading: Reading) -> None:
    assert pa.table({"a": ["x"], "b": [[1.5, None]]}).to_pylist() == [{"a": "x", "b": [1.5, None]}]
    was_imported = "pandas" in sys.modules
    importlib.import_module("pandas")
    path.write_text(f"{was_imported} {pa.array(sys.modules['pandas'].Series([1, 2])).to_pylist()}")


def test_arrow_does_not_import_pandas_in_a_child_and_others_can(tmp_path: Path):
    end_idle_child()
    run_in_child(partial(write_whether_pandas, tmp_path / "answer"), [], ChildLimits(60.0), "")
    assert (tmp_path / "answer").read_text() == "False [1, 2]"


def test_a_waiting_child_works_in_the_environment_of_its_parent(tmp_path, monkeypatch):
    prepare_child()
    monkeypatch.setenv("MANTA_CHANGED", "after the child began")
    run_in_child(partial(write_variable, tmp_path / "value"), [], ChildLimits(60.0), "")
    assert (tmp_path / "value").read_text() == "after the child began"


def test_one_prepared_child_does_all_work_until_it_fails(tmp_path: Path):
    def process() -> int:
        run_in_child(partial(write_process, tmp_path / "pid"), [], ChildLimits(60.0), "")
        return int((tmp_path / "pid").read_text())

    prepare_child(["no_such_module"])
    children = {child.pid: child for child in multiprocessing.active_children()}
    prepare_child()  # another night of the same worker
    assert {child.pid for child in multiprocessing.active_children()} == children.keys()
    first = process()
    assert first == process()
    prepared = children[first]
    with pytest.raises(TransientError, match=r"root/announced.*found exit code -9; make more memory"):
        run_in_child(kill_itself, [], ChildLimits(60.0), "delete them")
    assert not prepared.is_alive()
    second = process()
    assert second != first
    os.kill(second, 9)  # while it waits
    third = process()
    assert third not in (first, second)
    end_idle_child()
    end_idle_child()  # there is none
    assert third not in {child.pid for child in multiprocessing.active_children()}
