"""List the files of a path, a glob or a directory, on a disk or in an object store."""

import contextlib
import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from pipeline.config import refuse_credentials, refuse_web_address
from pipeline.errors import ConfigError, DataError
from pipeline.store.files.retry import retrying
from pipeline.text.sources.lake_file import TableFile

# Directory of repaired files at the top of some file systems, which only root may read.
_RECOVERED = "lost+found"


@dataclass(frozen=True)
class FoundFile:
    """A file of a listing."""

    path: str
    """path without the scheme of the URI"""
    uri: str
    size: int
    stamp: str
    """changes whenever the content changes"""
    table: TableFile | None = None
    """the metadata of the file, if it is a data file of a Delta or Iceberg table"""


@dataclass(frozen=True)
class Listing:
    """Files that a path, glob or directory names."""

    base: str
    """directory that the names of the files are relative to"""
    files: list[FoundFile]
    single: bool = False
    """whether the URI names a single file, the only one in `files`"""


def local_path(uri: str) -> str | None:
    """Return the absolute path of a local URI; None for another scheme."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return os.path.abspath(os.path.expanduser(uri))
    return os.path.abspath(unquote(rest.removeprefix("localhost"))) if scheme in ("file", "local") else None


def uri_of(location: str) -> str:
    """Return a location in the metadata of a table as a path or URI of the project.

    Locations on disks are not percent-encoded, and may begin with file:/ and any number of slashes.
    """
    return "/" + location.removeprefix("file:").lstrip("/") if location.startswith("file:") else location


def list_local(path: str) -> Listing:
    """List a file, a directory or a glob on a disk."""
    if os.path.isfile(path):
        return Listing(os.path.dirname(path), list(_stat_files([path])), single=True)
    if os.path.isdir(path):
        return Listing(path, list(_walk(path)))
    if not glob.has_magic(path):
        return Listing(_fixed_part(path), [])
    _check_folders_of_glob(path)
    matches = sorted(glob.glob(path, recursive=True, include_hidden=True))
    return Listing(_fixed_part(path), list(_stat_files(matches)))


def list_remote(uri: str) -> Listing:
    """List a file, a directory or a glob in an object store."""
    if uri.startswith(("s3://", "s3a://")):
        with _missing_bucket(uri):
            return _list_s3(uri.rstrip("/"))
    system, path = _filesystem(uri)
    is_glob = glob.has_magic(path)
    search = system.glob if is_glob else system.find
    files = [
        FoundFile(name, system.unstrip_protocol(name), int(status["size"]), _remote_stamp(status))
        for name, status in retrying(lambda: search(path, detail=True), uri).items()
        if status.get("type") != "directory" and not name.endswith("/")
    ]
    if is_glob:
        return Listing(_fixed_part(path), files)
    if [file.path for file in files] == [path]:
        return Listing(path.rpartition("/")[0], files, single=True)
    return Listing(path, [file for file in files if file.path.startswith(path + "/")])


@contextlib.contextmanager
def _missing_bucket(uri: str) -> Iterator[None]:
    """Turn the error for a missing bucket into an error of the data, like that for a missing directory."""
    try:
        yield
    except ConfigError as error:
        if "NoSuchBucket" not in error.found:
            raise
        raise DataError(uri, error.expected, error.found, "check corpus.uri") from None


def _list_s3(uri: str) -> Listing:
    """List objects in S3 page by page, so that a failed page is requested again."""
    from fsspec.utils import glob_translate

    from pipeline.store.files.s3 import S3Store

    scheme, _, path = uri.partition("://")
    is_glob = glob.has_magic(path)
    base = _fixed_part(path) if is_glob else path
    pattern = re.compile(glob_translate(path)) if is_glob else None
    files = [
        FoundFile(f"{base}/{entry.path}", f"{scheme}://{base}/{entry.path}", entry.size, entry.stamp)
        for entry in S3Store(f"{scheme}://{base}", any_keys=True).list()
        if entry.path
        and not entry.path.endswith("/")
        and not (pattern and not pattern.fullmatch(f"{base}/{entry.path}"))
    ]
    if files or is_glob or "/" not in path:
        return Listing(base, files)
    parent, _, name = path.rpartition("/")
    single = S3Store(f"{scheme}://{parent}", any_keys=True).entry(name)
    if single is None:
        return Listing(path, [])
    return Listing(parent, [FoundFile(path, uri, single.size, single.stamp)], single=True)


def _filesystem(uri: str) -> tuple[Any, str]:
    """Return the fsspec file system and the path of a URI."""
    import fsspec

    refuse_credentials(uri)
    refuse_web_address(uri)
    try:
        system, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            uri,
            "a path, or a URI that fsspec can open",
            str(error),
            "use file:// or s3://, or install the file system's package",
        ) from None
    system.invalidate_cache()  # the files may have changed since this process listed them
    return system, path.rstrip("/")


def _walk(top: str) -> Iterator[FoundFile]:
    """Yield the files below `top`. Links are followed, but no directory is read twice.

    Raises:
        OSError: a directory cannot be read, so its files are unknown.
    """
    seen = set()
    for directory, folders, names in os.walk(top, onerror=_refuse_unreadable, followlinks=True):
        status = os.stat(directory)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort()
        yield from _stat_files(os.path.join(directory, name) for name in names)


def _check_folders_of_glob(pattern: str) -> None:
    """Raise OSError if a directory that the glob lists cannot be read. Python takes it for an empty one."""
    parts = PurePosixPath(pattern).parts
    for index, part in enumerate(parts):
        if not glob.has_magic(part):
            continue
        above = os.path.join(*parts[:index], "")
        listed = f"{above}**/" if part == "**" else above
        for directory in filter(os.path.isdir, glob.iglob(listed, recursive=True, include_hidden=True)):
            try:
                os.scandir(directory).close()
            except OSError as error:
                _refuse_unreadable(error)


def _refuse_unreadable(error: OSError) -> None:
    """Raise the error of a directory, unless the directory is gone, or none of its files would be read."""
    name = os.path.basename(os.path.normpath(error.filename))
    if not (isinstance(error, FileNotFoundError) or name.startswith((".", "_")) or name == _RECOVERED):
        raise error


def _stat_files(paths: Iterable[str]) -> Iterator[FoundFile]:
    """Yield the local files among the paths with their sizes, and modification times as stamps.

    Raises:
        OSError: a path cannot be read.
        DataError: a path is a link whose target does not exist, for instance because its disk is not mounted.
    """
    for path in paths:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            if os.path.islink(path) and not os.path.basename(path).startswith((".", "_")):
                remedy = "restore the file or directory, or remove the link"
                raise DataError(path, "a file or directory", "a link that leads to none", remedy) from None
            continue  # the file was removed since it was listed
        if stat.S_ISREG(status.st_mode):
            yield FoundFile(path, path, status.st_size, str(status.st_mtime_ns))


def _remote_stamp(status: dict[str, Any]) -> str:
    """Return the etag or another value that changes with the content; empty if the file system has none."""
    of_content = ("ETag", "etag", "md5Hash", "blob_id")
    names = (*of_content, "LastModified", "last_modified", "mtime", "updated", "created")
    return next((str(status[name]).strip('"') for name in names if status.get(name)), "")


def _fixed_part(pattern: str) -> str:
    """Return the directory that precedes the first wildcard of a glob."""
    parts = PurePosixPath(pattern).parts
    wild = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return str(PurePosixPath(*parts[:wild])) if wild else ""


def local_names(directory: str) -> list[str]:
    """Return the names of the files directly in a directory; none if it does not exist."""
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def remote_names(top: str, folder: str) -> Iterable[str]:
    """Return the names of the files directly in a folder of an object store; none if it does not exist."""
    if top.startswith(("s3://", "s3a://")):
        from pipeline.store.files.s3 import S3Store

        with _missing_bucket(top):
            return S3Store(top).names(folder)
    system, path = _filesystem(f"{top}/{folder}")

    def entries() -> list[dict[str, Any]]:
        try:
            return list(system.ls(path, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return []

    files = (entry for entry in retrying(entries, top) if entry.get("type") != "directory")
    return [file["name"].rpartition("/")[2] for file in files]
