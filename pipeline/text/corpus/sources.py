"""Which files a corpus has: one file, a glob, a directory with hive partitions; on a disk or in an object store."""

import contextlib
import glob
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa

from pipeline.config import refuse_credentials
from pipeline.errors import ConfigError, DataError, PipelineError, TransientError
from pipeline.settings import CorpusSettings
from pipeline.store.retry import is_transient, retrying
from pipeline.store.store import open_store
from pipeline.text.corpus.lakes import FOLDERS, refuse_tables, tops_of
from pipeline.text.corpus.normalize import has_surrogates, replace_surrogates

Format = Literal["parquet", "jsonl"]
_ENDINGS: dict[Format, tuple[str, ...]] = {
    "parquet": (".parquet", ".parq", ".pq"),
    "jsonl": (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz"),
}
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_PIECE = 8 << 20  # bytes read at once when a file is hashed


@dataclass(frozen=True)
class SourceFile:
    """One input file. name: path below the corpus directory, '/'-separated, its place in the order and in lineage; stamp: changes with the content;
    partitions: by the key=value directories of its whole path.
    """

    name: str
    uri: str
    size: int
    stamp: str
    format: Format
    modified: str = ""
    partitions: dict[str, str | None] = field(default_factory=dict, hash=False)

    def error(self, expected: str, found: str, remedy: str) -> DataError:
        """A DataError about this file."""
        return DataError(self.uri, expected, found, remedy)


@dataclass(frozen=True)
class _Found:
    path: str
    uri: str
    size: int
    stamp: str


def list_files(corpus: CorpusSettings) -> list[SourceFile]:
    """The corpus's files by name. Names that begin with . or _ are left out, and so is what has another ending; DataError when nothing is left, and for the
    files of a Delta or Iceberg table.

    The stamp is the etag or the modification time in ns, with `corpus.fingerprint: full` the sha256 of the content.
    """
    path = local_path(corpus.uri)
    with explained(corpus.uri):
        listing = _list_remote(corpus.uri) if path is None else _list_local(path)
    named = {_relative(one.path, listing.base): one for one in listing.found}
    if odd := next((name for name in named if has_surrogates(name)), None):
        raise DataError(corpus.uri, "file names in UTF-8", ascii(odd), "rename the file")
    files = [
        SourceFile(name, one.uri, one.size, one.stamp, kind, one.stamp, _partitions(one.path))
        for name, one in sorted(named.items())
        if (listing.single or not _hidden(name)) and (kind := _format(name, corpus.format, listing.single))
    ]
    if not files:
        raise _nothing(corpus, sorted(named))
    if taken := [file.name for file in files if file.format == "parquet"]:
        _refuse_tables(corpus.uri, listing, named, taken)
    return [
        _with_content_stamp(file) if corpus.fingerprint == "full" or not file.stamp else file
        for file in files
    ]


def open_file(file: SourceFile) -> pa.NativeFile:
    """A seekable reader of the whole file; objects up to 256 MiB come in one request, larger ones by ranges."""
    path = local_path(file.uri)
    if path is not None:
        return pa.OSFile(path)
    parent, name = file.uri.rsplit("/", 1)
    return open_store(parent).open(name)


def unchanged(files: list[SourceFile], corpus: CorpusSettings) -> bool:
    """Whether the listing is still what it was, by size and modification."""
    now = list_files(corpus.model_copy(update={"fingerprint": "fast"}))
    return [(file.name, file.size, file.modified) for file in now] == [
        (file.name, file.size, file.modified) for file in files
    ]


@contextlib.contextmanager
def explained(where: str, leave_out: str = "; corpus.bad_files=skip leaves such files out") -> Iterator[None]:
    """What reading raises as an error of ours: transient (75) where trying again may help, else data (3), and credentials as configuration (2).

    leave_out: what can be done instead of mending a file, as its sentence ends.
    """
    try:
        yield
    except PipelineError:
        raise
    except _storage_errors() as error:
        found = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
        if is_transient(error):
            raise TransientError(where, "an answer of the storage", found, "run again") from error
        if "redentials" in type(error).__name__:
            raise ConfigError(
                where,
                "credentials in the environment",
                found,
                "set AWS_ACCESS_KEY_ID and so on, or give the machine a role",
            ) from error
        if isinstance(error, FileNotFoundError):
            raise DataError(
                where, "a file, a directory or a glob that matches", "nothing there", "check corpus.uri"
            ) from error
        raise DataError(
            where, "a readable file", found, f"mend or remove the file, or its permissions{leave_out}"
        ) from error


def _storage_errors() -> tuple[type[Exception], ...]:
    """Those of the system and of Arrow, and those of the S3 client where it is loaded: they are no OSErrors."""
    module = sys.modules.get("botocore.exceptions")
    return (OSError, pa.ArrowException, *((module.BotoCoreError, module.ClientError) if module else ()))


@dataclass(frozen=True)
class _Listing:
    """base: directory that names are relative to; single: the uri names one file itself."""

    base: str
    found: list[_Found]
    single: bool = False


def local_path(uri: str) -> str | None:
    """The path of a local uri; None for another scheme."""
    scheme, sign, rest = uri.partition("://")
    if not sign:
        return os.path.abspath(os.path.expanduser(uri))
    return os.path.abspath(unquote(rest.removeprefix("localhost"))) if scheme in ("file", "local") else None


def _list_local(path: str) -> _Listing:
    if os.path.isfile(path):
        return _Listing(os.path.dirname(path), [_stat(path)], single=True)
    if os.path.isdir(path):
        return _Listing(path, list(_walk(path)))
    matches = sorted(glob.glob(path, recursive=True, include_hidden=True)) if glob.has_magic(path) else []
    return _Listing(_static(path), [_stat(match) for match in matches if os.path.isfile(match)])


def _list_remote(uri: str) -> _Listing:
    if uri.startswith(("s3://", "s3a://")):
        try:
            return _list_s3(uri.rstrip("/"))
        except ConfigError as error:
            if "NoSuchBucket" not in error.found:
                raise
            raise DataError(
                uri, error.expected, error.found, "check corpus.uri"
            ) from None  # a corpus that is not there, like a missing directory
    system, path = _filesystem(uri)
    magic = glob.has_magic(path)
    search = system.glob if magic else system.find
    listed = retrying(lambda: search(path, detail=True), uri)
    kept = {
        place: status
        for place, status in listed.items()
        if status.get("type") != "directory" and not place.endswith("/")
    }
    found = [
        _Found(place, system.unstrip_protocol(place), int(status["size"]), _remote_stamp(status))
        for place, status in kept.items()
    ]
    if magic:
        return _Listing(_static(path), found)
    if list(kept) == [path]:
        return _Listing(path.rpartition("/")[0], found, single=True)
    return _Listing(path, [one for one in found if one.path.startswith(path + "/")])


def _list_s3(uri: str) -> _Listing:
    """By pages that are asked for again one by one: a corpus has more files than one page holds."""
    from fsspec.utils import glob_translate

    from pipeline.store.s3 import S3Store

    scheme, _, path = uri.partition("://")
    magic = glob.has_magic(path)
    base = _static(path) if magic else path
    entries = S3Store(f"{scheme}://{base}").list()
    wanted = re.compile(glob_translate(path)) if magic else None
    found = [
        _Found(place, f"{scheme}://{place}", one.size, one.stamp)
        for one in entries
        if (place := f"{base}/{one.path}") and (not wanted or wanted.fullmatch(place))
    ]
    if found or magic or "/" not in path:
        return _Listing(base, found)
    parent, _, name = path.rpartition("/")
    alone = S3Store(f"{scheme}://{parent}").entry(name)
    return (
        _Listing(parent, [_Found(path, uri, alone.size, alone.stamp)], single=True)
        if alone
        else _Listing(path, [])
    )


def _filesystem(uri: str) -> tuple[Any, str]:
    import fsspec

    refuse_credentials(uri)
    try:
        system, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            uri,
            "a path, or a URI that fsspec can open",
            str(error),
            "use file:// or s3://, or install the file system's package",
        ) from None
    return system, path.rstrip("/")


