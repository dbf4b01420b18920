"""The file of a query log: one service appends lines, and both age and size are bounded by rewriting it.

Whoever writes holds a lock on the file for that moment, and finds the file by its name again, because another
process may have replaced it (`manta query-log --forget`). Only its owner can read it.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import ConfigError
from pipeline.text.query_log.draws import sampled
from pipeline.text.query_log.lines import LineReader, LoggedQuery

MAX_BYTES = 64 << 20
"""largest size of a log"""
_MODE = 0o600
_BEGIN = b'{"time": "'  # every log begins with it
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # never waits for a pipe


class Rewritten(NamedTuple):
    """Numbers of lines of a log that was rewritten."""

    before: int
    kept: int
    damaged: int
    """lines that could not be read; they are not kept"""


class LogFull(OSError):
    """The log has its largest size, and could not be made smaller."""


@dataclass(frozen=True)
class QueryLogFile:
    """A query log that this process writes."""

    path: Path
    days: int = 14
    """a line is removed when its day is this many days ago"""
    max_bytes: int = MAX_BYTES

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Be the only service that writes the log while the block runs. Makes the file if it is missing.

        Raises:
            ConfigError: another process holds it, or the file cannot be written by this user alone.
        """
        lock = self.path.with_name(f"{self.path.name}.lock")
        where = f"--log-queries {self.path}"
        try:
            with os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)) as holder:
                try:
                    fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise ConfigError(
                        where,
                        "a file that no other service writes",
                        f"one that holds {lock}",
                        "give each service a file of its own: manta query-log takes several",
                    ) from None
                with _opened(self.path, os.O_CREAT) as log:
                    _check_file(log, self.path)
                yield
        except OSError as error:
            if isinstance(error, LogFull) or str(error.filename) not in (str(lock), str(self.path)):
                raise
            raise ConfigError(
                where, "a file that can be written", str(error), "check the path and its permissions"
            ) from None

    def append(self, query: LoggedQuery) -> None:
        """Append a line, or nothing.

        Raises:
            LogFull: the log is too large.
            OSError: the line cannot be written, for instance because the disk is full.
        """
        line = query.to_line().encode()
        with _opened(self.path, os.O_CREAT) as log:
            size = os.fstat(log).st_size
            if size and os.pread(log, 1, size - 1) != b"\n":  # a kill cut the last line off
                line = b"\n" + line
            if size + len(line) > self.max_bytes:
                raise LogFull(f"{self.path} has {size:,} bytes already")
            try:
                if os.write(log, line) < len(line):
                    raise OSError(f"{self.path}: the disk took a part of a line")
            except OSError:
                os.ftruncate(log, size)  # no part of a line stays
                raise

    def tidy(self, now: datetime) -> int | None:
        """Rewrite the log without lines that are too old, and without lines beyond the clients' samples.

        Lines of the future are as old as they are early. If more than half of the largest size is left, the
        samples are halved until it is not.

        Returns:
            Number of lines of a client and a day that are kept today; None without a line of today.

        Raises:
            OSError: the file cannot be read or written; then it is as before.
        """
        first = (now - timedelta(days=self.days)).date().isoformat()
        last = (now + timedelta(days=self.days)).date().isoformat()  # beyond it a clock was wrong
        kept: list[LoggedQuery] = []

        def change(queries: Sequence[LoggedQuery]) -> Sequence[LoggedQuery]:
            current = [query for query in queries if first < query.day < last]
            kept[:] = _fitting(sampled(current), self.max_bytes // 2)
            return kept

        rewrite_log(self.path, change)
        today = [query.per_client for query in kept if query.day == now.date().isoformat()]
        return min(today, default=None)


def read_log(path: Path) -> tuple[list[LoggedQuery], int]:
    """Read a log. Returns its queries, and the number of damaged lines.

    Raises:
        OSError: there is no such file, or it cannot be read.
    """
    reader = LineReader()
    with open(path, "rb") as lines:
        return list(reader.read(lines)), reader.damaged


def rewrite_log(path: Path, change: Callable[[Sequence[LoggedQuery]], Sequence[LoggedQuery]]) -> Rewritten:
    """Replace a log, in one step, by the queries that `change` returns. A service may be writing it.

    Raises:
        OSError: the log cannot be read, or a new file cannot be written; the log is as before.
        ConfigError: the file is no log.
    """
    with _opened(path) as log:
        _check_begin(log, path)
        reader = LineReader()
        with os.fdopen(os.dup(log), "rb") as lines:
            lines.seek(0)
            before = list(reader.read(lines))
        kept = change(before)
        if reader.damaged or len(kept) != len(before) or any(map(_differs, kept, before)):
            _replace(path, [query.to_line().encode() for query in kept])
        return Rewritten(len(before), len(kept), reader.damaged)


def _differs(one: LoggedQuery, other: LoggedQuery) -> bool:
    return one is not other and one != other


def _replace(path: Path, lines: Sequence[bytes]) -> None:
    new = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()  # a kill left it
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        raise


def _fitting(queries: list[LoggedQuery], limit: int) -> list[LoggedQuery]:
    """Return a smaller sample of queries whose lines have at most `limit` bytes."""
    per_client = min((query.per_client for query in queries), default=1)
    while (size := sum(len(query.to_line()) for query in queries)) > limit:
        if per_client > 1:
            per_client //= 2
            lowered = (query.model_copy(update={"per_client": per_client}) for query in queries)
            queries = sampled(lowered)
        else:  # many clients: the queries with the lowest numbers are a sample of all
            most = max(1, int(len(queries) * limit / size))
            lowest = sorted(query.draw for query in queries)[: most - 1]
            queries = [query for query in queries if lowest and query.draw <= lowest[-1]]
    return queries


@contextlib.contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    """Open the file that has this name, and hold the lock of its writers while the block runs."""
    while True:
        log = os.open(path, _FLAGS | flags, _MODE)
        try:
            fcntl.flock(log, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(log), os.stat(path)):
                    yield log
                    return
        finally:
            os.close(log)


def _check_file(log: int, path: Path) -> None:
    """Let only the owner read the file; raise ConfigError if it is no regular file."""
    status = os.fstat(log)
    if not stat.S_ISREG(status.st_mode):
        found = "a pipe, a device or a socket"
        raise ConfigError(f"--log-queries {path}", "a regular file", found, "give another path")
    _check_begin(log, path)
    if stat.S_IMODE(status.st_mode) != _MODE:
        os.fchmod(log, _MODE)


def _check_begin(log: int, path: Path) -> None:
    """Raise ConfigError for a file that is no log: rewriting it would remove what is in it."""
    begin = os.pread(log, len(_BEGIN), 0)
    first = begin.partition(b"\n")[0]  # a kill may have cut off the first line
    if begin and not (first and _BEGIN.startswith(first)):
        raise ConfigError(
            str(path), "a log of queries, or an empty file", "another file", "give another path"
        )


def now_utc() -> datetime:
    """Return the time."""
    return datetime.now(UTC)
