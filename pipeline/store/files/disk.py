"""Files and folders of a local disk: temporary ones, their sizes, and errors that say what to do."""

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pipeline.errors import ConfigError, DataError, MissingFile, PipelineError, TransientError

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNREACHABLE = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)  # the server of a network file system is gone
# the last two: a file where a folder is needed
_NOT_WRITABLE = (PermissionError, NotADirectoryError, FileExistsError)


def regular_file(path: str | Path) -> str:
    """Return the path if it leads to a regular file: opening a pipe would wait forever.

    Raises:
        OSError: the path does not lead to a regular file.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "a pipe, a device or a socket, and not a regular file", str(path))
    return str(path)


def describe_missing(error: OSError) -> str:
    """Return what was found where a file was expected: a folder, or no such file."""
    return "a folder" if isinstance(error, IsADirectoryError) else "no such file"


@contextlib.contextmanager
def temporary_folder(prefix: str, parent: str | None = None) -> Iterator[Path]:
    """Yield a directory below `parent` that is removed at the end of the block.

    Args:
        parent: an existing folder; None: the folder of temporary files.

    Raises:
        TransientError: the disk is full, or another process has removed the directory.
        ConfigError: the parent is not writable.
    """
    parent = parent or temporary_files()
    with translate_disk_errors(parent), tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name:
        try:
            yield Path(name)
        except (OSError, RuntimeError, pa.ArrowException, DataError) as error:
            if os.path.exists(name):
                raise
            remedy = "see what removes files there, and run again: finished work is kept"
            raise TransientError(name, "temporary files of a running job", "none", remedy) from error


def temporary_files() -> str:
    """Return the folder of temporary files, even if nothing can be written there."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:  # gettempdir found no folder in which it can write
        return os.environ.get("TMPDIR") or "/tmp"


@contextlib.contextmanager
def translate_disk_errors(where: str) -> Iterator[None]:
    """Replace disk errors that the block raises below the path `where` by errors that say what to do.

    Raises:
        TransientError: the disk is full, or does not answer.
        ConfigError: the directory is not writable.
    """
    try:
        yield
    except (OSError, RuntimeError, pa.ArrowException) as error:
        found = " ".join(str(error).split())
        number = getattr(error, "errno", None)
        if isinstance(error, _NOT_WRITABLE) or number == errno.EROFS:
            raise ConfigError(
                where, "a writable folder", found, "check the path and its permissions"
            ) from error
        if number in _UNREACHABLE:
            raise _unreachable(where, found) from error
        # Arrow and other libraries raise errors without a number for a full disk: only the message shows it.
        if number not in _DISK_FULL and not any(
            os.strerror(each).lower() in found.lower() for each in _DISK_FULL
        ):
            raise
        raise TransientError(
            where,
            "space for a new file",
            found,
            "free disk space or inodes (manta releases prune, or a larger disk) and run again: finished work "
            "is kept",
        ) from error


@contextlib.contextmanager
def translate_read_errors(where: str) -> Iterator[None]:
    """Replace read errors that the block raises below the path `where` by errors that say what to do.

    Raises:
        TransientError: the disk does not answer.
        MissingFile: a file does not exist.
        ConfigError: this user may not read a file or a folder.
    """
    try:
        yield
    except PipelineError:
        raise
    except FileNotFoundError as error:
        raise MissingFile.at(str(error.filename or where)) from error
    except PermissionError as error:
        raise ConfigError(
            where, "files that this user may read", str(error), "check their permissions"
        ) from error
    except OSError as error:
        if error.errno not in _UNREACHABLE:
            raise
        raise _unreachable(where, str(error)) from error


def _unreachable(where: str, found: str) -> TransientError:
    return TransientError(
        where,
        "a disk that answers",
        found,
        "check the disk, or the server of the file system, and run again: finished work is kept",
    )


def tree_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder. Symbolic links are not followed.

    Files that another process removes meanwhile do not count.
    """
    files = [path]
    # `is_symlink` comes first: `is_dir` follows a link, which would update the link's access time.
    if not path.is_symlink() and path.is_dir():
        files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    total = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            total += file.lstat().st_size
    return total


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all its files, if it exists."""
    if not path.is_symlink() and path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
