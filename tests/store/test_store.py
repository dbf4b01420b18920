"""Files are read complete or not at all, one of two creators wins, and no path leaves the root."""

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.errors import DataError
from pipeline.store.base import Store, checked
from pipeline.store.local import LocalStore
from pipeline.store.store import open_store


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(tmp_path / "root")
    return open_store(f"{request.getfixturevalue('s3')}/{tmp_path.name}")


def test_what_is_written_is_read(store: Store):
    store.write("a/b.bin", b"first")
    store.write("a/b.bin", b"second")
    assert store.read("a/b.bin") == b"second"
    assert store.size("a/b.bin") == 6
    assert store.open("a/b.bin").read() == b"second"
    assert store.local("a/b.bin").read_bytes() == b"second"
    assert not store.exists("a/none")
    with pytest.raises(FileNotFoundError):
        store.read("a/none")


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


def test_a_changed_file_is_refused_by_its_sha256(store: Store):
    store.write("index.faiss", b"tampered")
    with pytest.raises(DataError, match=r"index\.faiss.*sha256"):
        store.local("index.faiss", "0" * 64)


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../b", "", "a\\..\\b", "a\0b"])
def test_no_path_leaves_the_root(path: str):
    with pytest.raises(DataError, match="below the root"):
        checked(path)


def test_a_store_travels_by_its_uri(store: Store):
    store.write("x", b"1")
    assert pickle.loads(pickle.dumps(store)).read("x") == b"1"


def test_a_file_system_without_links_still_creates_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = LocalStore(str(tmp_path))
    assert store.create("one", b"mine")
    assert not store.create("one", b"theirs")
    assert store.read("one") == b"mine"


def test_a_killed_writer_leaves_nothing_that_a_reader_sees(tmp_path: Path):
    program = (
        "import os, sys; from pipeline.store.local import LocalStore\n"
        # dies after the data are durable, before the name is taken
        "os.replace = os.link = lambda *_: os.kill(os.getpid(), 9)\n"
        "store = LocalStore(sys.argv[1]); getattr(store, sys.argv[2])('unit', b'x' * 100_000)"
    )
    for verb in ("write", "create"):
        killed = subprocess.run([sys.executable, "-c", program, str(tmp_path), verb], check=False)
        assert killed.returncode == -9
    assert not open_store(tmp_path).exists("unit")
    assert open_store(tmp_path).list() == []


def test_what_a_killed_run_left_in_scratch_is_gone_with_the_next_one(tmp_path: Path):
    program = (
        "import os, sys; from pathlib import Path; from pipeline.store.local import LocalStore\n"
        "with LocalStore(sys.argv[1]).scratch() as scratch:\n"
        "    (scratch / 'unit').write_bytes(b'x' * 1000); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with open_store(tmp_path).scratch() as mine, open_store(tmp_path).scratch() as other:
        assert set(tmp_path.iterdir()) == {mine, other}, "a living run's scratch stays"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("differs", ["host name", "process namespace"])
def test_a_scratch_of_another_pod_on_the_same_root_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differs: str
):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here, there, living = socket.gethostname(), os.readlink, contextlib.ExitStack()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "getpid", lambda: ended.pid)  # lives over there; here nothing has that number
        if differs == "host name":
            elsewhere.setattr(
                socket, "gethostname", lambda: here[:4] + "-" + here[4:]
            )  # the same letters and digits
        else:
            elsewhere.setattr(
                os, "readlink", lambda path: "pid:[1]" if path == "/proc/self/ns/pid" else there(path)
            )
        foreign = living.enter_context(open_store(tmp_path).scratch())
    with living, open_store(tmp_path).scratch() as mine:
        assert set(tmp_path.iterdir()) == {foreign, mine}
    assert list(tmp_path.iterdir()) == []


def test_what_killed_writers_left_is_swept_by_age(tmp_path: Path):
    (tmp_path / "units").mkdir()
    (tmp_path / "units" / ".tmp-1-abc").write_bytes(b"half")
    assert open_store(tmp_path).sweep(time.time() - 60) == 0
    assert open_store(tmp_path).sweep(time.time() + 60) == 4
    assert list((tmp_path / "units").iterdir()) == []
