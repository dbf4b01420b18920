"""Compare the files of a release with its manifest: by size, from listings, or by content."""

import contextlib
import hashlib
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

from pipeline.errors import DataError
from pipeline.store.base import Store, in_threads
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.stored import FileRef
from pipeline.store.units import Corpus

_READERS = 4  # files hashed concurrently
_BLOCK = 8 << 20  # bytes


class Fault(NamedTuple):
    """A file of a release that is missing, or differs from the manifest."""

    path: str
    expected: str
    found: str | None
    """None for a missing file"""

    @property
    def missing(self) -> bool:
        """True if the file does not exist."""
        return self.found is None

    @property
    def content(self) -> bool:
        """True if the size is right and the content is not."""
        return self.expected.startswith("sha256")

    def __str__(self) -> str:
        return f"{self.path} " + (
            "is gone" if self.missing else f"has {self.found} instead of {self.expected}"
        )


def files_of(store: Store, manifest: ReleaseManifest) -> tuple[FileRef, ...]:
    """Return the files that the release needs, each once, except its manifest.

    Without the corpus record, the files that only this record names are left out.

    Raises:
        DataError: the corpus record was changed, or is of another version.
    """
    needed = {file.path: file for file in manifest.references()}
    with contextlib.suppress(FileNotFoundError):
        needed |= {file.path: file for file in Corpus.read(store, manifest.corpus).references()}
    return tuple(needed.values())


def _known_files(store: Store, manifest: ReleaseManifest) -> tuple[FileRef, ...]:
    """Return `files_of`; if the corpus record cannot be read, the files that the manifest names."""
    try:
        return files_of(store, manifest)
    except DataError:
        return tuple({file.path: file for file in manifest.references()}.values())


def size_faults(store: Store, manifest: ReleaseManifest) -> list[Fault]:
    """Return the files of the release that are missing or have another size, in path order.

    Sizes come from one listing per folder: a large corpus has tens of thousands of files.
    """
    needed = _known_files(store, manifest)
    folders = sorted({str(PurePosixPath(file.path).parent) for file in needed} - {"."})
    sizes = {entry.path: entry.size for found in in_threads(store.list, folders) for entry in found}

    faults = (
        _size_fault(file, sizes[file.path] if file.path in sizes else store.size(file.path))
        for file in needed
    )
    return sorted(filter(None, faults))


def check_files(store: Store, files: Iterable[FileRef]) -> None:
    """Raise DataError for the first of these files of a release that is missing or has another size."""
    for file in files:
        if fault := _size_fault(file, store.size(file.path)):
            raise _damaged(store, fault)


def check_sizes(store: Store, manifest: ReleaseManifest) -> None:
    """Raise DataError for the release's first file, by path, that is missing or has another size."""
    if faults := size_faults(store, manifest):
        raise _damaged(store, faults[0])


def _damaged(store: Store, fault: Fault) -> DataError:
    return DataError(
        store.uri_of(fault.path),
        fault.expected,
        fault.found or "no such file",
        "restore it, run manta nightly, which makes it again, or roll back to a complete release",
    )


def bytes_to_read(store: Store, manifest: ReleaseManifest) -> int:
    """Return the number of bytes that `content_faults` reads if no file is missing."""
    return sum(file.bytes for file in _known_files(store, manifest) if file.sha256)


def content_faults(
    store: Store, manifest: ReleaseManifest, on_read: Callable[[int], None] = lambda size: None
) -> list[Fault]:
    """Return the files of the release that are missing or differ in size or content, in path order.

    Args:
        on_read: called with the size of each file after all its bytes were read.
    """

    def look(file: FileRef) -> Fault | None:
        if (fault := _size_fault(file, store.size(file.path))) or not file.sha256:
            return fault
        found = _sha256(store, file.path)
        on_read(file.bytes)
        if found == file.sha256:
            return None
        return Fault(file.path, f"sha256 {file.sha256[:16]}...", f"{found[:16]}...")

    return sorted(filter(None, in_threads(look, _known_files(store, manifest), _READERS)))


def _size_fault(file: FileRef, size: int | None) -> Fault | None:
    expected = f"{file.bytes:,} bytes"  # 0 in records of the earliest versions, which kept no sizes
    if size is None:
        return Fault(file.path, expected, None)
    return Fault(file.path, expected, f"{size:,} bytes") if file.bytes and size != file.bytes else None


def _sha256(store: Store, path: str) -> str:
    """Return the sha256 of the stored bytes, not of a cached copy."""
    digest = hashlib.sha256()
    with store.open(path) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
