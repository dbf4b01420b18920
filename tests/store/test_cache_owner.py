"""The cache trusts no file of another user and deletes nothing that it did not write."""

import os
import stat
import tempfile
import time
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.models.folder.locate import locate
from pipeline.store.files.base import Store
from pipeline.store.files.cache import cache_directory, get_or_build, shrink
from tests.store.copies import SHA256, age

NOBODY = 65_534


as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may change the owner of a file")


def mode(path: Path) -> int:
    """Return the permissions without the set-group bit, which a directory inherits from its parent."""
    return stat.S_IMODE(path.stat().st_mode) & 0o777


def test_other_users_cannot_write_to_files_of_the_cache(remote_store: Store, cache: Path):
    before = os.umask(0)
    try:
        remote_store.local("index.faiss", SHA256)
        locate(f"{remote_store.uri}/encoder")
    finally:
        os.umask(before)
    directories = [cache, cache / "locks", cache / SHA256[:2], cache / "encoders"]
    assert [mode(directory) for directory in directories] == len(directories) * [0o700]
    assert {mode(path) for path in (cache / "locks").iterdir()} == {0o600}


@pytest.mark.parametrize("bits", [0o777, 0o2775, 0o1777])
def test_below_a_shared_directory_the_cache_is_a_directory_of_the_user(
    bits: int, cache: Path, remote_store: Store
):
    cache.mkdir()
    cache.chmod(bits)
    path = remote_store.local("index.faiss", SHA256)
    own = cache / f"manta-{os.getuid()}"
    assert path.is_relative_to(own)
    assert mode(own) == 0o700
    assert remote_store.local("index.faiss", SHA256) == path
    own.chmod(0o770)
    with pytest.raises(
        ConfigError, match=r"others may write to \(mode \d*770\); set MANTA_CACHE to a directory of your own"
    ):
        cache_directory()


@as_root
def test_a_directory_of_another_user_is_refused(cache: Path):
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
    """A directory for temporary files to which everybody may write; MANTA_CACHE is not set."""
    monkeypatch.delenv("MANTA_CACHE", raising=False)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


@pytest.mark.parametrize("harm", ["a file", "a file above", pytest.param("another owner", marks=as_root)])
def test_without_a_usable_default_directory_a_temporary_one_is_used(
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
    directory = cache_directory()
    assert directory == temporary / f"manta-{os.getuid()}"
    assert mode(directory) == 0o700
    assert cache_directory() == directory
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1, "one warning, not one with each copy"
    assert f"using {directory}; set MANTA_CACHE to choose another directory" in warnings[0]


@as_root
def test_a_planted_directory_for_temporary_copies_is_not_used(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    (temporary / "manta-0").mkdir()
    os.chown(temporary / "manta-0", NOBODY, NOBODY)
    directory = cache_directory()
    assert (directory.parent, mode(directory), directory.stat().st_uid) == (temporary, 0o700, 0)
    assert list((temporary / "manta-0").iterdir()) == []


def test_a_lock_is_not_written_through_a_link(cache: Path, tmp_path: Path):
    (tmp_path / "precious").write_text("precious")
    path = cache / "words" / f"{0:032x}"
    (cache / "locks").mkdir(parents=True, mode=0o700)
    get_or_build(path, lambda copy: copy.mkdir(), Path.is_dir)
    lock = next((cache / "locks").iterdir())
    lock.write_text("the content of a lock file is kept")
    get_or_build(path, lambda copy: copy.mkdir(), Path.is_dir)
    assert lock.read_text() == "the content of a lock file is kept"
    lock.unlink()
    lock.symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match="expected a lock file of the cache, found a link"):
        get_or_build(path, lambda copy: copy.mkdir(), Path.is_dir)
    assert (tmp_path / "precious").read_text() == "precious"


def test_targets_of_links_are_kept_when_the_cache_shrinks(cache: Path, tmp_path: Path):
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
    for path in (precious, own):
        age(path, hours=5)
    for link in (linked, file):
        time_ns = int((time.time() - 5 * 3_600) * 1e9)
        os.utime(link, ns=(time_ns, time_ns), follow_symlinks=False)
    shrink(0)
    assert (precious / "file").read_bytes() == bytes(1_000)
    assert not any(os.path.lexists(path) for path in (linked, file, own)), (
        "the links themselves belong to the cache"
    )


def test_a_link_in_place_of_a_copy_is_replaced(cache: Path, tmp_path: Path):
    (tmp_path / "forged").write_bytes(b"forged")
    path = cache / "ab" / f"{5:064x}"
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "forged")
    assert (
        get_or_build(
            path, lambda copy: copy.write_bytes(b"mine") and None, lambda copy: copy.stat().st_size > 0
        ).read_bytes()
        == b"mine"
    )
    assert (tmp_path / "forged").read_bytes() == b"forged"


def test_other_files_in_the_cache_folder_are_kept(cache: Path):
    (cache / "Documents").mkdir(parents=True)
    letter = cache / "Documents" / "letter.txt"
    letter.write_text("Dear")
    age(letter, hours=5)
    assert shrink(0) == 0
    assert letter.read_text() == "Dear"
