"""Files are read complete or not at all, one of two creators wins, and no path leaves the root."""

import contextlib
import os
import pickle
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DataError, MissingFile, TransientError
from pipeline.store.files.base import Store, normal_path
from pipeline.store.files.local import LocalStore
from pipeline.store.files.open_store import open_store
from tests.conftest import REMOTE


@pytest.fixture(params=["local", *REMOTE])
def store(request: pytest.FixtureRequest, bucket_at: Callable[[str], str], tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(tmp_path / "root")
    return open_store(f"{bucket_at(request.param)}/{tmp_path.name}")


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "host", "http://", "https:///x"])
@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_without_scheme_or_host_is_refused(monkeypatch, endpoint: str, variable: str):
    monkeypatch.setenv(variable, endpoint)
    with pytest.raises(ConfigError, match=f"{variable}: expected an address such as http://host:9000"):
        open_store("s3://bucket/prefix").exists("file")


def test_a_path_that_is_or_leads_through_a_file_is_no_root(tmp_path: Path):
    (tmp_path / "file").write_text("a file")
    with pytest.raises(ConfigError, match="expected a directory, found a file;"):
        open_store(tmp_path / "file")
    with pytest.raises(ConfigError, match="expected a directory, found a file;"):
        open_store("/dev/null")
    for below in ("file/root", "file/root/of/releases"):
        with pytest.raises(
            ConfigError, match=f"expected a directory, found a path below the file {tmp_path}/file;"
        ):
            open_store(tmp_path / below)
    assert open_store(tmp_path / "new/root/of/releases").list() == []


def test_written_bytes_are_read_back(store: Store):
    store.write("a/b.bin", b"first")
    store.write("a/b.bin", b"second")
    assert store.read("a/b.bin") == b"second"
    assert store.size("a/b.bin") == 6
    assert store.open("a/b.bin").read() == b"second"
    assert store.local("a/b.bin").read_bytes() == b"second"


def test_a_file_that_does_not_exist_is_named(store: Store, tmp_path: Path):
    assert not store.exists("a/missing")
    assert store.entry("a/missing") is None
    store.delete("a/missing")
    reads: dict[str, Callable[[], object]] = {
        "read": lambda: store.read("a/missing"),
        "read_checked": lambda: store.read_checked("a/missing", 64 * "0"),
        "read_range": lambda: store.read_range("a/missing", 0, 4),
        "open": lambda: store.open("a/missing"),
        "local": lambda: store.local("a/missing"),
        "fetch": lambda: store.fetch("a/missing", tmp_path / "copy"),
    }
    for name, read in reads.items():
        with pytest.raises(FileNotFoundError) as caught:
            read()
        assert isinstance(caught.value, MissingFile), name
        assert str(caught.value).startswith(f"{store.uri_of('a/missing')}: expected a stored file"), name


def test_an_empty_range_has_no_bytes(store: Store):
    store.write("file", b"abcdef")
    ranges = [(0, 0), (3, 3), (6, 6), (0, 1), (2, 6)]
    read = [store.read_range("file", start, stop).to_pybytes() for start, stop in ranges]
    assert read == [b"", b"", b"", b"a", b"cdef"]


def test_pages_of_a_listing_have_every_file_once(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.store.files.local._PAGE", 2)
    for name in ("a/1", "a/2", "a/3", "a/b/4", "ab/5"):
        store.write(name, b"")
    pages = list(store.pages("a"))
    listed = [entry for page in pages for entry in page]
    assert sorted(listed, key=lambda entry: entry.path) == store.list("a")
    assert len(listed) == 4
    assert [entry for page in store.pages("none") for entry in page] == []


@contextlib.contextmanager
def as_a_user_without(folder: Path) -> Iterator[None]:
    """Deny this process everything in a folder while the block runs. As root, it runs as another user."""
    user = os.geteuid()
    folder.chmod(0)
    if user == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.list("commits"),
        lambda store: list(store.pages("")),
        lambda store: store.read("commits/1.json"),
        lambda store: store.open("commits/1.json"),
        lambda store: store.local("commits/1.json"),
        lambda store: store.exists("commits/1.json"),
    ],
    ids=("list", "pages", "read", "open", "local", "exists"),
)
def test_a_folder_that_cannot_be_read_is_not_an_empty_one(use: Callable[[Store], object], tmp_path: Path):
    """Without its commits, a root with releases would look like a new one."""
    store = LocalStore(str(tmp_path / "root"))
    store.write("commits/1.json", b"{}")
    with (
        as_a_user_without(tmp_path / "root" / "commits"),
        pytest.raises(
            ConfigError, match=r"expected files that this user may read, found .*Permission denied"
        ),
    ):
        use(store)
    assert use(store)


def test_a_file_is_created_once(store: Store):
    assert store.create("commits/1.json", b"mine")
    assert not store.create("commits/1.json", b"theirs")
    assert store.read("commits/1.json") == b"mine"


