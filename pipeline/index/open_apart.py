"""Open a release in a child process, because a crafted index file can crash the process that reads it."""

import multiprocessing
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection

from pipeline.cores import limit_memory
from pipeline.errors import DataError, PipelineError
from pipeline.index.search import open_release
from pipeline.index.trial import try_release
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.release import Releases

# Memory of the child beyond its imports: a multiple of the bytes of the index and ids files, for an index
# that cannot be mapped, and room for one search.
_MEMORY_PER_BYTE, _SEARCH_MEMORY = 2, 512 << 20
# Time limit of the child: a minimum for its imports on a busy machine, and the time to fetch and read the
# files at the rate of a slow connection to the store.
_START_S, _BYTES_PER_S = 600.0, 4 << 20
_MAKE_AGAIN = "delete them and run `manta nightly`, which makes them again, or roll back to another release"


def check_opens(releases: Releases, manifest: ReleaseManifest) -> None:
    """Open a release and use it as searchers do, in a child of limited memory and time.

    Raises:
        DataError: the release cannot be opened, or reading its files crashes the child or does not end.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    stores = (releases.store, releases.commits.store)
    child = context.Process(target=_open_and_search, args=(sender, stores, manifest.release), daemon=True)
    child.start()
    sender.close()
    limit_s = _START_S + _count_bytes(manifest) / _BYTES_PER_S
    if not receiver.poll(limit_s):
        child.kill()
        child.join()
        found = f"files whose reader did not end in {limit_s:,.0f} s"
        raise _read_error(
            releases.store, manifest, found, f"try again with a faster connection; else {_MAKE_AGAIN}"
        )
    try:
        error: PipelineError | None = receiver.recv()
    except EOFError:
        child.join()
        code = child.exitcode or 0
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        found = f"files that crash a process or exceed its memory ({end})"
        error = _read_error(releases.store, manifest, found, _MAKE_AGAIN)
    if error is not None:
        raise error


def _count_bytes(manifest: ReleaseManifest) -> int:
    return sum(file.bytes for file in (*manifest.index.files, *manifest.ids))


def _read_error(store: Store, manifest: ReleaseManifest, found: str, remedy: str) -> DataError:
    files = [store.uri_of(file.path) for file in (*manifest.index.files, *manifest.ids)]
    return DataError(
        ", ".join(files),
        "an index and ids that can be read",
        found,
        remedy,
    )


def _open_and_search(sender: Connection, stores: Sequence[Store], number: int) -> None:
    """Send None if the release can be opened and searched, else the error. Runs in the child."""
    releases = Releases(*stores)
    manifest = releases.get(number)
    limit_memory(_MEMORY_PER_BYTE * _count_bytes(manifest) + _SEARCH_MEMORY)
    try:
        try_release(open_release(releases, number, verify=False), filters=False)
    except PipelineError as error:
        sender.send(error)
    except MemoryError:
        sys.exit(1)
    else:
        sender.send(None)
