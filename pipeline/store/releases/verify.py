"""Compare the files of a release with its manifest: by size, as listings give it, or by content."""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from pipeline.errors import DataError
from pipeline.store.files.base import Store, in_threads
from pipeline.store.files.file_sizes import ListedFiles, file_hash
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import Corpus, UnitRecord
from pipeline.store.releases.manifest import ReleaseManifest

_READERS = 4  # files hashed concurrently
WHOLE_BYTES = 8 << 20  # files up to this size are read as a whole


class Fault(NamedTuple):
    """A file of a release that is missing, or differs from the manifest."""

    path: str
    expected: str
    found: str | None
    """None for a missing file"""

    @property
    def is_missing(self) -> bool:
        """True if the file does not exist."""
        return self.found is None

    @property
    def is_content_changed(self) -> bool:
        """True if the file has the right size but another content."""
        return self.expected.startswith("sha256")

    def __str__(self) -> str:
        problem = "is gone" if self.is_missing else f"has {self.found} instead of {self.expected}"
        return f"{self.path} {problem}"


def files_of(store: Store, manifest: ReleaseManifest) -> tuple[FileRef, ...]:
    """Return the files that `needed_files` yields, each once."""
    return tuple({file.path: file for file in needed_files(store, manifest)}.values())


def needed_files(store: Store, manifest: ReleaseManifest) -> Iterator[FileRef]:
    """Yield the files that the release needs, except its manifest; some of them several times.

    If the corpus record is missing, the files that only this record names are left out.

    Raises:
        DataError: the corpus record was changed, or has another schema version; or the table of units is
            missing or was changed.
    """
    yield from manifest.all_references()
    with contextlib.suppress(FileNotFoundError):
        yield from Corpus.read(store, manifest.corpus).references()


def _known_files(store: Store, manifest: ReleaseManifest) -> tuple[FileRef, ...]:
    """Return the files whose sizes are compared.

    These are all files of the release. If the corpus record is damaged, the files that only this record
    names are left out.

    Raises:
        DataError: the table of units is missing or was changed.
    """
    try:
        return files_of(store, manifest)
    except DataError:
        return tuple({file.path: file for file in manifest.all_references()}.values())


def _files_to_read(store: Store, manifest: ReleaseManifest) -> tuple[FileRef, ...]:
    """Return the result of `_known_files`; if the table of units is damaged, only the files that the manifest
    names.
    """
    try:
        return _known_files(store, manifest)
    except DataError:
        return tuple({file.path: file for file in manifest.references()}.values())


def size_faults(store: Store, manifest: ReleaseManifest) -> list[Fault]:
    """Return the files of the release that are missing or have another size, in path order.

    Sizes come from one listing per folder, because a large corpus has tens of thousands of files.
    """
    folders = set[str]()

    def hashes() -> Iterator[int]:
        for path, size in _known_sizes(store, manifest):
            folders.add(path.rpartition("/")[0])
            yield file_hash(path, size or None)  # 0 in records of the earliest versions, which have no sizes

    needed = np.fromiter(hashes(), np.int64)
    listed = ListedFiles(store, sorted(folders - {""}))
    if listed.has_all(needed):
        return []
    suspects = {
        path: size for path, size in _known_sizes(store, manifest) if not listed.has(path, size or None)
    }
    sizes = in_threads(store.size, suspects)
    return sorted(filter(None, map(_size_fault, suspects, suspects.values(), sizes)))


def _known_sizes(store: Store, manifest: ReleaseManifest) -> Iterator[tuple[str, int]]:
    """Yield path and size of the files that `_known_files` returns, some several times, with one record in
    memory at a time.

    Raises:
        DataError: the table of units is missing or was changed.
    """
    with contextlib.suppress(FileNotFoundError, DataError):
        corpus = Corpus.read(store, manifest.corpus)
        yield from ((file.path, file.bytes) for file in corpus.references())
        del corpus
    yield from manifest.sizes()


def check_files(store: Store, files: Iterable[FileRef]) -> None:
    """Raise DataError for the first of `files` that is missing or has another size."""
    for file in files:
        if fault := _size_fault(file.path, file.bytes, store.size(file.path)):
            raise _fault_error(store, fault)


