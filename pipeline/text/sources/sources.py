"""List the files of a corpus: one file, a glob, or a directory with hive partitions, local or remote."""

import contextlib
import glob
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Literal, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from pipeline.errors import ConfigError, DataError
from pipeline.log import counted
from pipeline.settings import CorpusSettings
from pipeline.settings.text_template import parse_template
from pipeline.store.files.base import in_threads
from pipeline.store.files.disk import regular_file
from pipeline.store.files.open_store import store_of
from pipeline.store.files.range_reader import RangeReader
from pipeline.text.normalize import has_surrogates, replace_surrogates
from pipeline.text.sources.detect_lakes import LOG_FOLDERS, list_table, possible_table_roots, refuse_tables
from pipeline.text.sources.lake_file import TableFile
from pipeline.text.sources.listing import (
    Listing,
    list_local,
    list_remote,
    local_names,
    local_path,
    remote_names,
)
from pipeline.text.sources.storage_errors import LEAVE_OUT, storage_errors
from pipeline.where.parse import columns_of

Format = Literal["parquet", "jsonl"]
_SUFFIXES: dict[Format, tuple[str, ...]] = {
    "parquet": (".parquet", ".parq", ".pq"),
    "jsonl": (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz"),
}
LARGE_BYTES = 256 << 20  # larger files are read by ranges, smaller ones as a whole
_COMMIT = re.compile(r"\d{8}\.json")  # name of a file in the folder commits of a release root
_SHOWN = 3  # names of files that are left out
_WRITTEN = ("0/0.json", "0/0.parquet", "0/0/0.parquet")  # like files of releases and of exports
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_PIECE_BYTES = 8 << 20  # bytes of a file that are hashed at once
# Limits of the small objects that are read in advance, several at once: a request alone takes as long as the
# transfer of 2.5 MB.
_ADVANCE_FILES, _ADVANCE_BYTES = 16, 64 << 20


@dataclass(frozen=True)
class SourceFile:
    """One input file."""

    name: str
    """path below the corpus directory, with / between folders; decides the order of the files, and is stored
    with every row
    """
    uri: str
    size: int
    stamp: str
    """changes whenever the content changes"""
    format: Format
    modified: str = ""
    """etag or modification time from the listing; `stamp` begins with it, unless it is a hash of the content
    """
    partitions: dict[str, str | None] = field(default_factory=dict, hash=False)
    """values of the key=value directories in the path, by key"""
    content: bytes | None = field(default=None, repr=False, compare=False)
    """the bytes of the file, if they were read in advance"""
    table: TableFile | None = field(default=None, repr=False, compare=False)
    """the metadata of the file, if it is a data file of a Delta or Iceberg table"""

    def error(self, expected: str, found: str, remedy: str) -> DataError:
        """Create a DataError about this file."""
        return DataError(self.uri, expected, found, remedy)


class CorpusFiles(NamedTuple):
    """The files of a corpus, and those below its URI that are not read."""

    files: list[SourceFile]
    """sorted by name"""
    left_out: dict[str, int]
    """number of files that are not read, by name, or by the folder beginning with . or _ that hides them"""
    uri: str = "corpus.uri"
    """the setting that names the files, or their URI"""

    @property
    def warning(self) -> str | None:
        """Sentence that names files that are left out; None if there are none."""
        names, count = list(self.left_out), sum(self.left_out.values())
        if not names:
            return None
        more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
        files, shown = counted(count, "file"), ", ".join(names[:_SHOWN])
        return f"{files} below {self.uri} not read, by the names: {shown}{more}"


def filter_columns(corpus: CorpusSettings) -> tuple[str, ...]:
    """Return the columns that corpus.where names, each once.

    Raises:
        ConfigError: corpus.where is not a filter.
    """
    try:
        return columns_of(corpus.where) if corpus.where is not None else ()
    except ConfigError as error:
        raise ConfigError(f"corpus.{error.where}", error.expected, error.found, error.remedy) from None


def columns_read(corpus: CorpusSettings) -> tuple[str, ...]:
    """Return the names of all columns that are read, each once."""
    texts = parse_template(corpus.text).columns
    return tuple(dict.fromkeys((corpus.id, *texts, *corpus.keep, *filter_columns(corpus))))


def composed_columns(corpus: CorpusSettings) -> dict[str, str]:
    """Return the columns that corpus.where, or corpus.text as a template, names, each with that setting."""
    template = parse_template(corpus.text)
    texts = () if template.is_column else template.columns
    return dict.fromkeys(texts, "corpus.text") | dict.fromkeys(filter_columns(corpus), "corpus.where")


def list_files(corpus: CorpusSettings) -> list[SourceFile]:
    """List the files of a corpus, sorted by name; see `list_corpus`."""
    return list_corpus(corpus).files


def list_corpus(corpus: CorpusSettings) -> CorpusFiles:
    """List the files of a corpus, and those below its URI that are left out.

    Names that begin with . or _ and files with other suffixes are left out. The stamp is the etag or the
    modification time in ns; with `corpus.fingerprint: full` it is the sha256 of the content. Values that rows
    get from hive directories of the URI itself are part of the stamp. If the URI is that of a Delta or
    Iceberg table, the files are the data files of its snapshot, and the stamp also changes with their deleted
    rows and the names of their columns.

    Raises:
        DataError: there is no file to read, some but not all files of a Delta or Iceberg table are named, or
            the table cannot be read.
        ConfigError: the library that reads the table is not installed.
    """
    filter_columns(corpus)  # raises if corpus.where is not a filter
    table = list_table(corpus)
    if table is not None:
        return CorpusFiles(_files_of_table(corpus, table), {})
    path = local_path(corpus.uri)
    with storage_errors(corpus.uri):
        listing = list_remote(corpus.uri) if path is None else list_local(path)
    base = f"{listing.base.rstrip('/')}/" if listing.base else ""
    by_name = {entry.path.removeprefix(base): entry for entry in listing.files}
    _refuse_arrow_files(corpus.uri, by_name)
    if invalid := next((name for name in by_name if has_surrogates(name)), None):
        raise DataError(corpus.uri, "file names in UTF-8", ascii(invalid), "rename the file")
    files = [
        SourceFile(name, entry.uri, entry.size, entry.stamp, kind, entry.stamp, _partitions(entry.path))
        for name, entry in sorted(by_name.items())
        if (listing.single or not _is_hidden(name))
        and (kind := _file_format(name, corpus.format, listing.single))
    ]
    if not files:
        raise _no_files_error(corpus, sorted(by_name))
    if parquet := [file.name for file in files if file.format == "parquet"]:
        _refuse_lake_tables(corpus.uri, listing, by_name, parquet)
    hash_all = corpus.fingerprint == "full"
    left_out = {} if listing.single else _left_out(by_name, {file.name for file in files})
    files = [_with_content_stamp(file) if hash_all or not file.stamp else file for file in files]
    used = _partitions(base).keys() & set(columns_read(corpus))
    if outer := {key: value for key, value in _partitions(base).items() if key in used}:
        files = [replace(file, stamp=f"{file.stamp} {json.dumps(outer, sort_keys=True)}") for file in files]
    return CorpusFiles(files, left_out)


def _refuse_arrow_files(uri: str, names: Iterable[str]) -> None:
    """Raise DataError for a folder that Hugging Face's `save_to_disk` wrote: its JSON files have no rows."""
    paths = [PurePosixPath(name) for name in names if name.endswith((".arrow", "state.json"))]
    folders = {path.parent for path in paths if path.name == "state.json"}
    if arrow := next((path for path in paths if path.suffix == ".arrow" and path.parent in folders), None):
        raise DataError(
            uri,
            "Parquet or JSON lines",
            f"a data set of Hugging Face in Arrow files ({arrow})",
            'write it as Parquet: datasets.load_from_disk(...).to_parquet("docs.parquet")',
        )


def _left_out(names: Iterable[str], read: set[str]) -> dict[str, int]:
    """Count files that may hold rows but are not read, by name, or by the folder that hides them.

    Hidden files of other formats do not count, because writers leave them (_SUCCESS, .a.parquet.crc), nor do
    the files of a release root below the corpus.
    """
    others = sorted(name for name in names if name not in read)
    split = (name.rpartition("/commits/") for name in others)
    roots = tuple({f"{root}/" for root, _, file in split if root and _COMMIT.fullmatch(file)})
    counts = Counter[str]()
    for name in others:
        parts = name.split("/")
        hidden = next((index for index, part in enumerate(parts, 1) if _is_hidden(part)), None)
        if hidden is None:
            counts[name] += 1
        elif _file_format(name, "auto", single=False) and not name.startswith(roots):
            counts["/".join(parts[:hidden]) + ("/" if hidden < len(parts) else "")] += 1
    return dict(counts)


def _files_of_table(corpus: CorpusSettings, listing: Listing) -> list[SourceFile]:
    """Return the data files of a table."""
    used = set(columns_read(corpus))
    files = [
        SourceFile(entry.path, entry.uri, entry.size, entry.stamp, "parquet", table=entry.table)
        for entry in sorted(listing.files, key=lambda entry: entry.path)
    ]
    if not files:
        raise DataError(corpus.uri, "a table with rows", "no data files", "write rows to it first")
    if corpus.fingerprint == "full":
        files = [_with_content_stamp(file) for file in files]
    stamps = (f"{file.stamp} {file.table.stamp(used) if file.table else ''}" for file in files)
    return [replace(file, stamp=stamp, modified=stamp) for file, stamp in zip(files, stamps, strict=True)]


@contextlib.contextmanager
def reading(file: SourceFile, leave_out: str = LEAVE_OUT) -> Iterator[None]:
    """Turn errors of storage in the block, which reads a file, into errors of the project."""
    with storage_errors(file.uri, leave_out):
        try:
            yield
        except FileNotFoundError as error:
            if file.table is None:
                raise
            raise file.table.missing(file.uri) from error


def open_file(file: SourceFile) -> pa.NativeFile:
    """Open a file to be read from its beginning to its end.

    Objects up to LARGE_BYTES are read in one request, larger ones by ranges with read-ahead.
    """
    if file.content is not None:
        return pa.BufferReader(file.content)
    path = local_path(file.uri)
    if path is not None:
        return pa.OSFile(regular_file(path))
    store, name = store_of(file.uri)
    return pa.BufferReader(store.read(name)) if file.size <= LARGE_BYTES else store.open(name)


def open_ranges(file: SourceFile) -> pa.NativeFile:
    """Open a file for random access. Each read of an object is a request for a range of it."""
    path = local_path(file.uri)
    if path is not None:
        return pa.OSFile(regular_file(path))
    store, name = store_of(file.uri)
    reader = RangeReader(lambda start, stop: store.read_range(name, start, stop).to_pybytes(), file.size)
    return pa.PythonFile(reader, mode="r")


def read_in_advance(files: Iterable[SourceFile]) -> Iterator[SourceFile]:
    """Yield the files in order; small objects come with their content, which threads request together.

    At most _ADVANCE_FILES objects of _ADVANCE_BYTES in all are in memory. A file that cannot be read comes
    without content, so that its error is raised where it is opened.
    """
    group, size = list[SourceFile](), 0
    for file in files:
        is_small_object = local_path(file.uri) is None and file.size <= _ADVANCE_BYTES
        is_full = len(group) == _ADVANCE_FILES or size + file.size > _ADVANCE_BYTES
        if is_full or not is_small_object:
            yield from in_threads(_with_content, group, _ADVANCE_FILES)
            group, size = [], 0
        if is_small_object:
            group.append(file)
            size += file.size
        else:
            yield file
    yield from in_threads(_with_content, group, _ADVANCE_FILES)


def _with_content(file: SourceFile) -> SourceFile:
    try:
        with reading(file), open_file(file) as stream:
            return replace(file, content=stream.read())
    except DataError:
        return file


def is_unchanged(files: list[SourceFile], corpus: CorpusSettings) -> bool:
    """Return whether the files have the same sizes and modification times as when they were listed.

    Data files of a snapshot of a table never change.
    """
    if any(file.table for file in files):
        return True
    now = list_files(corpus.model_copy(update={"fingerprint": "fast"}))
    return [(file.name, file.size, file.modified) for file in files] == [
        (file.name, file.size, file.modified) for file in now
    ]


def is_in_corpus(uri: str, folder: str) -> bool:
    """Return whether releases or exports in a folder would be read as files of the corpus at `uri`."""
    corpus, other = (local_path(each) or each.rstrip("/") for each in (uri, folder))
    pairs = [(corpus, other)]
    if corpus.startswith("/") and other.startswith("/"):
        pairs.append((os.path.realpath(corpus), os.path.realpath(other)))
    return any(
        inner == outer
        or (inner.startswith(f"{outer}/") and not _is_hidden(inner.removeprefix(f"{outer}/")))
        or (glob.has_magic(outer) and _glob_reads(outer, inner))
        for outer, inner in pairs
    )


def check_is_outside(folder: str, setting: str, uri: str, source: str) -> None:
    """Raise ConfigError if files that are written to a folder would be read among those at `uri`.

    Args:
        folder: the folder.
        setting: the setting that names the folder.
        uri: a folder, file or glob.
        source: the setting that names the URI.
    """
    if is_in_corpus(uri, folder):
        raise ConfigError(
            f"{setting}: {folder}",
            f"a folder that is not below {source} ({uri}), whose files are all read",
            "the same folder or one below it",
            f"set {setting} to another folder, or to one whose name begins with _",
        )


def _glob_reads(pattern: str, folder: str) -> bool:
    """Return whether a glob matches files of releases or exports in a folder."""
    fixed = re.split(r"[^/]*[*?[]", pattern, maxsplit=1)[0]
    below = f"{folder}/".removeprefix(fixed)
    if not f"{folder}/".startswith(fixed) or _is_hidden(below):
        return False
    parts = pattern.removeprefix(fixed).split("/")
    return any(_matches(parts, f"{below}{name}".split("/")) for name in _WRITTEN)


def _matches(pattern: list[str], names: list[str]) -> bool:
    if not pattern or not names:
        return not pattern and not names
    if pattern[0] == "**":
        return _matches(pattern[1:], names) or _matches(pattern, names[1:]) or len(pattern) == 1
    return fnmatchcase(names[0], pattern[0]) and _matches(pattern[1:], names[1:])


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) and part not in (".", "..") for part in name.split("/"))


