"""A cache of remote files on this machine: complete, verified, shared by its processes, and of limited size.

MANTA_CACHE names the directory (default: manta below the user's cache directory), MANTA_CACHE_GIB its size in
GiB (default 50). Files are evicted in the order of their last use, but not within an hour of it, so that a
caller can still open a path that it was just given; the cache may exceed its size meanwhile. A file that is
open or mapped stays readable after its eviction.

Anyone who can write to the cache decides what its readers load, so only this user may. If other users can
write to the named directory, or root owns it (as a container's volume), the cache is manta-<user id> below
it.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import ConfigError
from pipeline.keep_alive import keep_alive, on_keep_alive
from pipeline.log import say
from pipeline.store.base import PARTIAL, remove, room, sha256_of, tree_bytes
from pipeline.store.owned import make_owned, may_hold, problem_with
from pipeline.store.retry import seconds

_GIB = 50.0
_IN_USE_S = 3_600.0  # callers open a path much sooner than that
_ABANDONED_S = 24 * 3_600.0
_LOCKS = "locks"
# First and longest pause between two attempts to take a lock that another process holds.
_SHORT_S, _LONG_S = 0.01, 0.5
# Names of the cache's own entries; files with other names are never removed.
_NAME = re.compile(rf"{re.escape(PARTIAL)}.*|([0-9a-f]{{32}}){{1,2}}(\..*)?")
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


def cache_directory() -> Path:
    """Return the directory of the cache, made if it is missing. It is safe to delete while nothing runs.

    Without MANTA_CACHE, an unusable default directory is replaced by one below the temporary directory.

    Raises:
        ConfigError: MANTA_CACHE names a directory in which this user cannot have a directory of their own.
    """
    if named := os.environ.get("MANTA_CACHE"):
        directory, problem = _owned_at(Path(named))
        if problem:
            user = os.getuid()
            raise ConfigError(
                f"MANTA_CACHE: {directory}",
                f"a directory that only user {user} can write to, or a place to make one",
                problem,
                "set MANTA_CACHE to a directory of your own, or make one there: "
                f"install -d -m 700 -o {user} {directory}",
            )
        return directory
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "manta")
    directory, problem = _owned_at(home)
    return _temporary_cache(str(directory), problem) if problem else directory


def _owned_at(directory: Path) -> tuple[Path, str | None]:
    """Return this user's directory at `directory` or below it, made if missing, and the problem with it."""
    try:
        make_owned(directory)
        if (problem := problem_with(directory)) is None or not may_hold(directory):
            return directory, problem
        own = directory / f"manta-{os.getuid()}"
        make_owned(own)
    except OSError as error:
        return directory, f"no directory, and none can be made ({error.strerror})"
    return own, problem_with(own)


@functools.lru_cache
def _temporary_cache(directory: str, problem: str) -> Path:
    """Return this user's cache below the temporary directory; if that is unusable, one of this process."""
    found, unusable = _owned_at(Path(tempfile.gettempdir(), f"manta-{os.getuid()}"))
    if unusable:
        found = Path(tempfile.mkdtemp(prefix="manta-"))
        atexit.register(shutil.rmtree, found, ignore_errors=True)
    say(
        f"{directory} cannot be used to cache remote files ({problem}): using {found}; "
        "set MANTA_CACHE to choose another directory"
    )
    return found


def kept(path: Path, build: Callable[[Path], None], complete: Callable[[Path], bool]) -> Path:
    """Return `path`, a file or folder of the cache, building it if it is missing or incomplete.

    One of several concurrent processes builds it; if that process is killed, the next one does.

    Args:
        build: makes the file or folder at the temporary path it is given.
        complete: checks an existing file or folder.
    """
    with _alone(path):
        exists = _touched(path)
    if exists and complete(path):
        return path
    with _alone(path):
        if not (_touched(path) and complete(path)):
            _built(path, build)
    shrink()
    return path


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
    limit = int(seconds("MANTA_CACHE_GIB", _GIB) * (1 << 30)) if limit is None else limit
    now, removed = time.time(), 0
    entries = sorted((_last_use(path), path) for path in _entries())
    total = sum(tree_bytes(path) for _, path in entries)
    for used, path in entries:
        partial, idle_s = path.name.startswith(PARTIAL), now - used
        if idle_s > _ABANDONED_S if partial else total > limit and idle_s > _IN_USE_S:
            freed = _evicted(path, now)
            total, removed = total - freed, removed + freed
    return removed


def _entries() -> Iterator[Path]:
    for folder in cache_directory().iterdir():
        if folder.is_dir() and not folder.is_symlink() and folder.name != _LOCKS:
            yield from (path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def _last_use(path: Path) -> float:
    """Return the time of the last use, in seconds since 1970. Symbolic links are not followed."""
    try:
        status = path.lstat()
    except FileNotFoundError:  # another process removed it meanwhile
        return time.time()
    return status.st_mtime if stat.S_ISDIR(status.st_mode) else status.st_atime


def _evicted(path: Path, now: float) -> int:
    """Remove an entry and return its bytes; 0 if another process holds its lock or has used it recently."""
    with _alone(path, wait=False) as alone:
        if not alone or _last_use(path) >= now - _IN_USE_S:
            return 0
        size = tree_bytes(path)
        remove(path)
        return size


def _built(path: Path, build: Callable[[Path], None]) -> None:
    make_owned(path.parent)
    temporary = path.parent / f"{PARTIAL}{os.getpid()}-{secrets.token_hex(6)}"
    try:
        with room(str(cache_directory())):
            build(temporary)
        remove(path)
        os.replace(temporary, path)
        _touched(path)
    finally:
        remove(temporary)


def _touched(path: Path) -> bool:
    """Mark an entry as used now. Returns False if it does not exist or is a symbolic link.

    The last use of a file is its access time, set here whatever the mount's options, since its modification
    time belongs to the content. For a folder it is the modification time: listing a folder changes its access
    time.
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
def _alone(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of an entry while the block runs; the lock ends with the process, however that ends.

    Entries share a fixed number of lock files. Folders and files use different ones, because building a
    folder locks files.

    Yields:
        Whether the lock was taken; always True with `wait`.
    """
    directory = cache_directory() / _LOCKS
    make_owned(directory)
    stripe = f"{path.parent.name[:8]}-{hashlib.sha256(path.name.encode()).hexdigest()[:2]}"
    with _lock_file(directory / stripe) as stream:
        locked = _lock(stream)
        if not locked and wait:
            _wait_for(stream)
            locked = True
        with on_keep_alive(lambda: os.utime(stream.fileno())) if locked else contextlib.nullcontext():
            yield locked


def _lock(stream: BinaryIO) -> bool:
    """Try to lock the file. Returns True if it is locked now, or if the file system has no locks."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _wait_for(stream: BinaryIO) -> None:
    """Wait until the holder releases the file, then lock it.

    The holder touches the file for each keep-alive signal; this process then sends one too.
    """
    pause_s, known = _SHORT_S, os.fstat(stream.fileno()).st_mtime_ns
    while not _lock(stream):
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONG_S)
        if (touched := os.fstat(stream.fileno()).st_mtime_ns) != known:
            known = touched
            keep_alive()


def _lock_file(path: Path) -> BinaryIO:
    """Open a lock file, made if it is missing and never truncated. Raises ConfigError for a symbolic link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags, 0o600), "ab")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConfigError(
            str(path), "a lock file of the cache", "a link", "remove it, and find out who made it"
        ) from None
