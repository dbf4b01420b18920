"""A cache of remote files on this machine: complete, verified, shared by its processes, and of limited size.

MANTA_CACHE names the directory (default: manta below the user's cache directory), MANTA_CACHE_GIB its size in
GiB (default 50). The least recently used files are evicted first, but none within an hour of its last use, so
that a caller has time to open a path that it was given; the cache may exceed its size meanwhile. A file that
is open or mapped stays readable after its eviction.

Only this user may write to the cache, because whoever writes to it decides which models are loaded. If other
users can write to the named directory, or root owns it (as it owns a container's volume), the cache is in the
folder manta-<user id> below it.
"""

import atexit
import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import ConfigError
from pipeline.keep_alive import keep_alive, on_keep_alive
from pipeline.log import announce
from pipeline.store.files.base import PARTIAL, sha256_of
from pipeline.store.files.disk import remove, translate_disk_errors, tree_bytes
from pipeline.store.files.retry import positive_number

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_private_directory(directory: Path) -> None:
    """Make the directory (mode 0700) and its parents if they are missing."""
    # FileExistsError is also raised for a file or a link; `ownership_problem` reports these.
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)


def ownership_problem(directory: Path) -> str | None:
    """Describe why the directory is not writable, or may contain files of other users; None if it can be
    used.

    A symbolic link is followed if this user or root made it.
    """
    user = os.getuid()
    try:
        link_status = directory.lstat()
        status = directory.stat()
    except OSError as error:
        return str(error.strerror)
    if stat.S_ISLNK(link_status.st_mode) and link_status.st_uid not in (user, 0):
        return f"a link of user {link_status.st_uid}"
    if not stat.S_ISDIR(status.st_mode):
        return "not a directory"
    if status.st_uid != user:
        return f"a directory of user {status.st_uid}"
    if status.st_mode & _OTHERS_WRITE:
        return f"a directory that others may write to (mode {stat.S_IMODE(status.st_mode):04o})"
    if not os.access(directory, os.W_OK | os.X_OK):
        return "a directory that is not writable"
    return None


def can_make_directory_in(directory: Path) -> bool:
    """Return whether a private directory may be made in `directory`.

    `directory` must belong to this user, or to root, which owns a container's mounted volumes.
    """
    try:
        return directory.is_dir() and directory.stat().st_uid in (os.getuid(), 0)
    except OSError:
        return False


_DEFAULT_GIB = 50.0
_IN_USE_S = 3_600.0  # an entry is not evicted within this time of its last use: callers open it much sooner
_ABANDONED_S = 24 * 3_600.0  # age at which a temporary file belongs to a killed process
_LOCKS = "locks"
# Pauses between two attempts to take a lock that another process has; each is twice the previous one.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
# Names of the cache's own entries; files with other names are never removed.
_ENTRY_NAME = re.compile(rf"{re.escape(PARTIAL)}.*|([0-9a-f]{{32}}){{1,2}}(\..*)?")
_LOCKS_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


def cache_directory() -> Path:
    """Return the directory of the cache; make it if missing. It may be deleted while no process uses it.

    If MANTA_CACHE is not set and the default directory is unusable, the cache is below the temporary
    directory.

    Raises:
        ConfigError: at the path in MANTA_CACHE, this user cannot have a private directory.
    """
    if setting := os.environ.get("MANTA_CACHE"):
        directory, problem = _make_user_directory(Path(setting))
        if problem:
            user = os.getuid()
            raise ConfigError(
                f"MANTA_CACHE: {directory}",
                f"a directory that only user {user} can write to, or in which it can be made",
                problem,
                "set MANTA_CACHE to a directory of your own, or make one there: "
                f"install -d -m 700 -o {user} {directory}",
            )
        return directory
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "manta")
    directory, problem = _make_user_directory(home)
    return _temporary_cache(str(directory), problem) if problem else directory


def _make_user_directory(directory: Path) -> tuple[Path, str | None]:
    """Make a directory that only this user can write to: `directory`, or manta-<user id> below it.

    Returns:
        The directory, and a description of the problem that makes it unusable, or None.
    """
    try:
        make_private_directory(directory)
        if (problem := ownership_problem(directory)) is None or not can_make_directory_in(directory):
            return directory, problem
        subdirectory = directory / f"manta-{os.getuid()}"
        make_private_directory(subdirectory)
    except OSError as error:
        return directory, f"no directory, and none can be made ({error.strerror})"
    return subdirectory, ownership_problem(subdirectory)


@functools.lru_cache  # one directory and one log line per process
def _temporary_cache(directory: str, problem: str) -> Path:
    """Return a cache below the temporary directory: this user's or, if unusable, one for this process.

    Args:
        directory: the cache that is replaced.
        problem: why it is unusable.
    """
    temporary = Path(tempfile.gettempdir(), f"manta-{os.getuid()}")
    replacement, replacement_problem = _make_user_directory(temporary)
    if replacement_problem:
        replacement = Path(tempfile.mkdtemp(prefix="manta-"))
        atexit.register(shutil.rmtree, replacement, ignore_errors=True)
    announce(
        f"{directory} cannot be used to cache remote files ({problem}): using {replacement}; "
        "set MANTA_CACHE to choose another directory"
    )
    return replacement


def get_or_build(path: Path, build: Callable[[Path], None], is_complete: Callable[[Path], bool]) -> Path:
    """Return `path`, a file or folder of the cache, building it if it is missing or incomplete.

    One of several concurrent processes builds it; if that process is killed, another one does.

    Args:
        path: the file or folder.
        build: makes the file or folder at the temporary path that it is given.
        is_complete: checks an existing file or folder.
    """
    with _entry_lock(path):
        exists = _touch(path)
    if exists and is_complete(path):
        return path
    with _entry_lock(path):
        if not (_touch(path) and is_complete(path)):
            _build(path, build)
    shrink()
    return path


