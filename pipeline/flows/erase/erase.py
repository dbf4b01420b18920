"""Erase rows from a root: write new files, replace manifests with one commit, remove the old files.

Until the commit nothing changes for readers, and after it every reader sees the new manifests. A command that
was killed is run again: before the commit it begins again and finds the files that it has written, after it
the rest of the old files is removed.
"""

from pipeline.errors import TransientError
from pipeline.flows.erase.choose import EraseRequest, choose_rows
from pipeline.flows.erase.rewrite import RowsToErase
from pipeline.flows.erase.root import Root, connected
from pipeline.flows.erase.sweep import sweep
from pipeline.flows.night.report.releases_page import refresh_page
from pipeline.log import Stages, announce
from pipeline.report.erasure import render_receipt
from pipeline.store.files.base import Store, in_threads
from pipeline.store.files.check_store import clock
from pipeline.store.files.lease import SERVED, describe, exclusive_lease, holders
from pipeline.store.records.augmented import list_series
from pipeline.store.releases.commits import ERASURES, Commit, utc_now
from pipeline.store.releases.erasures import (
    ErasureReceipt,
    erasure_runs,
    plans,
    receipt_page,
    receipt_path,
    work_files,
)
from pipeline.store.releases.left_out import add_left_out
from pipeline.store.releases.prune import refuse_if_leased
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import files_of


def erase(
    releases: Releases, request: EraseRequest, stages: Stages, *, verbose: bool = False
) -> ErasureReceipt | None:
    """Erase all rows with the ids from all files below the root.

    Returns:
        The receipt; for a dry run, the plan. None if nothing was found. If an erasure that was killed after
        its commit is finished by this call, and nothing else is found, its receipt.

    Raises:
        ConfigError: an id is still in the corpus.
        TransientError: a command that needs files of the root is running, or another one committed meanwhile.
        DataError: a file of a release is missing or damaged.
    """
    store = releases.store
    with exclusive_lease(store, ERASURES, lambda holder: erasure_runs(store, holder)):
        if not request.ignore_leases:
            _refuse_if_used(store)
        finished = None if request.dry_run else finish_erasures(releases)
        root = Root.load(releases)
        with connected(root, stages, verbose=verbose) as context:
            work = RowsToErase(root, context, request, choose_rows(root, context, request))
            if request.dry_run:
                return work.describe()
            if (planned := work.write()) is None:
                return finished
        plan, manifests = planned
        left_out = None
        if request.forever:
            left_out = add_left_out(store, releases.commits.left_out(), work.rows.erased.ids)
        commit = releases.erase(root.next_commit, plan.erasure, manifests, request.reason, left_out)
        if commit is None:
            raise TransientError(
                f"{store.uri}: erase",
                "no other commit while the rows are erased",
                f"commit {root.next_commit} of another command",
                "run again: files that were written are used",
            )
        return _end(releases, plan, commit)


def finish_erasures(releases: Releases) -> ErasureReceipt | None:
    """Remove the old files of erasures that were killed after their commit. Returns the last receipt."""
    commits = {commit.erasure: commit for commit in releases.history() if commit.erasure}
    receipt = None
    for plan in list(plans(releases.store)):
        if (commit := commits.get(plan.erasure)) is not None:
            announce(f"the erasure of commit {commit.commit} was stopped: its old files are removed now")
            receipt = _end(releases, plan, commit)
    return receipt


def _refuse_if_used(store: Store) -> None:
    """Raise TransientError if a running command or service needs files of the root."""
    now = clock(store)
    refuse_if_leased(store, list_series(store), now, command="erase")
    for path, holder in holders(store, SERVED, now):
        raise TransientError(
            f"{store.uri}: erase",
            "no service or copy that uses the root",
            f"{path}: {describe(holder) if holder else 'no lease that a command wrote'}",
            "stop it and run again; or pass --ignore-leases: a service on this machine's disk keeps the old "
            "files open until it follows the new release",
        )


def _end(releases: Releases, plan: ErasureReceipt, commit: Commit) -> ErasureReceipt:
    """Remove what no release needs any more, and write the receipt."""
    store = releases.store
    candidates = {entry.path.split("/")[1] for entry in store.list("candidates", "manifest.json")}
    # before the sweep, because manifests of augmented corpora are among them
    in_threads(store.delete, plan.results)
    swept = sweep(releases, plan.units)
    manifests = map(releases.get, releases.numbers())
    store.discard_copies_but({file.sha256 for each in manifests for file in files_of(store, each)})
    receipt = plan.model_copy(
        update={
            "commit": commit.commit,
            "ended_at": utc_now(),
            "candidates": len(candidates),
            "removed_files": swept.files,
            "removed_bytes": swept.bytes,
        }
    )
    store.write(receipt_page(commit.commit), render_receipt(receipt, store.uri).encode())
    store.write(receipt_path(commit.commit), receipt.to_json())
    refresh_page(releases)
    for path in work_files(store):
        store.delete(path)
    return receipt
