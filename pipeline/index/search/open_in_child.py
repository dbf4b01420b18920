"""Use the files of a release in a child process, because a damaged or crafted file can crash its reader.

The child is a new interpreter: it shares nothing with its parent but the environment. A child
without a memory limit is kept for the next work, unless its work failed.
"""

import contextlib
import errno
import importlib
import importlib.abc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

import pyarrow as pa

from pipeline.cores import limit_memory, write_no_core
from pipeline.daemon import in_daemon_thread
from pipeline.errors import (
    ConfigError,
    DataError,
    MissingFile,
    ModelError,
    PipelineError,
    TransientError,
    is_out_of_memory,
)
from pipeline.index.search.search import open_release
from pipeline.index.search.use_as_searcher import Reading, try_release
from pipeline.keep_alive import keep_alive
from pipeline.store.files.base import Store
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases

# Memory of the child beyond its imports: a multiple of the size of the index and ids files, because some
# indexes cannot be mapped, and room for one search.
_MEMORY_PER_BYTE, _SEARCH_MEMORY = 2, 512 << 20
_THREAD_MEMORY = 32 << 20  # for each core, for the stacks of a few threads
# Time limit of the child: a minimum for its imports on a busy machine, and the time to fetch and read the
# files at the rate of a slow connection to the store.
_START_S, _BYTES_PER_S = 600.0, 4 << 20
_ATTEMPTS = 2  # attempts: a child may be killed from outside once
_POLL_S = 1.0  # time between two keep-alive signals while the child works
_SHOWN = 5  # files that an error names
_MAKE_AGAIN = "delete them and run `manta nightly`, which makes them again, or roll back to another release"
_TOO_LARGE = "roll back to another release, and report it"
_MORE_MEMORY = "make more memory or threads available (ulimit -v, ulimit -u), and run again"


class ChildLimits(NamedTuple):
    """Seconds that a child may take, and bytes of memory that it may use beyond its imports; None: any."""

    seconds: float
    memory: int | None = None

    @classmethod
    def for_bytes(cls, read: int) -> "ChildLimits":
        """Return the limits for reading files of `read` bytes: a time limit, and no limit of memory."""
        return cls(_START_S + read / _BYTES_PER_S)

    def with_memory(self, read: int) -> "ChildLimits":
        """Return these limits with one of memory, for index and ids files of `read` bytes and no filter."""
        threads = _THREAD_MEMORY * (os.cpu_count() or 1)
        return self._replace(memory=_MEMORY_PER_BYTE * read + _SEARCH_MEMORY + threads)


def check_opens(releases: Releases, manifest: ReleaseManifest) -> None:
    """Open a release and use it as searchers do, in a child of limited memory and time.

    Raises:
        DataError: the release cannot be opened, or reading its files crashes the child or does not end.
    """
    read = sum(file.bytes for file in (*manifest.index.files, *manifest.ids))
    stores = (releases.store, releases.commits.store)
    work = partial(_open_and_search, stores, manifest.release)
    limits = ChildLimits.for_bytes(read).with_memory(read)
    run_in_child(work, _uris(releases.store, manifest), limits, _MAKE_AGAIN)


def _open_and_search(stores: Sequence[Store], number: int, reading: Reading) -> None:
    releases = Releases(*stores)
    manifest = releases.get(number)
    reading(_uris(releases.store, manifest))
    release = open_release(releases, number, verify=False)
    try_release(release, manifest.index_parts(), reading, filters=False)


def _uris(store: Store, manifest: ReleaseManifest) -> list[str]:
    return [store.uri_of(file.path) for file in (*manifest.index.files, *manifest.ids)]


def prepare_child(modules: Sequence[str] = ()) -> None:
    """Start a child that imports `modules`, for the next work of this process, unless one waits already."""
    if not _idle:
        _idle.append(_Child(modules))


def end_idle_child() -> None:
    """End the child that waits for work, if there is one."""
    if _idle:
        _idle.pop().end()


