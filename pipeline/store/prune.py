"""Old releases and abandoned files go; nothing that a kept release needs does."""

import time
from collections.abc import Iterable

from pipeline.store.release import Releases, manifest_path
from pipeline.store.units import Corpus, Stored

_OWNED = ("units", "keys", "moments", "transforms", "indexes", "ids", "encoders", "quarantine", "candidates", "releases")


class Pruned(Stored):
    kept: tuple[int, ...]
    removed: tuple[int, ...]
    files: int
    bytes: int


def prune(releases: Releases, keep: int, *, grace_s: float = 24 * 3600.0, now: float | None = None) -> Pruned:
    """Remove all but the `keep` releases that were current last, and every file that only the removed ones need.

    A file that no release names may belong to a night that is running: it goes only once it is older than `grace_s`.
    """
    recent = list(dict.fromkeys(commit.release for commit in reversed(releases.history()) if commit.release is not None))
    there = [number for number in recent if releases.store.exists(manifest_path(number))]
    kept, dropped = there[:keep], there[keep:]
    needed = set().union(*(_needs(releases, number) for number in kept)) if kept else set()
    released = set().union(*(_needs(releases, number) for number in dropped)) if dropped else set()
    young = (now or time.time()) - grace_s
    idle = [entry for top in _OWNED for entry in releases.store.list(top) if entry.path not in needed]
    doomed = [entry for entry in idle if entry.path in released or entry.modified < young]
    for entry in sorted(doomed, key=lambda entry: (not entry.path.endswith(".json"), entry.path)):      # records first: no record without its unit
        releases.store.delete(entry.path)
    swept = releases.store.sweep(young)
    return Pruned(kept=tuple(sorted(kept)), removed=tuple(sorted(dropped)), files=len(doomed), bytes=sum(entry.size for entry in doomed) + swept)


def _needs(releases: Releases, number: int) -> set[str]:
    manifest = releases.get(number)
    corpus = Corpus.load(releases.store, manifest.corpus.path)
    own: Iterable[str] = (f"releases/{number:08d}/{name}" for name in ("manifest.json", "report.html"))
    behind = [ref.path for ref in (*corpus.keys, corpus.quarantine) if ref] if corpus else []
    return {*manifest.paths(), *own, *behind, *([unit.path for unit in corpus.units] if corpus else [])}