def discard_files_but(names: Collection[str], suffixes: Collection[str]) -> None:
    """Remove all files with one of the suffixes, but those with one of the names (without suffix).

    They are removed however recently they were used. Processes that have them open keep them.
    """
    for file in cache_directory().glob("[0-9a-f][0-9a-f]/*"):
        if file.suffix in suffixes and file.stem not in names and file.is_file():
            with _entry_lock(file):
                remove(file)


def digest_of_file(file: Path) -> str:
    """Return the sha256 of a local file in hex. An unchanged file is read only once per process."""
    status = file.stat()
    return _digest(file, status.st_ino, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _digest(file: Path, inode: int, size: int, modified_ns: int) -> str:
    return sha256_of(file)


def shrink(limit: int | None = None) -> int:
    """Evict the files and folders used longest ago, and remove temporary files of killed processes.

    Args:
        limit: bytes that may remain; None takes MANTA_CACHE_GIB.

    Returns:
        The bytes removed.
    """
    limit = int(positive_number("MANTA_CACHE_GIB", _DEFAULT_GIB) * (1 << 30)) if limit is None else limit
    now = time.time()
    entries = sorted((_last_use(path), path) for path in _entries())
    initial_bytes = remaining_bytes = sum(tree_bytes(path) for _, path in entries)
    for last_use, path in entries:
        idle_s = now - last_use
        if path.name.startswith(PARTIAL):
            removable = idle_s > _ABANDONED_S
        else:
            removable = idle_s > _IN_USE_S and remaining_bytes > limit
        if removable:
            remaining_bytes -= _evict(path, now)
    return initial_bytes - remaining_bytes


def _entries() -> Iterator[Path]:
    """Yield the files and folders of the cache, temporary ones included."""
    for folder in cache_directory().iterdir():
        if folder.is_dir() and not folder.is_symlink() and folder.name != _LOCKS:
            yield from (path for path in folder.iterdir() if _ENTRY_NAME.fullmatch(path.name))


def _last_use(path: Path) -> float:
    """Return the time of the last use, in seconds since 1970. Symbolic links are not followed."""
    try:
        status = path.lstat()
    except FileNotFoundError:  # another process removed it meanwhile
        return time.time()
    return status.st_mtime if stat.S_ISDIR(status.st_mode) else status.st_atime


def _evict(path: Path, now: float) -> int:
    """Remove an entry and return its bytes; 0 if another process holds its lock or has used it recently."""
    with _entry_lock(path, wait=False) as locked:
        if not locked or _last_use(path) >= now - _IN_USE_S:
            return 0
        size = tree_bytes(path)
        remove(path)
        return size


def _build(path: Path, build: Callable[[Path], None]) -> None:
    """Build an entry under a temporary name, then give it its name, replacing an incomplete one."""
    make_private_directory(path.parent)
    temporary = path.parent / f"{PARTIAL}{os.getpid()}-{secrets.token_hex(6)}"
    try:
        with translate_disk_errors(str(cache_directory())):
            build(temporary)
        remove(path)
        os.replace(temporary, path)
        _touch(path)
    finally:
        remove(temporary)


def _touch(path: Path) -> bool:
    """Mark an entry as used now. Returns False if it does not exist or is a symbolic link.

    The last use of a file is its access time, because its modification time shows if the content changed.
    The last use of a folder is its modification time, because listing a folder changes its access time. Both
    are set here, because a file system may not record reads.
    """
    now = time.time_ns()
    if path.is_symlink():
        return False
    try:
        os.utime(path, ns=(now, now if path.is_dir() else path.stat().st_mtime_ns))
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def _entry_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of an entry while the block runs. If the process is killed, the lock is released too.

    Entries share a fixed number of lock files. Folders and files use different lock files, because a process
    that builds a folder locks files meanwhile.

    Yields:
        Whether the lock was taken; always True with `wait`.
    """
    directory = cache_directory() / _LOCKS
    make_private_directory(directory)
    name = f"{path.parent.name[:8]}-{hashlib.sha256(path.name.encode()).hexdigest()[:2]}"
    with _open_lock_file(directory / name) as stream:
        locked = _try_lock(stream)
        if not locked and wait:
            _wait_for_lock(stream)
            locked = True
        with on_keep_alive(lambda: os.utime(stream.fileno())) if locked else contextlib.nullcontext():
            yield locked


def _try_lock(stream: BinaryIO) -> bool:
    """Try to lock the file. Returns True if it is locked now, or if the file system has no locks."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _LOCKS_UNSUPPORTED:
            raise
    return True


def _wait_for_lock(stream: BinaryIO) -> None:
    """Wait until the process that holds the lock releases it, then take it.

    That process touches the file for each of its keep-alive signals; this process then sends a signal, too.
    """
    pause_s = _FIRST_PAUSE_S
    last_touched = os.fstat(stream.fileno()).st_mtime_ns
    while not _try_lock(stream):
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if (touched := os.fstat(stream.fileno()).st_mtime_ns) != last_touched:
            last_touched = touched
            keep_alive()


def _open_lock_file(path: Path) -> BinaryIO:
    """Open a lock file without truncating it; make it if missing. Raises ConfigError for a symbolic link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags, 0o600), "ab")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConfigError(
            str(path), "a lock file of the cache", "a link", "remove it, and find out who made it"
        ) from None