def _walk(top: str) -> Iterator[_Found]:
    """Files below `top`, links followed, a directory that is reached twice read once."""
    seen = set()
    for directory, folders, names in os.walk(top, followlinks=True):
        status = os.stat(directory)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort()
        yield from (_stat(path) for name in names if os.path.isfile(path := os.path.join(directory, name)))


def _stat(path: str) -> _Found:
    status = os.stat(path)
    return _Found(path, path, status.st_size, str(status.st_mtime_ns))


def _remote_stamp(status: dict[str, Any]) -> str:
    names = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "mtime", "updated", "created")
    return next((str(status[name]).strip('"') for name in names if status.get(name)), "")


def _static(pattern: str) -> str:
    """The directory before a glob's first wild card."""
    parts = PurePosixPath(pattern).parts
    wild = next((place for place, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return str(PurePosixPath(*parts[:wild])) if wild else ""


def _relative(path: str, base: str) -> str:
    return Path(path).relative_to(base).as_posix() if base else path


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _format(name: str, wanted: str, exact: bool) -> Format | None:
    """The format of a file by its ending, or the wanted one: then a file without any ending, or the only file asked for, is taken too."""
    last = name.rsplit("/", 1)[-1].lower()
    for kind, endings in _ENDINGS.items():
        if wanted in ("auto", kind) and (
            last.endswith(endings) or (wanted == kind and (exact or "." not in last))
        ):
            return kind
    return None


def _partitions(path: str) -> dict[str, str | None]:
    """Values of the key=value directories of a whole path: those of the uri count too, the innermost of one key holds."""
    pairs = (replace_surrogates(part).split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    return {key: None if value == _NULL_PARTITION else unquote(value) for key, value in pairs}


def _with_content_stamp(file: SourceFile) -> SourceFile:
    found = hashlib.sha256()
    with explained(file.uri), open_file(file) as stream:
        while piece := stream.read(_PIECE):
            found.update(piece)
    return replace(file, stamp=f"sha256:{found.hexdigest()}")


def _refuse_tables(uri: str, listing: _Listing, names: Iterable[str], taken: list[str]) -> None:
    """DataError where the files, or the folder that they lie in, are part of a Delta or Iceberg table."""
    refuse_tables(uri.rstrip("/"), names, taken)
    local, (scheme, sign, _) = local_path(uri) is not None, uri.partition("://")
    for base in tops_of(listing.base):
        if base == listing.base and not (listing.single or glob.has_magic(uri)):
            continue  # everything in it was listed
        top = base if local else f"{scheme}{sign}{base}"
        for folder in FOLDERS:
            with explained(top):
                inside = _local_names(f"{top}/{folder}") if local else _remote_names(top, folder)
            refuse_tables(top, (f"{folder}/{name}" for name in inside), taken)


def _local_names(directory: str) -> list[str]:
    """Names of the files in it, not of those further below; none where there is no such directory."""
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remote_names(top: str, folder: str) -> Iterable[str]:
    if top.startswith(("s3://", "s3a://")):
        from pipeline.store.s3 import S3Store

        return S3Store(top).names(folder)
    system, path = _filesystem(f"{top}/{folder}")

    def listed() -> list[dict[str, Any]]:
        try:
            return list(system.ls(path, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return []

    return [
        each["name"].rpartition("/")[2] for each in retrying(listed, top) if each.get("type") != "directory"
    ]


def _nothing(corpus: CorpusSettings, names: list[str]) -> DataError:
    endings = [
        ending for kind, all_of in _ENDINGS.items() if corpus.format in ("auto", kind) for ending in all_of
    ]
    shown = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
    found = f"only files of other names ({shown})" if names else "nothing there"
    expected = f"files ending in {', '.join(endings)} (names that begin with . or _ are left out)"
    return DataError(
        corpus.uri,
        expected,
        found,
        "check corpus.uri, or set corpus.format: parquet or jsonl for files without such an ending",
    )
