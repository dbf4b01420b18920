"""The copies of remote files on a machine: whole whoever is killed, fetched once by many, checked, and
bounded without taking what is in use.
"""

import hashlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError, TransientError
from pipeline.keep_alive import on_keep_alive
from pipeline.models.folder.locate import locate
from pipeline.store.base import PARTIAL, Store
from pipeline.store.cache import cache_directory, kept, shrink
from pipeline.store.store import open_store
from tests.faults import Faults, FaultyProxy

CONTENT = np.random.default_rng(0).bytes(3 << 20)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
ENCODER = {
    "config.json": b"{}",
    "model.safetensors": CONTENT,
    "1_Pooling/config.json": b'{"pooling": 1}',
    "onnx/model.onnx": b"not wanted",
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store(faulty: FaultyProxy, s3: str, cache: Path, tmp_path: Path) -> Store:
    store = open_store(f"{s3}/{tmp_path.name}")
    store.write("index.faiss", CONTENT)
    for name, content in ENCODER.items():
        store.write(f"encoder/{name}", content)
    faulty.calls.clear()
    return store


def copies(cache: Path) -> list[Path]:
    return [place for place in cache.rglob("*") if place.is_file() and "locks" not in place.parts]


def age(place: Path, hours: float) -> None:
    then = int((time.time() - 3_600 * hours) * 1e9)
    os.utime(place, ns=(then, then if place.is_dir() else place.stat().st_mtime_ns))


def starter(store: Store) -> "subprocess.Popen[str]":
    program = (
        "import sys; from pipeline.store.base import sha256_of\n"
        "import sys; from pipeline.store.store import open_store; from pipeline.models.folder.locate "
        "import locate\n"
        f"print(sha256_of(open_store('{store.uri}').local('index.faiss', '{SHA256}')), "
        f"sha256_of(locate('{store.uri}/encoder') / 'model.safetensors'))"
    )
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_of_many_starters_one_fetches_and_one_that_is_killed_harms_nobody(
    store: Store, faulty: FaultyProxy, cache: Path
):
    faulty.faults = Faults(delayed=1.0, delay_s=1.0)
    killed = starter(store)
    while not any(place.name.startswith(PARTIAL) for place in cache.rglob("*")) and faulty.calls["GET"] == 0:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    faulty.faults = Faults(delayed=1.0, delay_s=0.05)
    faulty.calls.clear()
    starters = [starter(store) for _ in range(4)]
    answers = [each.communicate(timeout=120)[0].split() for each in starters]
    assert answers == 4 * [[SHA256, SHA256]]
    # one index, three files of the encoder, and listings: two by the one that copies the folder, one by each
    # of the others
    assert faulty.calls["GET"] == 1 + 3 + 2 + 3
    folder = locate(f"{store.uri}/encoder")
    assert {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()} == set(
        ENCODER
    ) - {"onnx/model.onnx"}


def test_signals_of_the_process_that_copies_keep_waiting_processes_alive(cache: Path, tmp_path: Path):
    place, moves, ends = cache / "ab" / f"{6:064x}", tmp_path / "moves", tmp_path / "ends"
    moves.touch()
    program = (
        "import time; from pathlib import Path; from pipeline.keep_alive import keep_alive; from "
        "pipeline.store.cache import kept\n"
        "def build(copy):\n"
        "    copy.write_bytes(b'whole'); print(flush=True)\n"
        f"    while not Path('{ends}').exists():\n"
        f"        time.sleep(0.02); Path('{moves}').exists() and keep_alive()\n"
        f"kept(Path('{place}'), build, lambda copy: copy.stat().st_size > 0)"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    other.stdout.readline()
    signs: list[float] = []
    with on_keep_alive(lambda: signs.append(time.monotonic())), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(kept, place, lambda copy: copy.touch(), lambda copy: copy.stat().st_size > 0)
        while len(signs) < 2:
            time.sleep(0.02)
        moves.unlink()
        stopped = time.monotonic()
        time.sleep(1.5)
        assert not waiting.done()
        assert signs[-1] < stopped + 1.0, "a holder that hangs is no progress of anybody"
        ends.touch()
        assert waiting.result(timeout=30).read_bytes() == b"whole"
    assert other.wait(timeout=30) == 0


def test_every_chunk_of_a_file_sends_a_keep_alive_signal(store: Store, cache: Path, tmp_path: Path):
    signs: list[str] = []
    with on_keep_alive(lambda: signs.append("piece")):
        store.local("index.faiss", SHA256)
        fetched = len(signs)
        (tmp_path / "file").write_bytes(CONTENT)
        store.put(tmp_path / "file", "copy")
    assert fetched >= 3, "three MiB"
    assert len(signs) > fetched


def test_a_copy_that_was_changed_is_noticed_and_fetched_again(store: Store, faulty: FaultyProxy, cache: Path):
    place = store.local("index.faiss", SHA256)
    assert store.local("index.faiss", SHA256) == place
    assert faulty.calls["GET"] == 1, "a whole copy is not fetched again"
    damaged = bytearray(CONTENT)
    damaged[100] ^= 1
    place.write_bytes(damaged)
    assert store.local("index.faiss", SHA256).read_bytes() == CONTENT
    place.write_bytes(CONTENT[:-1])
    assert store.local("index.faiss", SHA256).read_bytes() == CONTENT
    assert faulty.calls["GET"] == 3


def test_an_encoder_copy_that_was_changed_is_copied_again(store: Store, cache: Path):
    folder = locate(f"{store.uri}/encoder")
    (folder / "config.json").write_bytes(b'{"hidden_size": 1}')
    assert (locate(f"{store.uri}/encoder") / "config.json").read_bytes() == b"{}"
    (folder / "1_Pooling" / "config.json").unlink()
    assert (locate(f"{store.uri}/encoder") / "1_Pooling" / "config.json").is_file()


def test_a_changed_remote_file_gets_a_copy_of_its_own(store: Store, cache: Path):
    before = store.local("index.faiss")
    store.write("index.faiss", CONTENT[::-1])
    assert store.local("index.faiss").read_bytes() == CONTENT[::-1]
    assert before.read_bytes() == CONTENT, "who has the old one keeps it"


def test_a_body_that_is_cut_short_never_becomes_a_copy(
    store: Store, faulty: FaultyProxy, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MANTA_STORE_DEADLINE_S", "0.5")
    faulty.faults = Faults(cut=1.0)
    with pytest.raises(TransientError, match=r"index\.faiss"):
        store.local("index.faiss")
    assert copies(cache) == []


def test_what_was_used_longest_ago_goes_first_and_what_is_in_use_stays(store: Store, cache: Path):
    for number in range(6):
        store.write(f"{number}", bytes([number]) * 1000)
    places = [
        store.local(f"{number}", hashlib.sha256(bytes([number]) * 1000).hexdigest()) for number in range(6)
    ]
    assert shrink(0) == 0, "all were handed out within the hour"
    for number, place in enumerate(places):
        age(place, hours=10 - number)
    store.local("1", places[1].stem)  # used again
    with places[0].open("rb") as reader:
        assert shrink(3_500) == 3_000
        assert [number for number, place in enumerate(places) if place.exists()] == [1, 4, 5]
        assert reader.read() == bytes([0]) * 1000, "an open file outlives its name"
    assert store.local("0", hashlib.sha256(bytes(1000)).hexdigest()).read_bytes() == bytes(1000)


def test_folders_of_encoders_go_as_a_whole(store: Store, cache: Path):
    folder = locate(f"{store.uri}/encoder")
    age(folder.parent, hours=2)
    assert shrink(0) > len(CONTENT)
    assert not folder.parent.exists()
    assert (locate(f"{store.uri}/encoder") / "model.safetensors").read_bytes() == CONTENT


def test_the_environment_bounds_the_cache(store: Store, cache: Path, monkeypatch: pytest.MonkeyPatch):
    first = store.local("index.faiss", SHA256)
    age(first, hours=2)
    monkeypatch.setenv("MANTA_CACHE_GIB", "0.004")  # 4 MiB: both do not fit
    store.write("other", CONTENT[::-1])
    other = store.local("other")
    assert (first.exists(), other.exists()) == (False, True)
    monkeypatch.setenv("MANTA_CACHE_GIB", "plenty")
    store.write("third", b"3")
    with pytest.raises(ConfigError, match="MANTA_CACHE_GIB"):
        store.local("third")


def test_what_a_killed_process_left_goes_after_a_day(cache: Path):
    (cache / "ab").mkdir(parents=True)
    left = cache / "ab" / f"{PARTIAL}1-abc"
    left.write_bytes(b"half")
    age(left, hours=2)
    assert shrink() == 0
    age(left, hours=25)
    assert shrink() == 4
    assert copies(cache) == []


NOBODY = 65_534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only the administrator gives files to somebody else")


def mode(place: Path) -> int:
    """Permissions; a directory takes its set-group bit from the one that it is made in."""
    return stat.S_IMODE(place.stat().st_mode) & 0o777


def test_nobody_else_can_write_to_what_the_cache_makes(store: Store, cache: Path):
    before = os.umask(0)
    try:
        store.local("index.faiss", SHA256)
        locate(f"{store.uri}/encoder")
    finally:
        os.umask(before)
    made = [cache, cache / "locks", cache / SHA256[:2], cache / "encoders"]
    assert [mode(place) for place in made] == len(made) * [0o700]
    assert {mode(place) for place in (cache / "locks").iterdir()} == {0o600}


@pytest.mark.parametrize("bits", [0o777, 0o2775, 0o1777])
def test_below_a_directory_that_others_write_to_the_cache_is_a_directory_of_this_user(
    bits: int, cache: Path, store: Store
):
    cache.mkdir()
    cache.chmod(bits)
    place = store.local("index.faiss", SHA256)
    own = cache / f"manta-{os.getuid()}"
    assert place.is_relative_to(own)
    assert mode(own) == 0o700
    assert store.local("index.faiss", SHA256) == place
    own.chmod(0o770)
    with pytest.raises(
        ConfigError, match=r"others may write to \(mode \d*770\); set MANTA_CACHE to a directory of your own"
    ):
        cache_directory()


@as_root
def test_a_directory_of_somebody_else_is_refused(cache: Path):
    cache.mkdir(mode=0o755)
    os.chown(cache, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=f"found a directory of user {NOBODY}; set MANTA_CACHE"):
        cache_directory()
    os.chown(cache, 0, 0)
    cache.chmod(0o1777)
    planted = cache / "manta-0"
    planted.mkdir()
    os.chown(planted, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=f"manta-0: .* found a directory of user {NOBODY}"):
        cache_directory()
    planted.rmdir()
    planted.symlink_to(cache.parent)
    os.chown(planted, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(ConfigError, match=f"found a link of user {NOBODY}"):
        cache_directory()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, that everybody writes to; MANTA_CACHE is not set."""
    monkeypatch.delenv("MANTA_CACHE", raising=False)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


@pytest.mark.parametrize("harm", ["a file", "a file above", pytest.param("another owner", marks=as_root)])
def test_without_a_directory_of_its_own_a_user_who_named_none_goes_on(
    harm: str, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    if harm == "another owner":
        (home / "manta").mkdir(parents=True)
        os.chown(home / "manta", NOBODY, NOBODY)
    elif harm == "a file":
        home.mkdir()
        (home / "manta").write_text("")
    else:
        home.write_text("")
    found = cache_directory()
    assert found == temporary / f"manta-{os.getuid()}"
    assert mode(found) == 0o700
    assert cache_directory() == found
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1, "once, not with each copy"
    assert f"using {found}; set MANTA_CACHE to choose another directory" in said[0]


@as_root
def test_a_planted_directory_for_temporary_copies_is_not_used(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    (temporary / "manta-0").mkdir()
    os.chown(temporary / "manta-0", NOBODY, NOBODY)
    found = cache_directory()
    assert (found.parent, mode(found), found.stat().st_uid) == (temporary, 0o700, 0)
    assert list((temporary / "manta-0").iterdir()) == []


def test_a_lock_is_not_written_through_a_link(cache: Path, tmp_path: Path):
    (tmp_path / "precious").write_text("precious")
    place = cache / "words" / f"{0:032x}"
    (cache / "locks").mkdir(parents=True, mode=0o700)
    kept(place, lambda copy: copy.mkdir(), Path.is_dir)
    lock = next((cache / "locks").iterdir())
    lock.write_text("whatever it holds stays")
    kept(place, lambda copy: copy.mkdir(), Path.is_dir)
    assert lock.read_text() == "whatever it holds stays"
    lock.unlink()
    lock.symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match="expected a lock file of the cache, found a link"):
        kept(place, lambda copy: copy.mkdir(), Path.is_dir)
    assert (tmp_path / "precious").read_text() == "precious"


def test_what_links_lead_to_stays_when_the_cache_shrinks(cache: Path, tmp_path: Path):
    precious = tmp_path / "precious" / f"{1:032x}"
    precious.mkdir(parents=True)
    (precious / "file").write_bytes(bytes(1_000))
    (cache / "words").mkdir(parents=True)
    (cache / "shelf").symlink_to(precious.parent)
    linked, file = cache / "words" / f"{2:032x}", cache / "words" / f"{3:064x}.faiss"
    linked.symlink_to(precious)
    file.symlink_to(precious / "file")
    own = cache / "words" / f"{4:032x}"
    own.mkdir()
    (own / "more").symlink_to(precious)
    for place in (precious, own):
        age(place, hours=5)
    for link in (linked, file):
        then = int((time.time() - 5 * 3_600) * 1e9)
        os.utime(link, ns=(then, then), follow_symlinks=False)
    shrink(0)
    assert (precious / "file").read_bytes() == bytes(1_000)
    assert not any(os.path.lexists(place) for place in (linked, file, own)), (
        "the links themselves are the cache's"
    )


def test_a_link_in_the_place_of_a_copy_is_replaced(cache: Path, tmp_path: Path):
    (tmp_path / "forged").write_bytes(b"forged")
    place = cache / "ab" / f"{5:064x}"
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "forged")
    assert (
        kept(
            place, lambda copy: copy.write_bytes(b"mine") and None, lambda copy: copy.stat().st_size > 0
        ).read_bytes()
        == b"mine"
    )
    assert (tmp_path / "forged").read_bytes() == b"forged"


def test_files_that_the_cache_did_not_make_stay(cache: Path):
    (cache / "Documents").mkdir(parents=True)
    letter = cache / "Documents" / "letter.txt"
    letter.write_text("Dear")
    age(letter, hours=5)
    assert shrink(0) == 0
    assert letter.read_text() == "Dear"
