"""Checks of the operations that a store supports, on files made for the check."""

import uuid
from dataclasses import dataclass

from pipeline.errors import ConfigError
from pipeline.store.base import Store


@dataclass(frozen=True)
class StoreProbe:
    """Operations that were tried and worked."""

    writes: bool
    """written bytes are read back"""
    creates_once: bool
    """a second creation is refused"""
    deletes: bool
    """a deleted file is gone"""


def probe(store: Store) -> StoreProbe:
    """Write and read back, create twice and delete a file. Raises OSError if an operation fails."""
    path = f"candidates/probe-{uuid.uuid4().hex}"
    store.write(path, b"written")
    writes = store.read(path) == b"written"
    store.delete(path)
    once = store.create(path, b"first") and not store.create(path, b"second")
    creates_once = once and store.read(path) == b"first"
    store.delete(path)
    return StoreProbe(writes=writes, creates_once=creates_once, deletes=not store.exists(path))


def clock(store: Store) -> float:
    """Return the current time, in seconds since 1970, by the clock that stamps the store's files.

    The clock of this machine may be hours off.
    """
    path = f"candidates/clock-{uuid.uuid4().hex}"
    store.write(path, b"")
    try:
        return next(entry.modified for entry in store.list("candidates") if entry.path == path)
    finally:
        store.delete(path)


def check_store(store: Store, *, creates_once: bool) -> None:
    """Check that the store supports the operations that releases need.

    Args:
        creates_once: whether the store holds commits, and therefore has to refuse a second creation.

    Raises:
        ConfigError: an operation is not supported.
    """
    try:
        works = probe(store)
    except OSError as error:
        found = f"{type(error).__name__}: {error}"
        remedy = "check the path and the permissions"
        raise ConfigError(store.uri, "a writable store", found, remedy) from error
    if not works.writes:
        raise ConfigError(store.uri, "files that are read back as written", "other bytes", "check the store")
    if not works.deletes:
        raise ConfigError(store.uri, "a deleted file to be gone", "it still exists", "check the store")
    if creates_once and not works.creates_once:
        expected, found = "a file to be created only once", "a second creation that replaced the first"
        remedy = (
            "set release.commits_root to a store that has create-once: a shared directory, or another bucket"
        )
        raise ConfigError(store.uri, expected, found, remedy)
