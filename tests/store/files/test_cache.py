"""Copies of remote files on a machine are complete whichever process is killed, fetched once for many
processes, checked, and limited in size without deleting copies in use.
"""

import hashlib
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, TransientError
from pipeline.keep_alive import on_keep_alive
from pipeline.models.folder.locate import locate
from pipeline.store.files.base import PARTIAL, Store
from pipeline.store.files.cache import get_or_build, shrink
from tests.faults import Faults, FaultyProxy
from tests.store.copies import CONTENT, ENCODER, SHA256, age


def copies(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file() and "locks" not in path.parts]


def start_reader(remote_store: Store) -> "subprocess.Popen[str]":
    program = (
        "import sys; from pipeline.store.files.base import sha256_of\n"
        "from pipeline.store.files.open_store import open_store\n"
        "from pipeline.models.folder.locate import locate\n"
        f"print(sha256_of(open_store('{remote_store.uri}').local('index.faiss', '{SHA256}')), "
        f"sha256_of(locate('{remote_store.uri}/encoder') / 'model.safetensors'))"
    )
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_one_of_many_processes_copies_and_another_replaces_it_if_it_is_killed(
    remote_store: Store, faulty: FaultyProxy, cache: Path
):
    faulty.faults = Faults(delayed=1.0, delay_s=1.0)
    killed = start_reader(remote_store)
    while not any(path.name.startswith(PARTIAL) for path in cache.rglob("*")) and faulty.calls["GET"] == 0:
        assert killed.poll() is None, "the reader ended before it began to copy"
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    faulty.faults = Faults(delayed=1.0, delay_s=0.05)
    faulty.calls.clear()
    readers = [start_reader(remote_store) for _ in range(4)]
    answers = [reader.communicate(timeout=120)[0].split() for reader in readers]
    assert answers == 4 * [[SHA256, SHA256]]
    # one index, three files of the encoder, two listings by the process that copies the folder, and one by
    # each of the three others
    assert faulty.calls["GET"] == 1 + 3 + 2 + 3
    folder = locate(f"{remote_store.uri}/encoder")
    assert {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()} == set(
        ENCODER
    ) - {"onnx/model.onnx"}


def test_keep_alive_signals_of_the_copying_process_reach_waiting_processes(cache: Path, tmp_path: Path):
    copy_path = cache / "ab" / f"{6:064x}"
    progresses, may_end = tmp_path / "progresses", tmp_path / "may_end"
    progresses.touch()
    program = (
        "import time; from pathlib import Path; from pipeline.keep_alive import keep_alive; from "
        "pipeline.store.files.cache import get_or_build\n"
        "def build(copy):\n"
        "    copy.write_bytes(b'whole'); print(flush=True)\n"
        f"    while not Path('{may_end}').exists():\n"
        f"        time.sleep(0.02); Path('{progresses}').exists() and keep_alive()\n"
        f"get_or_build(Path('{copy_path}'), build, lambda copy: copy.stat().st_size > 0)"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    other.stdout.readline()
    signals: list[float] = []
    with on_keep_alive(lambda: signals.append(time.monotonic())), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            get_or_build, copy_path, lambda copy: copy.touch(), lambda copy: copy.stat().st_size > 0
        )
        while len(signals) < 2:
            time.sleep(0.02)
        progresses.unlink()
        stopped_s = time.monotonic()
        time.sleep(1.5)
        assert not waiting.done()
        assert signals[-1] < stopped_s + 1.0, "a process that hangs sends no keep-alive signals"
        may_end.touch()
        assert waiting.result(timeout=30).read_bytes() == b"whole"
    assert other.wait(timeout=30) == 0


def test_every_chunk_of_a_file_sends_a_keep_alive_signal(remote_store: Store, cache: Path, tmp_path: Path):
    signals: list[str] = []
    with on_keep_alive(lambda: signals.append("piece")):
        remote_store.local("index.faiss", SHA256)
        fetched = len(signals)
        (tmp_path / "file").write_bytes(CONTENT)
        remote_store.put(tmp_path / "file", "copy")
    assert fetched >= 3, "three MiB"
    assert len(signals) > fetched


