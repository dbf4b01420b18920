"""Remove old releases, old manifests of augmented corpora, and files that no kept one needs."""

from collections.abc import Sequence

from pipeline.errors import TransientError
from pipeline.log import say
from pipeline.store.augmented import AUGMENTED_FOLDER, Series, every
from pipeline.store.base import Entry, Store
from pipeline.store.commits import commit_path
from pipeline.store.lease import running
from pipeline.store.manifest import ReleaseManifest, manifest_path, report_path
from pipeline.store.probe import clock
from pipeline.store.release import Releases
from pipeline.store.stored import Stored
from pipeline.store.units import total
from pipeline.store.verify import files_of

_OWNED = (
    "units",
    "keys",
    "moments",
    "transforms",
    "indexes",
    "ids",
    "encoders",
    "quarantine",
    "candidates",
    "releases",
    AUGMENTED_FOLDER,
)

_SAMPLES = 10  # files shown to the user


class Pruned(Stored):
    """The files that prune removed, or would remove in a dry run."""

    kept: tuple[int, ...]
    """numbers of the releases that are kept"""
    removed: tuple[int, ...]
    """numbers of the releases that are removed"""
    files: int
    bytes: int
    dry_run: bool = False
    folders: dict[str, int] = {}
    """bytes by top folder"""
    samples: dict[str, int] = {}
    """bytes of the largest files, by path"""


def prune(
    releases: Releases,
    keep: int,
    *,
    grace_s: float = 24 * 3600.0,
    ignore_leases: bool = False,
    dry_run: bool = False,
) -> Pruned:
    """Remove old releases and manifests of augmented corpora, and the files that only these need.

    Releases whose commits are damaged keep their files. Everything below evaluations/ is kept, for later
    evaluations.

    Args:
        keep: number of releases to keep, those that were current last, and of manifests per augmented corpus.
        grace_s: age in seconds below which a file that no release names is kept: a running night may need it.
        ignore_leases: run although a night holds a lease.
        dry_run: report the files without removing them.

    Raises:
        TransientError: a night is running, which may reuse files that no kept release needs.
        DataError: a damaged commit leaves open which release is current.
    """
    store, series = releases.store, every(releases.store)
    newest = max(releases.commits.numbers(), default=0)
    if not store.exists(manifest_path(newest)):
        releases.commits.decided(newest)  # a damaged rollback leaves open which release is current
    now = clock(store)
    if not ignore_leases:
        _refuse_if_leased(store, series, now)
    kept, dropped = _divided(releases, keep)
    needed = set().union(*(_files(releases, releases.get(number)) for number in kept))
    needed |= set().union(*(_files_of_damaged(releases, number) for number in releases.commits.unreadable()))
    released = set().union(*(_files(releases, releases.get(number)) for number in dropped))
    for each in series:
        numbers = each.numbers()
        needed |= set().union(*(each.files(number) for number in numbers[-keep:]))
        released |= set().union(*(each.files(number) for number in numbers[:-keep]))
    before = now - grace_s
    unneeded = [entry for top in _OWNED for entry in store.list(top) if entry.path not in needed]
    removed = [entry for entry in unneeded if entry.path in released or entry.modified < before]
    swept = 0 if dry_run else _remove(store, removed, before)
    return Pruned(
        kept=tuple(sorted(kept)),
        removed=tuple(sorted(dropped)),
        files=len(removed),
        bytes=sum(entry.size for entry in removed) + swept,
        dry_run=dry_run,
        folders=total({entry.path.partition("/")[0]: entry.size} for entry in removed),
        samples={
            entry.path: entry.size for entry in sorted(removed, key=lambda entry: -entry.size)[:_SAMPLES]
        },
    )


def _refuse_if_leased(store: Store, series: Sequence[Series], now: float) -> None:
    """Raise TransientError with the lease of a running command."""
    tops = ("candidates", *(each.folder for each in series))
    if leases := [entry for top in tops for entry in running(store, now, top)]:
        raise TransientError(
            f"{store.uri}: prune",
            "no running night",
            store.read(leases[0].path).decode(),
            "run prune after that night has ended; the lease of a killed run expires after 20 minutes, "
            "or pass --ignore-leases",
        )


def _divided(releases: Releases, keep: int) -> tuple[list[int], list[int]]:
    """Return the releases to keep and those to remove, most recently current first."""
    commits = reversed(releases.history())
    recent = list(dict.fromkeys(commit.release for commit in commits if commit.release is not None))
    existing = [number for number in recent if releases.store.exists(manifest_path(number))]
    return existing[:keep], existing[keep:]


def _remove(store: Store, files: Sequence[Entry], before: float) -> int:
    """Delete the files, and temporary files of killed writers that are older than `before`.

    Records go first, so that no record is ever stored without its unit.

    Returns:
        The bytes of the temporary files.
    """
    for entry in sorted(files, key=lambda entry: (not entry.path.endswith(".json"), entry.path)):
        store.delete(entry.path)
    return store.sweep(before)


def _files_of_damaged(releases: Releases, number: int) -> set[str]:
    """Return the files of release `number`, whose commit cannot be read; none without such a release.

    Raises:
        DataError: the manifest of the release is damaged too.
    """
    manifest = ReleaseManifest.load(releases.store, manifest_path(number))
    if manifest is None:
        return set()
    where = releases.commits.store.uri_of(commit_path(number))
    say(f"{where} cannot be read: the files of release {number} are kept; restore the commit from a copy")
    return _files(releases, manifest)


def _files(releases: Releases, manifest: ReleaseManifest) -> set[str]:
    number = manifest.release
    paths = {manifest_path(number), report_path(number), f"releases/{number:08d}/summary.json"}
    paths |= {file.path for file in files_of(releases.store, manifest)}
    if manifest.transform_id:
        paths |= {entry.path for entry in releases.store.list(f"units/whitened/{manifest.transform_id[:16]}")}
    return paths
