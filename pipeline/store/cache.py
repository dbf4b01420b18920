"""Copies of remote files on this machine: whole and checked, shared by its processes, and bounded.

MANTA_CACHE names the directory (manta below the user's cache directory), MANTA_CACHE_GIB its size (50). What was used longest ago goes first, and nothing that
was used within the last hour: so the cache may hold more for a while, and a path that was just handed out is there when its caller opens it. A file that is
open or mapped stays readable after it went.

Whoever writes to the cache decides what its readers load, sums included. So it is a directory of this user alone: where others may write to the named one,
or it belongs to the administrator (a volume of a container), it is the directory manta-<user id> below.
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
from pipeline.headway import at_headway, headway
from pipeline.log import say
from pipeline.store.base import PARTIAL, room, sha256_of
from pipeline.store.owned import make_owned, may_hold, problem_with
from pipeline.store.retry import seconds

_GIB = 50.0
_IN_USE_S = 3_600.0  # between being handed out and being opened lies far less
_ABANDONED_S = 24 * 3_600.0
_LOCKS = "locks"
_SHORT_S, _LONG_S = 0.01, 0.5  # between two looks at a lock that another process holds, at first and at most
_NAME = re.compile(
    rf"{re.escape(PARTIAL)}.*|([0-9a-f]{{32}}){{1,2}}(\..*)?"
)  # of what the cache makes; anything else is not its own to remove
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


def cache_directory() -> Path:
    """Where copies of remote files lie on this machine. Safe to delete when nothing runs.

    ConfigError where MANTA_CACHE names a directory in which this user cannot have one of its own; without MANTA_CACHE another one is found.
    """
    if named := os.environ.get("MANTA_CACHE"):
        directory, problem = _owned_at(Path(named))
        if problem:
            user = os.getuid()
            expected = f"a directory that user {user} alone writes to, or one to make it in"
            remedy = f"set MANTA_CACHE to a directory of your own, or make one there: install -d -m 700 -o {user} {directory}"
            raise ConfigError(f"MANTA_CACHE: {directory}", expected, problem, remedy)
        return directory
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "manta")
    directory, problem = _owned_at(home)
    return _elsewhere(str(directory), problem) if problem else directory


def _owned_at(place: Path) -> tuple[Path, str | None]:
    """The directory of this user at `place` or below it, made where it is missing, and what is wrong with it."""
    try:
        make_owned(place)
        if (problem := problem_with(place)) is None or not may_hold(place):
            return place, problem
        own = place / _mine()
        make_owned(own)
    except OSError as error:
        return place, f"none, and none can be made ({error.strerror})"
    return own, problem_with(own)


@functools.lru_cache
def _elsewhere(directory: str, problem: str) -> Path:
    """Below the directory for temporary files: of this user, or where somebody put another in its place, of this process."""
    found, wrong = _owned_at(Path(tempfile.gettempdir(), _mine()))
    if wrong:
        found = Path(tempfile.mkdtemp(prefix="manta-"))
        atexit.register(shutil.rmtree, found, ignore_errors=True)
    say(
        f"{directory} cannot hold copies of remote files ({problem}): they go to {found}; MANTA_CACHE names another directory"
    )
    return found


def _mine() -> str:
    return f"manta-{os.getuid()}"


def kept(place: Path, build: Callable[[Path], None], whole: Callable[[Path], bool]) -> Path:
    """`place` in the cache, a file or a folder, once it is whole: as it lies there, or as `build` makes it under a temporary name.

    Of several processes that want it at once one builds; when that one is killed the next one does.
    """
    with _alone(place):
        there = _touched(place)
    if there and whole(place):
        return place
    with _alone(place):
        if not (_touched(place) and whole(place)):
            _built(place, build)
    shrink()
    return place


def digest_of_file(file: Path) -> str:
    """sha256 (hex); a file that has not changed since is not read again."""
    status = file.stat()
    return _digest(file, status.st_ino, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _digest(file: Path, inode: int, size: int, modified_ns: int) -> str:
    return sha256_of(file)


def shrink(limit: int | None = None) -> int:
    """Remove what was used longest ago until at most `limit` bytes (default MANTA_CACHE_GIB) are left, and what killed processes left; bytes removed."""
    limit = int(seconds("MANTA_CACHE_GIB", _GIB) * (1 << 30)) if limit is None else limit
    now, removed = time.time(), 0
    items = sorted((used, place, size) for place in _items() for used, size in [_use(place)])
    total = sum(size for _, _, size in items)
    for used, place, _ in items:
        partial, idle_s = place.name.startswith(PARTIAL), now - used
        if idle_s > _ABANDONED_S if partial else total > limit and idle_s > _IN_USE_S:
            gone = _evicted(place, now)
            total, removed = total - gone, removed + gone
    return removed


def _items() -> Iterator[Path]:
    for shelf in cache_directory().iterdir():
        if shelf.is_dir() and not shelf.is_symlink() and shelf.name != _LOCKS:
            yield from (place for place in shelf.iterdir() if _NAME.fullmatch(place.name))


def _use(place: Path) -> tuple[float, int]:
    """(when it was last handed out, its bytes). What a link leads to is not the cache's."""
    try:
        status = place.lstat()
        if not stat.S_ISDIR(status.st_mode):
            return status.st_atime, status.st_size
        files = (os.path.join(folder, name) for folder, _, names in os.walk(place) for name in names)
        return status.st_mtime, sum(os.lstat(file).st_size for file in files)
    except FileNotFoundError:  # another process removed it meanwhile
        return time.time(), 0


