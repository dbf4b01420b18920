"""What a store can do, tried out on a file of our own."""

import uuid
from dataclasses import dataclass

from pipeline.errors import ConfigError
from pipeline.store.base import Store


@dataclass(frozen=True)
class Probe:
    """writes: what is written is read back; creates_once: a second creation is refused; deletes: what is deleted is gone."""

    writes: bool
    creates_once: bool
    deletes: bool


def probe(store: Store) -> Probe:
    """Write and read back, create twice, delete. OSError where not even that is possible."""
    path = f"candidates/probe-{uuid.uuid4().hex}"
    store.write(path, b"written")
    writes = store.read(path) == b"written"
    store.delete(path)
    creates = (
        store.create(path, b"first") and not store.create(path, b"second") and store.read(path) == b"first"
    )
    store.delete(path)
    return Probe(writes=writes, creates_once=creates, deletes=not store.exists(path))


def clock(store: Store) -> float:
    """The time now, in seconds since 1970, by the clock that stamps the store's files. This machine's own clock may be hours off."""
    path = f"candidates/clock-{uuid.uuid4().hex}"
    store.write(path, b"")
    try:
        return next(entry.modified for entry in store.list("candidates") if entry.path == path)
    finally:
        store.delete(path)


def check_store(store: Store, *, creates_once: bool) -> None:
    """ConfigError with the remedy where a store cannot do what releases need. creates_once: whether commits live in it."""
    try:
        able = probe(store)
    except OSError as error:
        found = f"{type(error).__name__}: {error}"
        raise ConfigError(
            store.uri, "a place where files can be written", found, "check the path and the permissions"
        ) from error
    if not (able.writes and able.deletes):
        raise ConfigError(
            store.uri, "files to be read back as written, and deleted", "otherwise", "check the store"
        )
    if creates_once and not able.creates_once:
        remedy = (
            "set release.commits_root to a store that has create-once: a shared directory, or another bucket"
        )
        raise ConfigError(
            store.uri, "a file to be created only once", "a second creation that replaced the first", remedy
        )
