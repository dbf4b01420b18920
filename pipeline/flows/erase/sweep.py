"""Remove the files that no release needs after an erasure, because they may have the erased rows.

This is a module of its own beside `erase`, because it alone deletes files, and only after the commit.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from pipeline.store.files.base import Entry, Store, in_threads
from pipeline.store.files.lease import is_lease
from pipeline.store.records.augmented import list_series
from pipeline.store.releases.manifest import report_path
from pipeline.store.releases.release import Releases
from pipeline.store.releases.summary import summary_path
from pipeline.store.releases.unpublished import NIGHTS
from pipeline.store.releases.verify import needed_files

_SWEPT = (
    *("candidates", "releases", "keys", "units", "moments", "quarantine", "indexes", "ids"),
    *("transforms", "relevance"),
)
"""folders of files that nights make; the augmented corpora have files below units/ and keys/, too"""
_OF_UNITS = ("units/", "moments/", "quarantine/")
"""folders of files that are named by the sha256 of the corpus unit that they were made from"""
_UNIT = re.compile(r"([0-9a-f]{24})(?![0-9a-f])")


class Swept(NamedTuple):
    """The files that were removed."""

    files: int = 0
    bytes: int = 0


def needed_paths(releases: Releases) -> set[str]:
    """Return the paths of the files of all releases and of the augmented corpora."""
    numbers = releases.numbers()
    paths = set(releases.manifest_paths(numbers).values())
    for number in numbers:
        paths |= {report_path(number), summary_path(number)}
        paths |= {file.path for file in needed_files(releases.store, releases.get(number))}
    for series in list_series(releases.store):
        for number in series.numbers():
            paths |= series.files(number)
    return paths


def sweep(releases: Releases, erased_units: Iterable[str], *, dry_run: bool = False) -> Swept:
    """Remove unneeded files, records first, so that no record is ever stored without its unit.

    Units of nights that published nothing stay if they have no erased row, so that no text is encoded again.

    Args:
        erased_units: paths of the corpus units that had erased rows.
    """
    store, needed = releases.store, needed_paths(releases)
    clean = _names(entry.path for entry in store.list("units/corpus")) - _names(erased_units)
    removed = list[Entry]()
    for is_record in (True, False):
        for page in _pages(store):
            files = [
                entry
                for entry in page
                if entry.path.endswith(".json") == is_record
                and entry.path not in needed
                and not _is_kept(entry.path, clean)
            ]
            removed += files
            if not dry_run:
                in_threads(store.delete, [entry.path for entry in files])
    return Swept(len(removed), sum(entry.size for entry in removed))


def _pages(store: Store) -> Iterator[Sequence[Entry]]:
    for folder in _SWEPT:
        yield from store.pages(folder)


def _names(paths: Iterable[str]) -> set[str]:
    return {PurePosixPath(path).stem for path in paths}


def _is_kept(path: str, clean: set[str]) -> bool:
    """Return whether an unneeded file has none of the erased rows: a lease, or a file of another unit."""
    if is_lease(path) or path.startswith(f"{NIGHTS}/"):
        return True
    if not path.startswith(_OF_UNITS) or path.startswith("units/whitened/"):
        return False
    name = _UNIT.match(PurePosixPath(path).name) or _UNIT.match(PurePosixPath(path).parent.name)
    return name is not None and name[1] in clean
