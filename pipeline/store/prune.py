"""Old releases, old manifests of augmented corpora and abandoned files go; nothing that a kept one needs does."""

from pipeline.errors import TransientError
from pipeline.store.augmented import TOP, Series, every
from pipeline.store.lease import running
from pipeline.store.probe import clock
from pipeline.store.release import Releases, files_of, manifest_path
from pipeline.store.units import Stored

_OWNED = ("units", "keys", "moments", "transforms", "indexes", "ids", "encoders", "quarantine", "candidates", "releases", TOP)


class Pruned(Stored):
    kept: tuple[int, ...]
    removed: tuple[int, ...]
    files: int
    bytes: int


def prune(releases: Releases, keep: int, *, grace_s: float = 24 * 3600.0, now: float | None = None, ignore_leases: bool = False) -> Pruned:
    """Remove all but the `keep` releases that were current last and the `keep` newest manifests of each augmented corpus, and every file that only the removed ones need.

    What lies below evaluations/ stays: no release needs it, and every later evaluation takes it over. It is safe to delete as a whole while none runs.
    A file that no release names may belong to a night that is running: it goes only once it is older than `grace_s`.
    TransientError while a night is at work: it may take over files that no kept release needs.
    """
    series = every(releases.store)
    now = clock(releases.store) if now is None else now
    if not ignore_leases and (nights := [entry for top in ("candidates", *(each.folder for each in series)) for entry in running(releases.store, now, top)]):
        found = f"{releases.store.read(nights[0].path).decode()}"
        remedy = "run prune when that night is over; the lease of a run that was killed ends after 20 minutes, or give --ignore-leases"
        raise TransientError(f"{releases.store.uri}: prune", "no night at work", found, remedy)
    recent = list(dict.fromkeys(commit.release for commit in reversed(releases.history()) if commit.release is not None))
    there = [number for number in recent if releases.store.exists(manifest_path(number))]
    kept, dropped = there[:keep], there[keep:]
    needed = set().union(*(_needs(releases, number) for number in kept)) if kept else set()
    released = set().union(*(_needs(releases, number) for number in dropped)) if dropped else set()
    for each in series:
        needed |= {path for number in each.numbers()[-keep:] for path in _named(each, number)}
        released |= {path for number in each.numbers()[:-keep] for path in _named(each, number)}
    young = now - grace_s
    idle = [entry for top in _OWNED for entry in releases.store.list(top) if entry.path not in needed]
    doomed = [entry for entry in idle if entry.path in released or entry.modified < young]
    for entry in sorted(doomed, key=lambda entry: (not entry.path.endswith(".json"), entry.path)):      # records first: no record without its unit
        releases.store.delete(entry.path)
    swept = releases.store.sweep(young)
    return Pruned(kept=tuple(sorted(kept)), removed=tuple(sorted(dropped)), files=len(doomed), bytes=sum(entry.size for entry in doomed) + swept)


def _named(series: Series, number: int) -> set[str]:
    return {series.path(number), series.page(number), *series.get(number).paths(series.store)}


def _needs(releases: Releases, number: int) -> set[str]:
    manifest = releases.get(number)
    own = {f"releases/{number:08d}/{name}" for name in ("manifest.json", "report.html")}
    whitened = releases.store.list(f"units/whitened/{manifest.transform_id[:16]}") if manifest.transform_id else []
    return {*files_of(releases.store, manifest), *own, *(entry.path for entry in whitened)}
