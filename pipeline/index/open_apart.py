"""Use the files of a release in a child process, because a damaged or crafted file can crash its reader.

The child is a new interpreter: it shares nothing with its parent but the environment.
"""

import errno
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from pipeline.cores import limit_memory
from pipeline.daemon import in_daemon_thread
from pipeline.errors import MODEL_FAILURES, DataError, PipelineError, TransientError
from pipeline.index.search import open_release
from pipeline.index.trial import Reading, try_release
from pipeline.keep_alive import keep_alive
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.release import Releases

# Memory of the child beyond its imports: a multiple of the bytes of the index and ids files, for an index
# that cannot be mapped, and room for one search.
_MEMORY_PER_BYTE, _SEARCH_MEMORY = 2, 512 << 20
_THREAD_MEMORY = 32 << 20  # for each core, for the stacks of a few threads
# Time limit of the child: a minimum for its imports on a busy machine, and the time to fetch and read the
# files at the rate of a slow connection to the store.
_START_S, _BYTES_PER_S = 600.0, 4 << 20
_ATTEMPTS = 2  # a child may be killed from outside once
_POLL_S = 1.0  # time between two keep-alive signals while the child works
_SHOWN = 5  # files that an error names
_MAKE_AGAIN = "delete them and run `manta nightly`, which makes them again, or roll back to another release"


class ChildLimits(NamedTuple):
    """Bytes of memory that a child may use beyond its imports, and seconds."""

    memory: int
    seconds: float

    @classmethod
    def for_bytes(cls, read: int, memory: int = _SEARCH_MEMORY) -> "ChildLimits":
        """Return limits for reading files of so many bytes.

        Args:
            memory: bytes beside those of the files.
        """
        threads = _THREAD_MEMORY * (os.cpu_count() or 1)
        return cls(_MEMORY_PER_BYTE * read + memory + threads, _START_S + read / _BYTES_PER_S)


def check_opens(releases: Releases, manifest: ReleaseManifest) -> None:
    """Open a release and use it as searchers do, in a child of limited memory and time.

    Raises:
        DataError: the release cannot be opened, or reading its files crashes the child or does not end.
    """
    read = sum(file.bytes for file in (*manifest.index.files, *manifest.ids))
    stores = (releases.store, releases.commits.store)
    work = partial(_open_and_search, stores, manifest.release)
    run_apart(work, _uris(releases.store, manifest), ChildLimits.for_bytes(read), _MAKE_AGAIN)


def _open_and_search(stores: Sequence[Store], number: int, reading: Reading) -> None:
    releases = Releases(*stores)
    manifest = releases.get(number)
    reading(_uris(releases.store, manifest))
    release = open_release(releases, number, verify=False)
    try_release(release, manifest.index_parts(), reading, filters=False)


def _uris(store: Store, manifest: ReleaseManifest) -> list[str]:
    return [store.uri_of(file.path) for file in (*manifest.index.files, *manifest.ids)]


def run_apart(
    work: Callable[[Reading], None], files: Iterable[str], limits: ChildLimits, remedy: str
) -> None:
    """Do work in a new process, and signal that it is alive until it ends.

    Args:
        work: is called in the child with a function, which it calls with the URIs of files before it reads
            them.
        files: URIs of files to name if the child ends before that.
        remedy: what to do if files cannot be read.

    Raises:
        DataError: the work failed at these files, or it crashed the child twice or did not end.
        TransientError: a library ended the child for want of memory or threads.
        PipelineError: the work raised it.
    """
    names = list(files)
    for attempt in range(_ATTEMPTS):
        try:
            return _try_apart(work, names, limits, remedy)
        except _Crash as crash:
            if attempt + 1 == _ATTEMPTS:
                raise crash.as_error(remedy) from None


@dataclass(eq=False)
class _Crash(Exception):
    """The child ended at these files: by a signal, or because a library ended it with an exit code."""

    files: Sequence[str]
    exit_code: int

    def as_error(self, remedy: str) -> PipelineError:
        """Return the error of the files, or of the machine if a library could not start its threads."""
        if self.exit_code < 0:
            found = f"files that crash a process or exceed its memory (signal {-self.exit_code})"
            return _read_error(self.files, found, remedy)
        return TransientError(
            _join(self.files),
            "a process that can read these files",
            f"exit code {self.exit_code}",
            "make more memory or threads available (ulimit -v, ulimit -u), and run again",
        )


def _try_apart(
    work: Callable[[Reading], None], files: Sequence[str], limits: ChildLimits, remedy: str
) -> None:
    """Do work in a new process once. Raises as `run_apart`, or _Crash."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(sender, work, limits.memory), daemon=True)
    child.start()
    sender.close()
    try:
        _await_end(receiver, child, files, limits.seconds, remedy)
    finally:
        child.kill()
        child.join()


def _await_end(
    receiver: Connection, child: BaseProcess, files: Sequence[str], limit_s: float, remedy: str
) -> None:
    """Receive the names of files, and return or raise as the work does."""
    ends_at = time.monotonic() + limit_s
    while True:
        if not receiver.poll(_POLL_S):
            keep_alive()
            if time.monotonic() < ends_at:
                continue
            found = f"files whose reader did not end in {limit_s:,.0f} s"
            raise _read_error(files, found, f"try again with a faster connection; else {remedy}")
        try:
            message = receiver.recv()
        except EOFError:
            child.join()
            raise _Crash(files, child.exitcode or 0) from None
        if message is None:
            return
        if isinstance(message, _Files):
            files = message.names
        elif isinstance(message, _Failed):
            raise _read_error(files, message.error, remedy)
        elif isinstance(message, DataError) and not any(name in str(message) for name in files):
            raise replace(message, where=f"{_join(files)} ({message.where})")  # such as a copy of a file
        else:
            raise message


def _read_error(files: Sequence[str], found: str, remedy: str) -> DataError:
    return DataError(_join(files), "files that a search can read", found, remedy)


def _join(files: Sequence[str]) -> str:
    more = [f"{len(files) - _SHOWN:,} more"] if len(files) > _SHOWN else []
    return ", ".join([*files[:_SHOWN], *more])


class _Files(NamedTuple):
    """URIs of the files that the child reads from now on."""

    names: tuple[str, ...]


class _Failed(NamedTuple):
    """An error that a library raised in the child."""

    error: str


def _work(sender: Connection, work: Callable[[Reading], None], memory: int) -> None:
    """Do the work, and send the names of files, then None or the error. Runs in the child."""
    in_daemon_thread(_end_with_parent, "manta-parent")
    limit_memory(memory)
    try:
        work(lambda files: sender.send(_Files(tuple(files))))
    except (PipelineError, ImportError) as error:
        sender.send(error)
    except (*MODEL_FAILURES, OSError, MemoryError) as error:
        is_of_machine = isinstance(error, OSError) and error.errno not in (None, errno.ENOENT)
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        sender.send(error if is_of_machine else _Failed(text))
    else:
        sender.send(None)


def _end_with_parent() -> None:
    """End this process with its parent, even if that is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
