"""Whether the files of a release are as its manifest names them: by size, from listings, or by content."""

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import NamedTuple

from pipeline.errors import DataError
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.units import Corpus, FileRef

_THREADS = 16  # requests at once: an object store answers each in tens of milliseconds
_READERS = 4  # files hashed at once
_BLOCK = 8 << 20  # bytes


class Fault(NamedTuple):
    """A file that is not as the release names it. found: None where there is no such file."""

    path: str
    expected: str
    found: str | None

    @property
    def missing(self) -> bool:
        return self.found is None

    @property
    def content(self) -> bool:
        """Whether the size is right and the content is not."""
        return self.expected.startswith("sha256")

    def __str__(self) -> str:
        return (
            f"{self.path} is gone"
            if self.found is None
            else f"{self.path} has {self.found} instead of {self.expected}"
        )


def files_of(store: Store, manifest: ReleaseManifest) -> tuple[FileRef, ...]:
    """Every file that the release needs, each once, except its own manifest.

    Files that only its corpus record names are left out where that is missing. DataError where it was changed or
    is of another version.
    """
    needed = {file.path: file for file in manifest.files()}
    try:
        content = store.read_checked(manifest.corpus.path, manifest.corpus.sha256)
    except FileNotFoundError:
        return tuple(needed.values())
    corpus = Corpus.from_json(content, store.uri_of(manifest.corpus.path))
    return tuple((needed | {file.path: file for file in corpus.references()}).values())


def _known_files(store: Store, manifest: ReleaseManifest) -> tuple[FileRef, ...]:
    """As `files_of`; without the files that only the corpus record names where that cannot be read."""
    try:
        return files_of(store, manifest)
    except DataError:
        return tuple({file.path: file for file in manifest.files()}.values())


def size_faults(store: Store, manifest: ReleaseManifest) -> list[Fault]:
    """Files of the release that are missing or of another size, in path order.

    One listing per folder: a large corpus has tens of thousands of files.
    """
    needed = _known_files(store, manifest)
    folders = sorted({str(PurePosixPath(file.path).parent) for file in needed} - {"."})
    with ThreadPoolExecutor(_THREADS) as pool:
        sizes = {entry.path: entry.size for entries in pool.map(store.list, folders) for entry in entries}
    found = (
        _size_fault(file, sizes[file.path] if file.path in sizes else store.size(file.path))
        for file in needed
    )
    return sorted(fault for fault in found if fault)


def check_files(store: Store, files: Iterable[FileRef]) -> None:
    """Raise DataError for the first of a release's files that is missing or of another size."""
    for file in files:
        if fault := _size_fault(file, store.size(file.path)):
            raise _damaged(store, fault)


def check_sizes(store: Store, manifest: ReleaseManifest) -> None:
    """Raise DataError for the first file of the release, in path order, that is missing or of another size."""
    if faults := size_faults(store, manifest):
        raise _damaged(store, faults[0])


def _damaged(store: Store, fault: Fault) -> DataError:
    remedy = "restore it, run manta nightly, which makes it again, or roll back to a whole release"
    return DataError(store.uri_of(fault.path), fault.expected, fault.found or "no such file", remedy)


def bytes_to_read(store: Store, manifest: ReleaseManifest) -> int:
    """Bytes that `content_faults` reads of a whole release."""
    return sum(file.bytes for file in _known_files(store, manifest) if file.sha256)


def content_faults(
    store: Store, manifest: ReleaseManifest, on_read: Callable[[int], None] = lambda size: None
) -> list[Fault]:
    """Files of the release that are missing, of another size or of another content, in path order.

    Reads every byte; on_read(size) after each file.
    """

    def look(file: FileRef) -> Fault | None:
        if (fault := _size_fault(file, store.size(file.path))) or not file.sha256:
            return fault
        found = _sha256(store, file.path)
        on_read(file.bytes)
        return (
            Fault(file.path, f"sha256 {file.sha256[:16]}...", f"{found[:16]}...")
            if found != file.sha256
            else None
        )

    with ThreadPoolExecutor(_READERS) as pool:
        return sorted(fault for fault in pool.map(look, _known_files(store, manifest)) if fault)


def _size_fault(file: FileRef, size: int | None) -> Fault | None:
    expected = f"{file.bytes:,} bytes"  # 0: of the first roots, which kept no sizes
    if size is None:
        return Fault(file.path, expected, None)
    return Fault(file.path, expected, f"{size:,} bytes") if file.bytes and size != file.bytes else None


def _sha256(store: Store, path: str) -> str:
    """Of the stored bytes themselves, not of a copy in a cache."""
    digest = hashlib.sha256()
    with store.open(path) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