def check_sizes(store: Store, manifest: ReleaseManifest) -> None:
    """Raise DataError for the release's first file, by path, that is missing or has another size."""
    if faults := size_faults(store, manifest):
        raise _fault_error(store, faults[0])


def _fault_error(store: Store, fault: Fault) -> DataError:
    return DataError(
        store.uri_of(fault.path),
        fault.expected,
        fault.found or "no such file",
        "restore it, run `manta nightly` to make it again, or roll back to a complete release",
    )


def bytes_to_read(store: Store, manifest: ReleaseManifest) -> int:
    """Return the number of bytes that `content_faults` reads if no file is missing."""
    return sum(file.bytes for file in _files_to_read(store, manifest) if file.sha256)


def content_faults(
    store: Store, manifest: ReleaseManifest, on_read: Callable[[int], None] = lambda size: None
) -> list[Fault]:
    """Return the files of the release that are missing or differ in size or content, in path order.

    Args:
        on_read: called with the size of each file after all its bytes were read.
    """

    return faults_of(store, _files_to_read(store, manifest), on_read)


def faults_of(
    store: Store, files: Iterable[FileRef], on_read: Callable[[int], None] = lambda size: None
) -> list[Fault]:
    """Return those of `files` that are missing or differ in size or content, in path order.

    Files without sha256 are records of units, which have a seal.

    Args:
        on_read: called with the size of each file after all its bytes were read.
    """

    def fault_of(file: FileRef) -> Fault | None:
        try:
            if not file.sha256:
                return _record_fault(store, file)
            found = stored_sha256(store, file.path, file.bytes)
        except FileNotFoundError:
            return _size_fault(file.path, file.bytes, None)
        on_read(file.bytes)
        if found == file.sha256:
            return None
        of_content = Fault(file.path, f"sha256 {file.sha256[:16]}...", f"{found[:16]}...")
        return _size_fault(file.path, file.bytes, store.size(file.path)) or of_content

    return sorted(filter(None, in_threads(fault_of, files, _READERS)))


def _record_fault(store: Store, file: FileRef) -> Fault | None:
    try:
        record = UnitRecord.load(store, file.path)
    except DataError as error:
        return Fault(file.path, "sha256 of its seal", error.found)
    if record is not None and record.source and f"/{record.source[:24]}" not in file.path:
        return Fault(file.path, "the record of its unit", f"that of {record.name}")
    return _size_fault(file.path, file.bytes, None) if record is None else None


def new_files(store: Store, manifest: ReleaseManifest, before: ReleaseManifest | None) -> list[FileRef]:
    """Return the files that a release needs and an earlier release does not, in path order.

    If the earlier release's corpus record or table of units is damaged, all files are returned.

    Raises:
        DataError: as `needed_files`, for the later release.
    """
    known, files = np.zeros(0, np.int64), files_of(store, manifest)
    with contextlib.suppress(DataError):
        known = _content_hashes(needed_files(store, before)) if before is not None else known
    is_new = ~np.isin(_content_hashes(files), known)
    return sorted((files[number] for number in np.flatnonzero(is_new)), key=lambda file: file.path)


def _content_hashes(files: Iterable[FileRef]) -> np.ndarray:
    return np.fromiter((hash((file.path, file.sha256)) for file in files), np.int64)


def _size_fault(path: str, size: int, found: int | None) -> Fault | None:
    """Return the fault of a file whose size is `found` (None if it is missing) instead of `size`; None if
    they are equal.
    """
    expected = f"{size:,} bytes"
    if found is None:
        return Fault(path, expected, None)
    return Fault(path, expected, f"{found:,} bytes") if size and found != size else None


def stored_sha256(store: Store, path: str, size: int) -> str:
    """Return the sha256 of the stored bytes of a file of `size` bytes, not of a cached copy."""
    if size <= WHOLE_BYTES:  # one request: `open` asks an object store for the size, too
        return hashlib.sha256(store.read(path)).hexdigest()
    with store.open(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
