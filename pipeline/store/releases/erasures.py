"""Receipts of erasures, and the plan that an erasure stores before its commit, from which it continues.

Neither has an id or a text of an erased row.
"""

import contextlib
from collections.abc import Iterator
from pathlib import PurePosixPath

from pipeline.config import Settings
from pipeline.errors import PipelineError, TransientError
from pipeline.store.files.base import Store
from pipeline.store.files.lease import describe_holders, lease
from pipeline.store.records.sealed_json import Stored
from pipeline.store.releases.commits import ERASURES

_PLAN = "plan.json"
_DEPTH = 2  # parts of the path of a receipt; files of a running erasure are deeper


class ErasedRelease(Settings):
    """A release from which rows were erased."""

    release: int
    rows_before: int
    rows_after: int
    """0 if no row remained: then the release was removed"""


class NotReached(Settings):
    """Copies of erased values that an erasure cannot reach."""

    what: str
    remedy: str


class ErasedFile(Settings):
    """A file before or after an erasure."""

    path: str
    sha256: str
    bytes: int = 0


class ErasureReceipt(Stored):
    """The receipt of an erasure; before its commit, its plan."""

    erasure: str
    """id of the erasure"""
    began_at: str
    """ISO 8601, UTC, to the second"""
    reason: str = ""
    ids: int
    """number of ids that were asked for, or that passed the condition"""
    ids_found: int
    rows: int
    """erased rows in units; each version of a changed row counts"""
    releases: tuple[ErasedRelease, ...] = ()
    units: tuple[str, ...] = ()
    """paths of the corpus units that had erased rows"""
    shared_texts: int = 0
    """number of texts of erased rows that other rows have, too; these rows stay"""
    pages: tuple[str, ...] = ()
    """pages and summaries whose values were replaced"""
    results: tuple[str, ...] = ()
    """results of other commands that were removed: of a replaced manifest, or with an erased row"""
    candidates: int = 0
    """candidates that were removed"""
    before: tuple[ErasedFile, ...] = ()
    """files that releases needed before and do not need any more"""
    after: tuple[ErasedFile, ...] = ()
    """files that releases need in their place"""
    not_reached: tuple[NotReached, ...] = ()
    commit: int | None = None
    """number of the commit; None in a plan"""
    ended_at: str = ""
    removed_files: int = 0
    removed_bytes: int = 0


def plan_path(erasure: str) -> str:
    """Return the path of the plan of an erasure; it is removed at the end."""
    return f"{ERASURES}/{erasure}/{_PLAN}"


def receipt_path(commit: int) -> str:
    """Return the path of the receipt of the erasure with this commit."""
    return f"{ERASURES}/{commit:08d}.json"


def receipt_page(commit: int) -> str:
    """Return the path of the page of a receipt."""
    return f"{ERASURES}/{commit:08d}.html"


def plans(store: Store) -> Iterator[ErasureReceipt]:
    """Yield the plans of erasures that have not ended.

    Raises:
        DataError: a plan is damaged.
    """
    for entry in store.list(ERASURES, _PLAN):
        if (plan := ErasureReceipt.load_intact(store, entry.path)) is not None:
            yield plan


def work_files(store: Store) -> list[str]:
    """List the files that erasures need only until they end; plans come last."""
    paths = [entry.path for entry in store.list(ERASURES) if len(PurePosixPath(entry.path).parts) > _DEPTH]
    return sorted(paths, key=lambda path: PurePosixPath(path).name == _PLAN)


def erasure_runs(store: Store, holder: str) -> PipelineError:
    """Return the error that an erasure is running, given a description of its process."""
    return TransientError(
        store.uri,
        "no running erasure",
        holder,
        "run again after it has ended; the lease of a killed one expires after 20 minutes",
    )


@contextlib.contextmanager
def lease_without_erasure(store: Store) -> Iterator[None]:
    """Hold a lease while the block runs, and raise TransientError if an erasure holds one already.

    An erasure looks for this lease after it has its own, so at least one of the two finds the other.
    """
    with lease(store):
        refuse_during_erasure(store)
        yield


def refuse_during_erasure(store: Store) -> None:
    """Raise TransientError if an erasure is running: it removes files that no release names."""
    for holder in describe_holders(store, ERASURES):
        raise erasure_runs(store, holder)