def _file_format(name: str, setting: str, single: bool) -> Format | None:
    """Return the format of a file by its suffix; None if it is not a file of the corpus.

    Args:
        name: name of the file.
        setting: corpus.format; unless it is auto, it also applies to files without a suffix.
        single: True if corpus.uri names this file; corpus.format then applies whatever its suffix.
    """
    last = name.rsplit("/", 1)[-1].lower()
    for kind, suffixes in _SUFFIXES.items():
        is_set = setting == kind and (single or "." not in last)
        if is_set or (setting in ("auto", kind) and last.endswith(suffixes)):
            return kind
    return None


def _partitions(path: str) -> dict[str, str | None]:
    """Return the values of the key=value directories in a path, by key.

    If a key occurs several times, the innermost directory counts.
    """
    pairs = (replace_surrogates(part).split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    return {key: None if value == _NULL_PARTITION else unquote(value) for key, value in pairs}


def _with_content_stamp(file: SourceFile) -> SourceFile:
    """Return the file with the sha256 of its content as the stamp."""
    digest = hashlib.sha256()
    with reading(file), open_file(file) as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
    return replace(file, stamp=f"sha256:{digest.hexdigest()}")


def _refuse_lake_tables(uri: str, listing: Listing, names: Iterable[str], parquet: list[str]) -> None:
    """Raise a DataError if Parquet files of a listing are part of a Delta or Iceberg table.

    The table's log may be among the listed `names`, or in a folder above them.
    """
    refuse_tables(uri.rstrip("/"), names, parquet)
    is_local, scheme = local_path(uri) is not None, uri.partition("://")[0]
    for base in possible_table_roots(listing.base):
        if base == listing.base and not (listing.single or glob.has_magic(uri)):
            continue  # `names` already has all files of this folder
        root = base if is_local else f"{scheme}://{base}"
        for folder in LOG_FOLDERS:
            with storage_errors(root):
                in_folder = local_names(f"{root}/{folder}") if is_local else remote_names(root, folder)
            refuse_tables(root, (f"{folder}/{name}" for name in in_folder), parquet)


def _no_files_error(corpus: CorpusSettings, names: list[str]) -> DataError:
    """Create the error for a corpus without files."""
    formats = [kind for kind in _SUFFIXES if corpus.format in ("auto", kind)]
    endings = [suffix for kind in formats for suffix in _SUFFIXES[kind]]
    shown = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
    return DataError(
        corpus.uri,
        f"files ending in {', '.join(endings)} (names that begin with . or _ are left out)",
        f"only files of other names ({shown})" if names else "nothing there",
        "check corpus.uri, or set corpus.format: parquet or jsonl for files without such an ending",
    )
