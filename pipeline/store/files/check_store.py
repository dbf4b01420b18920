"""Check the operations and the clock of a store on temporary files."""

import uuid

from pipeline.errors import ConfigError
from pipeline.store.files.base import Store


def clock(store: Store) -> float:
    """Return the current time, in seconds since 1970, by the clock that dates the store's files.

    Ages of files must not be measured by the clock of this machine, which may differ by hours.
    """
    path = f"candidates/clock-{uuid.uuid4().hex}"
    store.write(path, b"")
    try:
        return next(entry.modified for entry in store.list("candidates") if entry.path == path)
    finally:
        store.delete(path)


def check_store(store: Store, *, creates_once: bool) -> None:
    """Check that the store supports the operations that releases need: write, read, delete, create once.

    Args:
        creates_once: also check that a file can be created only once, which a store of commits needs.

    Raises:
        ConfigError: an operation fails, or does not do what it should.
    """
    path = f"candidates/probe-{uuid.uuid4().hex}"
    try:
        store.write(path, b"written")
        if store.read(path) != b"written":
            raise ConfigError(store.uri, "the bytes that were written", "other bytes", "check the store")
        store.delete(path)
        creates_only_once = (
            store.create(path, b"first")
            and not store.create(path, b"second")
            and store.read(path) == b"first"
        )
        store.delete(path)
        if store.exists(path):
            raise ConfigError(store.uri, "a deleted file to be gone", "it still exists", "check the store")
    except OSError as error:
        raise ConfigError(
            store.uri,
            "a writable store",
            f"{type(error).__name__}: {error}",
            "check the path and the permissions",
        ) from error
    if creates_once and not creates_only_once:
        raise ConfigError(
            store.uri,
            "a file to be created only once",
            "a second creation that replaced the first",
            "set release.commits_root to a store that has create-once: a shared directory, or another bucket",
        )