def test_a_damaged_copy_is_fetched_again(remote_store: Store, faulty: FaultyProxy, cache: Path):
    path = remote_store.local("index.faiss", SHA256)
    assert remote_store.local("index.faiss", SHA256) == path
    assert faulty.calls["GET"] == 1, "a complete copy is not fetched again"
    damaged = bytearray(CONTENT)
    damaged[100] ^= 1
    path.write_bytes(damaged)
    assert remote_store.local("index.faiss", SHA256).read_bytes() == CONTENT
    path.write_bytes(CONTENT[:-1])
    assert remote_store.local("index.faiss", SHA256).read_bytes() == CONTENT
    assert faulty.calls["GET"] == 3


def test_a_damaged_copy_of_an_encoder_is_fetched_again(remote_store: Store, cache: Path):
    folder = locate(f"{remote_store.uri}/encoder")
    (folder / "config.json").write_bytes(b'{"hidden_size": 1}')
    assert (locate(f"{remote_store.uri}/encoder") / "config.json").read_bytes() == b"{}"
    (folder / "1_Pooling" / "config.json").unlink()
    assert (locate(f"{remote_store.uri}/encoder") / "1_Pooling" / "config.json").is_file()


def test_a_changed_remote_file_gets_another_copy(remote_store: Store, cache: Path):
    before = remote_store.local("index.faiss")
    remote_store.write("index.faiss", CONTENT[::-1])
    assert remote_store.local("index.faiss").read_bytes() == CONTENT[::-1]
    assert before.read_bytes() == CONTENT, "the copy of the old content is kept"


def test_a_truncated_response_is_not_kept_as_copy(
    remote_store: Store, faulty: FaultyProxy, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MANTA_STORE_DEADLINE_S", "0.5")
    faulty.faults = Faults(cut=1.0)
    with pytest.raises(TransientError, match=r"index\.faiss"):
        remote_store.local("index.faiss")
    assert copies(cache) == []


def test_least_recently_used_copies_are_deleted_first(remote_store: Store, cache: Path):
    for number in range(6):
        remote_store.write(f"{number}", bytes([number]) * 1000)
    paths = [
        remote_store.local(f"{number}", hashlib.sha256(bytes([number]) * 1000).hexdigest())
        for number in range(6)
    ]
    assert shrink(0) == 0, "all were handed out within the hour"
    for number, path in enumerate(paths):
        age(path, hours=10 - number)
    remote_store.local("1", paths[1].stem)  # used again
    with paths[0].open("rb") as reader:
        assert shrink(3_500) == 3_000
        assert [number for number, path in enumerate(paths) if path.exists()] == [1, 4, 5]
        assert reader.read() == bytes([0]) * 1000, "an open file outlives its name"
    assert remote_store.local("0", hashlib.sha256(bytes(1000)).hexdigest()).read_bytes() == bytes(1000)


def test_folders_of_encoders_are_deleted_completely(remote_store: Store, cache: Path):
    folder = locate(f"{remote_store.uri}/encoder")
    age(folder.parent, hours=2)
    assert shrink(0) > len(CONTENT)
    assert not folder.parent.exists()
    assert (locate(f"{remote_store.uri}/encoder") / "model.safetensors").read_bytes() == CONTENT


def test_an_environment_variable_limits_the_cache(
    remote_store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    first = remote_store.local("index.faiss", SHA256)
    age(first, hours=2)
    monkeypatch.setenv("MANTA_CACHE_GIB", "0.004")  # 4 MiB: one copy of 3 MiB fits, two do not
    remote_store.write("other", CONTENT[::-1])
    other = remote_store.local("other")
    assert (first.exists(), other.exists()) == (False, True)
    monkeypatch.setenv("MANTA_CACHE_GIB", "plenty")
    remote_store.write("third", b"3")
    with pytest.raises(ConfigError, match="MANTA_CACHE_GIB"):
        remote_store.local("third")


def test_files_of_killed_processes_are_deleted_after_a_day(cache: Path):
    (cache / "ab").mkdir(parents=True)
    partial = cache / "ab" / f"{PARTIAL}1-abc"
    partial.write_bytes(b"half")
    age(partial, hours=2)
    assert shrink() == 0
    age(partial, hours=25)
    assert shrink() == 4
    assert copies(cache) == []