def _evicted(place: Path, now: float) -> int:
    """Bytes of what is gone now; 0 where somebody is at it or has taken it up since."""
    with _alone(place, wait=False) as alone:
        used, size = _use(place)
        if not alone or used >= now - _IN_USE_S:
            return 0
        _remove(place)
        return size


def _built(place: Path, build: Callable[[Path], None]) -> None:
    make_owned(place.parent)
    temporary = place.parent / f"{PARTIAL}{os.getpid()}-{secrets.token_hex(6)}"
    try:
        with room(str(cache_directory())):
            build(temporary)
        _remove(place)
        os.replace(temporary, place)
        _touched(place)
    finally:
        _remove(temporary)


def _touched(place: Path) -> bool:
    """Whether it is there, and no link; then it counts as used now.

    The access time of a file tells, whatever the mount's options, since its modification time belongs to the content; of a folder it is the other way round:
    looking into it is an access.
    """
    now = time.time_ns()
    if place.is_symlink():
        return False
    try:
        os.utime(place, ns=(now, now if place.is_dir() else place.stat().st_mtime_ns))
    except FileNotFoundError:
        return False
    return True


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(place: Path, *, wait: bool = True) -> Iterator[bool]:
    """Whether no other process is at `place` while the block runs; ends with the process, however that ends.

    A fixed number of lock files, those of folders apart from those of files: a folder is built out of files.
    """
    directory = cache_directory() / _LOCKS
    make_owned(directory)
    stripe = f"{place.parent.name[:8]}-{hashlib.sha256(place.name.encode()).hexdigest()[:2]}"
    with _lock_file(directory / stripe) as stream:
        locked = _lock(stream)
        if not locked and wait:
            _wait_for(stream)
            locked = True
        with at_headway(lambda: os.utime(stream.fileno())) if locked else contextlib.nullcontext():
            yield locked


def _lock(stream: BinaryIO) -> bool:
    """Whether the file is locked now; where files have no locks it counts as locked."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _wait_for(stream: BinaryIO) -> None:
    """Lock the file once its holder lets go of it. Headway of the holder, who marks the file with it, is headway of this process: neither hangs."""
    pause_s, known = _SHORT_S, os.fstat(stream.fileno()).st_mtime_ns
    while not _lock(stream):
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONG_S)
        if (marked := os.fstat(stream.fileno()).st_mtime_ns) != known:
            known = marked
            headway()


def _lock_file(place: Path) -> BinaryIO:
    """The file, made where it is missing and never emptied. ConfigError for a link: whoever put it there means another file."""
    try:
        return os.fdopen(
            os.open(place, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "ab"
        )
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConfigError(
            str(place), "a lock file of the cache", "a link", "remove it, and find out who put it there"
        ) from None