def run_in_child(
    work: Callable[[Reading], None], files: Iterable[str], limits: ChildLimits, remedy: str
) -> None:
    """Do work in a child, and send keep-alive signals until the work ends.

    Args:
        work: called in the child. Its argument is a function, which it calls with the URIs of files before it
            reads them.
        files: URIs of files that an error names if the child ends before that call.
        remedy: what to do if files cannot be read.

    Raises:
        DataError: the work failed at these files, or it crashed the child twice or did not end.
        TransientError: the machine lacks memory or threads.
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
        if self.exit_code < 0 and self.exit_code != -signal.SIGKILL:  # a system out of memory sends SIGKILL
            found = f"files that crash a process or exceed its memory (signal {-self.exit_code})"
            return _read_error(self.files, found, remedy)
        return _machine_error(self.files, f"exit code {self.exit_code}")


class _Child:
    """A child process that waits for work."""

    def __init__(self, modules: Sequence[str] = ()) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, tuple(modules)), daemon=True)
        self.process.start()
        theirs.close()

    def end(self) -> None:
        """Kill the child."""
        self.process.kill()
        self.process.join()
        self.connection.close()


_idle: list[_Child] = []
"""the child of this process that has no work, if there is one"""


def _try_apart(
    work: Callable[[Reading], None], files: Sequence[str], limits: ChildLimits, remedy: str
) -> None:
    """Do work in a child once. Raises as `run_in_child`, or _Crash."""
    child = _idle.pop() if _idle else _Child()
    if not child.process.is_alive():  # somebody ended it while it waited
        child.end()
        child = _Child()
    is_kept = False
    try:
        with contextlib.suppress(ConnectionError):  # the connection ends with the child
            child.connection.send((work, limits.memory, dict(os.environ)))
        _await_end(child, files, limits.seconds, remedy)
        is_kept = limits.memory is None
    finally:
        if is_kept and not _idle:
            _idle.append(child)
        else:
            child.end()


def _await_end(child: _Child, files: Sequence[str], limit_s: float, remedy: str) -> None:
    """Receive the names of files, and return or raise as the work does."""
    ends_at = time.monotonic() + limit_s
    while True:
        if not child.connection.poll(_POLL_S):
            keep_alive()
            if time.monotonic() < ends_at:
                continue
            found = f"files whose reader did not end in {limit_s:,.0f} s"
            raise _read_error(files, found, f"try again with a faster connection; else {remedy}")
        try:
            message = child.connection.recv()
        except (EOFError, ConnectionResetError):
            child.process.join()
            raise _Crash(files, child.process.exitcode or 0) from None
        if message is None:
            return
        if isinstance(message, _Files):
            files = message.names
            continue
        raise _error_of(message, files, remedy)


def _error_of(message: "_Failed | Exception", files: Sequence[str], remedy: str) -> Exception:
    """Return the error that a child sent, with the names of the files that it read."""
    if isinstance(message, _Failed):
        if not message.lacks_memory:
            return _read_error(files, message.error, remedy)
        if message.is_limited:
            return _read_error(files, message.error, _TOO_LARGE)
        return _machine_error(files, message.error)
    if isinstance(message, ConfigError | DataError | ModelError):
        where, text = message.where, str(message)
        if not any(name in text or name.startswith(where) for name in files):  # for instance, it names a copy
            return replace(message, where=f"{_join(files)} ({where})")
    return message


def _machine_error(files: Sequence[str], found: str) -> TransientError:
    return TransientError(_join(files), "a process that can read these files", found, _MORE_MEMORY)


def _read_error(files: Sequence[str], found: str, remedy: str) -> DataError:
    return DataError(_join(files), "files that a search can read", found, remedy)


def _join(files: Sequence[str]) -> str:
    more = [f"{len(files) - _SHOWN:,} more"] if len(files) > _SHOWN else []
    return ", ".join([*files[:_SHOWN], *more])


class _Files(NamedTuple):
    """URIs of the files that the child reads from now on."""

    names: tuple[str, ...]


class _Failed(NamedTuple):
    """An error of a library in the child, whether memory was lacking, and whether memory was limited."""

    error: str
    lacks_memory: bool
    is_limited: bool


def _serve(connection: Connection, modules: Sequence[str]) -> None:
    """Do the work that is received, until the parent ends or kills this process. Runs in the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process
    in_daemon_thread(_end_with_parent, "manta-parent")
    write_no_core()
    _keep_arrow_from_pandas()
    for module in modules:
        with contextlib.suppress(Exception):  # the work will raise it again
            importlib.import_module(module)
    with contextlib.suppress(EOFError):
        while True:
            work, memory, environment = connection.recv()
            os.environ.clear()  # the parent's may have changed since this process began
            os.environ.update(environment)
            if memory is not None:
                limit_memory(memory)
            _work(connection, work, memory is not None)


class _NoPandas(importlib.abc.MetaPathFinder):
    """Finds no pandas, although it is installed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _keep_arrow_from_pandas() -> None:
    """Let Arrow look for pandas in vain: it looks once, and takes 0.2 s only to recognise its values."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    pa.array([0])
    sys.meta_path.remove(finder)  # an encoder may import pandas


def _work(connection: Connection, work: Callable[[Reading], None], is_limited: bool) -> None:
    """Do the work, and send the names of files, then None or the error."""
    try:
        work(lambda files: connection.send(_Files(tuple(files))))
    except Exception as error:  # a library may raise anything at a damaged file
        if isinstance(error, PipelineError | ImportError) and not isinstance(error, MissingFile):
            connection.send(error)
            return
        lacks_memory = is_out_of_memory(error)
        is_of_machine = isinstance(error, OSError) and error.errno not in (None, errno.ENOENT)
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        is_sent = is_of_machine and not lacks_memory
        connection.send(error if is_sent else _Failed(text, lacks_memory, is_limited))
    else:
        connection.send(None)


def _end_with_parent() -> None:
    """End this process with its parent, even if the parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
