"""Old releases, old manifests of augmented corpora and abandoned files go; nothing that a kept one needs does."""

from collections.abc import Sequence

from pipeline.errors import TransientError
from pipeline.log import say
from pipeline.store.augmented import TOP, Series, every
from pipeline.store.base import Entry, Store
from pipeline.store.commits import commit_path
from pipeline.store.lease import running
from pipeline.store.manifest import ReleaseManifest, manifest_path
from pipeline.store.probe import clock
from pipeline.store.release import Releases
from pipeline.store.units import Stored, total
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
    TOP,
)

_SAMPLES = 10  # files that are shown


class Pruned(Stored):
    """What prune removed, or would remove. samples: some of the files, the largest first, with their bytes; folders: bytes by top folder."""

    kept: tuple[int, ...]
    removed: tuple[int, ...]
    files: int
    bytes: int
    dry_run: bool = False
    folders: dict[str, int] = {}
    samples: dict[str, int] = {}


def prune(
    releases: Releases,
    keep: int,
    *,
    grace_s: float = 24 * 3600.0,
    now: float | None = None,
    ignore_leases: bool = False,
    dry_run: bool = False,
) -> Pruned:
    """Remove all but the `keep` releases that were current last, and the files that only the removed ones need.

    The `keep` newest manifests of each augmented corpus stay as well, and everything below evaluations/: no release needs it,
    every later evaluation takes it over, and it is safe to delete as a whole while none runs.
    A file that no release names may belong to a night that is running: it goes only once it is older than `grace_s`.
    Releases whose commits were damaged keep their files.
    dry_run: say what would be removed, and remove nothing.
    TransientError while a night is at work: it may take over files that no kept release needs.
    DataError where a damaged commit leaves open which release is current.
    """
    store, series = releases.store, every(releases.store)
    _refuse_unknown_current(releases)
    now = clock(store) if now is None else now
    if not ignore_leases:
        _refuse_beside_a_night(store, series, now)
    kept, dropped = _divided(releases, keep)
    needed = set().union(*(_needs(releases, number) for number in kept))
    needed |= set().union(*(_needs_of_damaged(releases, number) for number in releases.commits.unreadable()))
    released = set().union(*(_needs(releases, number) for number in dropped))
    for each in series:
        needed |= {path for number in each.numbers()[-keep:] for path in _named(each, number)}
        released |= {path for number in each.numbers()[:-keep] for path in _named(each, number)}
    young = now - grace_s
    idle = [entry for top in _OWNED for entry in store.list(top) if entry.path not in needed]
    doomed = [entry for entry in idle if entry.path in released or entry.modified < young]
    swept = 0 if dry_run else _remove(store, doomed, young)
    return Pruned(
        kept=tuple(sorted(kept)),
        removed=tuple(sorted(dropped)),
        files=len(doomed),
        bytes=sum(entry.size for entry in doomed) + swept,
        dry_run=dry_run,
        folders=total({entry.path.partition("/")[0]: entry.size} for entry in doomed),
        samples={
            entry.path: entry.size for entry in sorted(doomed, key=lambda entry: -entry.size)[:_SAMPLES]
        },
    )


def _refuse_unknown_current(releases: Releases) -> None:
    """DataError where the newest commit is damaged and no release of its own: it made an older one current."""
    newest = max(releases.commits.numbers(), default=0)
    if not releases.store.exists(manifest_path(newest)):
        releases.commits.decided(newest)


def _refuse_beside_a_night(store: Store, series: Sequence[Series], now: float) -> None:
    """TransientError that names the command at work."""
    tops = ("candidates", *(each.folder for each in series))
    if nights := [entry for top in tops for entry in running(store, now, top)]:
        found = f"{store.read(nights[0].path).decode()}"
        remedy = "run prune when that night is over; the lease of a run that was killed ends after 20 minutes, or give --ignore-leases"
        raise TransientError(f"{store.uri}: prune", "no night at work", found, remedy)


def _divided(releases: Releases, keep: int) -> tuple[list[int], list[int]]:
    """(releases to keep, releases to remove), those that were current last first."""
    commits = reversed(releases.history())
    recent = list(dict.fromkeys(commit.release for commit in commits if commit.release is not None))
    there = [number for number in recent if releases.store.exists(manifest_path(number))]
    return there[:keep], there[keep:]


def _remove(store: Store, doomed: Sequence[Entry], young: float) -> int:
    """Delete the files, records first: no record without its unit. Bytes freed besides, of what killed writers left."""
    for entry in sorted(doomed, key=lambda entry: (not entry.path.endswith(".json"), entry.path)):
        store.delete(entry.path)
    return store.sweep(young)


def _named(series: Series, number: int) -> set[str]:
    return {series.path(number), series.page(number), *series.get(number).paths(series.store)}


def _needs_of_damaged(releases: Releases, number: int) -> set[str]:
    """Files of the release whose own commit cannot be read; none for a number that has no release. DataError when its manifest is damaged too."""
    manifest = ReleaseManifest.load(releases.store, manifest_path(number))
    if manifest is None:
        return set()
    say(
        f"{releases.commits.store.uri_of(commit_path(number))} cannot be read: the files of release {number} are kept; restore it from a copy"
    )
    return _files(releases, manifest)


def _needs(releases: Releases, number: int) -> set[str]:
    return _files(releases, releases.get(number))


def _files(releases: Releases, manifest: ReleaseManifest) -> set[str]:
    own = {
        f"releases/{manifest.release:08d}/{name}" for name in ("manifest.json", "report.html", "summary.json")
    }
    whitened = (
        releases.store.list(f"units/whitened/{manifest.transform_id[:16]}") if manifest.transform_id else []
    )
    return {
        *(file.path for file in files_of(releases.store, manifest)),
        *own,
        *(entry.path for entry in whitened),
    }
