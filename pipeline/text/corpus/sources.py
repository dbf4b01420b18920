"""The files of a corpus: one file, a glob, or a directory with hive partitions, on disk or in a store."""

import glob
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import pyarrow as pa

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.store import open_store
from pipeline.text.corpus.lakes import LOG_FOLDERS, possible_table_roots, refuse_tables
from pipeline.text.corpus.listing import (
    Listing,
    list_local,
    list_remote,
    local_names,
    local_path,
    remote_names,
)
from pipeline.text.corpus.normalize import has_surrogates, replace_surrogates
from pipeline.text.corpus.storage_errors import storage_errors

Format = Literal["parquet", "jsonl"]
_SUFFIXES: dict[Format, tuple[str, ...]] = {
    "parquet": (".parquet", ".parq", ".pq"),
    "jsonl": (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz"),
}
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_PIECE_BYTES = 8 << 20  # read at once when a file is hashed


@dataclass(frozen=True)
class SourceFile:
    """One input file."""

    name: str
    """path below the corpus directory, separated by /; decides the order of files, and is stored with every
    row
    """
    uri: str
    size: int
    stamp: str
    """changes whenever the content changes"""
    format: Format
    modified: str = ""
    """the stamp of the listing"""
    partitions: dict[str, str | None] = field(default_factory=dict, hash=False)
    """values of the key=value directories of the whole path"""

    def error(self, expected: str, found: str, remedy: str) -> DataError:
        """A DataError about this file."""
        return DataError(self.uri, expected, found, remedy)


def list_files(corpus: CorpusSettings) -> list[SourceFile]:
    """List the files of a corpus by name.

    Names that begin with . or _ and files with other suffixes are left out. The stamp is the etag or the
    modification time in ns; with `corpus.fingerprint: full` it is the sha256 of the content.

    Raises:
        DataError: no file is left, or the files belong to a Delta or Iceberg table.
    """
    path = local_path(corpus.uri)
    with storage_errors(corpus.uri):
        listing = list_remote(corpus.uri) if path is None else list_local(path)
    named = {
        Path(one.path).relative_to(listing.base).as_posix() if listing.base else one.path: one
        for one in listing.found
    }
    if invalid := next((name for name in named if has_surrogates(name)), None):
        raise DataError(corpus.uri, "file names in UTF-8", ascii(invalid), "rename the file")
    files = [
        SourceFile(name, one.uri, one.size, one.stamp, kind, one.stamp, _partitions(one.path))
        for name, one in sorted(named.items())
        if (listing.single or not _is_hidden(name))
        and (kind := _file_format(name, corpus.format, listing.single))
    ]
    if not files:
        raise _no_files(corpus, sorted(named))
    if parquet := [file.name for file in files if file.format == "parquet"]:
        _refuse_lake_tables(corpus.uri, listing, named, parquet)
    full = corpus.fingerprint == "full"
    return [_with_content_stamp(file) if full or not file.stamp else file for file in files]


def open_file(file: SourceFile) -> pa.NativeFile:
    """Open a file for seeking and reading.

    Objects up to 256 MiB are read in one request, larger ones by ranges.
    """
    path = local_path(file.uri)
    if path is not None:
        return pa.OSFile(path)
    parent, name = file.uri.rsplit("/", 1)
    return open_store(parent).open(name)


def is_unchanged(files: list[SourceFile], corpus: CorpusSettings) -> bool:
    """Return whether the files have the same sizes and modification times as when they were listed."""
    listings = files, list_files(corpus.model_copy(update={"fingerprint": "fast"}))
    before, now = ([(file.name, file.size, file.modified) for file in listing] for listing in listings)
    return before == now


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _file_format(name: str, wanted: str, exact: bool) -> Format | None:
    """The format of a file by its suffix; None if it is not a file of the corpus.

    If a format is set, a file without a suffix counts too, and so does the only file that the URI names
    (exact).
    """
    last = name.rsplit("/", 1)[-1].lower()
    for kind, endings in _SUFFIXES.items():
        named = wanted == kind and (exact or "." not in last)
        if named or (wanted in ("auto", kind) and last.endswith(endings)):
            return kind
    return None


def _partitions(path: str) -> dict[str, str | None]:
    """Values of the key=value directories of a path, those of the URI included.

    If a key occurs several times, the innermost directory counts.
    """
    pairs = (replace_surrogates(part).split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    return {key: None if value == _NULL_PARTITION else unquote(value) for key, value in pairs}


def _with_content_stamp(file: SourceFile) -> SourceFile:
    found = hashlib.sha256()
    with storage_errors(file.uri), open_file(file) as stream:
        while piece := stream.read(_PIECE_BYTES):
            found.update(piece)
    return replace(file, stamp=f"sha256:{found.hexdigest()}")


def _refuse_lake_tables(uri: str, listing: Listing, names: Iterable[str], taken: list[str]) -> None:
    """Raise a DataError if the files, or their folder, are part of a Delta or Iceberg table."""
    refuse_tables(uri.rstrip("/"), names, taken)
    local, (scheme, sign, _) = local_path(uri) is not None, uri.partition("://")
    for base in possible_table_roots(listing.base):
        if base == listing.base and not (listing.single or glob.has_magic(uri)):
            continue  # all its files were listed
        top = base if local else f"{scheme}{sign}{base}"
        for folder in LOG_FOLDERS:
            with storage_errors(top):
                inside = local_names(f"{top}/{folder}") if local else remote_names(top, folder)
            refuse_tables(top, (f"{folder}/{name}" for name in inside), taken)


def _no_files(corpus: CorpusSettings, names: list[str]) -> DataError:
    """The error for a corpus without files."""
    allowed = [suffixes for kind, suffixes in _SUFFIXES.items() if corpus.format in ("auto", kind)]
    endings = [suffix for suffixes in allowed for suffix in suffixes]
    shown = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
    return DataError(
        corpus.uri,
        f"files ending in {', '.join(endings)} (names that begin with . or _ are left out)",
        f"only files of other names ({shown})" if names else "nothing there",
        "check corpus.uri, or set corpus.format: parquet or jsonl for files without such an ending",
    )