def test_of_many_creators_exactly_one_wins(store: Store):
    wins: list[bytes] = []

    def race(name: bytes) -> None:
        if store.create("one", name):
            wins.append(name)

    threads = [threading.Thread(target=race, args=(str(number).encode(),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert store.read("one") == wins[0]


def test_a_local_file_is_published_and_moved(store: Store, tmp_path: Path):
    with store.scratch() as scratch:
        (scratch / "unit").write_bytes(b"x" * 1000)
        store.put(scratch / "unit", "units/u.parquet")
        assert not (scratch / "unit").exists()
    assert store.read("units/u.parquet") == b"x" * 1000
    assert [entry.path for entry in store.list()] == ["units/u.parquet"], (
        "the scratch directory is not listed"
    )


def test_listings_are_sorted_recursive_and_fresh(store: Store):
    for name in ("b/2.json", "a/1.json", "b/c/3.parquet"):
        store.write(name, b"12")
    assert [entry.path for entry in store.list()] == ["a/1.json", "b/2.json", "b/c/3.parquet"]
    assert [(entry.path, entry.size) for entry in store.list("b", ".json")] == [("b/2.json", 2)]
    before = store.list("a")[0].stamp
    store.write("a/1.json", b"123")
    assert store.list("a")[0].stamp != before
    store.delete("a/1.json")
    store.delete("a/1.json")
    assert store.list("a") == []
    assert store.list("nowhere") == []


def test_a_file_with_another_sha256_is_refused(store: Store):
    store.write("index.faiss", b"tampered")
    with pytest.raises(DataError, match=r"index\.faiss.*sha256"):
        store.local("index.faiss", "0" * 64)


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../b", "", "a\\..\\b", "a\0b"])
def test_paths_outside_the_root_are_refused(path: str):
    with pytest.raises(DataError, match="below the root"):
        normal_path(path)


@given(st.text(alphabet="ab./\\\0 é", max_size=9))
def test_a_path_is_normal_or_refused_as_pathlib_parses_it(path: str):
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        with pytest.raises(DataError):
            normal_path(path)
    else:
        assert normal_path(path) == "/".join(parts)


def test_a_pickled_store_reads_the_same_files(store: Store):
    store.write("x", b"1")
    assert pickle.loads(pickle.dumps(store)).read("x") == b"1"


def test_without_hard_links_a_file_is_created_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = LocalStore(str(tmp_path))
    assert store.create("one", b"mine")
    assert not store.create("one", b"theirs")
    assert store.read("one") == b"mine"


def test_a_killed_writer_leaves_no_visible_file(tmp_path: Path):
    program = (
        "import os, sys; from pipeline.store.files.local import LocalStore\n"
        # the process is killed when the data are on the disk under a temporary name
        "os.replace = os.link = lambda *_: os.kill(os.getpid(), 9)\n"
        "store = LocalStore(sys.argv[1]); getattr(store, sys.argv[2])('unit', b'x' * 100_000)"
    )
    for verb in ("write", "create"):
        killed = subprocess.run([sys.executable, "-c", program, str(tmp_path), verb], check=False)
        assert killed.returncode == -9
    assert not open_store(tmp_path).exists("unit")
    assert open_store(tmp_path).list() == []


def test_scratch_files_of_a_killed_run_are_deleted_by_the_next(tmp_path: Path):
    program = (
        "import os, sys; from pathlib import Path; from pipeline.store.files.local import LocalStore\n"
        "with LocalStore(sys.argv[1]).scratch() as scratch:\n"
        "    (scratch / 'unit').write_bytes(b'x' * 1000); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with open_store(tmp_path).scratch() as mine, open_store(tmp_path).scratch() as other:
        assert set(tmp_path.iterdir()) == {mine, other}, "the scratch directory of a running process is kept"
    assert list(tmp_path.iterdir()) == []


def write_table(file: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), file)


def write_to_removed_scratch(store: Store, write: Callable[[Path], None]) -> None:
    with store.scratch() as scratch:
        shutil.rmtree(scratch)
        write(scratch / "file")


@pytest.mark.parametrize("write", [write_table, Path.touch])
@pytest.mark.parametrize("root", ["local", "s3://bucket/root"])
def test_scratch_files_that_somebody_removes_are_a_transient_error(
    tmp_path: Path, root: str, write: Callable[[Path], None]
):
    store = open_store(tmp_path if root == "local" else root)
    with pytest.raises(TransientError, match="temporary files of a running job, found none") as caught:
        write_to_removed_scratch(store, write)
    assert caught.value.exit_code == 75


@pytest.mark.parametrize("differs", ["host name", "process namespace"])
def test_scratch_files_of_another_pod_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differs: str):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host_name, readlink, living = socket.gethostname(), os.readlink, contextlib.ExitStack()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(
            os, "getpid", lambda: ended.pid
        )  # a number that a process has there, and none has here
        if differs == "host name":
            elsewhere.setattr(
                socket, "gethostname", lambda: host_name[:4] + "-" + host_name[4:]
            )  # the same letters and digits
        else:
            elsewhere.setattr(
                os, "readlink", lambda path: "pid:[1]" if path == "/proc/self/ns/pid" else readlink(path)
            )
        foreign = living.enter_context(open_store(tmp_path).scratch())
    with living, open_store(tmp_path).scratch() as mine:
        assert set(tmp_path.iterdir()) == {foreign, mine}
    assert list(tmp_path.iterdir()) == []


def test_files_of_killed_writers_are_deleted_by_age(tmp_path: Path):
    (tmp_path / "units").mkdir()
    (tmp_path / "units" / ".tmp-1-abc").write_bytes(b"half")
    assert open_store(tmp_path).sweep(time.time() - 60) == 0
    assert open_store(tmp_path).sweep(time.time() + 60) == 4
    assert list((tmp_path / "units").iterdir()) == []
