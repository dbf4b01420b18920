"""Create and check directories that only this user can write to, so that their content can be trusted."""

import contextlib
import os
import stat
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_private_directory(directory: Path) -> None:
    """Make the directory (mode 0700) and its parents if they are missing."""
    # FileExistsError is also raised for a file or a link; `ownership_problem` reports these.
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)


def ownership_problem(directory: Path) -> str | None:
    """Describe why the directory is not writable, or may contain files of other users; None if it is fine.

    A symbolic link is followed if this user or root made it.
    """
    user = os.getuid()
    try:
        link_status = directory.lstat()
        status = directory.stat()
    except OSError as error:
        return str(error.strerror)
    if stat.S_ISLNK(link_status.st_mode) and link_status.st_uid not in (user, 0):
        return f"a link of user {link_status.st_uid}"
    if not stat.S_ISDIR(status.st_mode):
        return "not a directory"
    if status.st_uid != user:
        return f"a directory of user {status.st_uid}"
    if status.st_mode & _OTHERS_WRITE:
        return f"a directory that others may write to (mode {stat.S_IMODE(status.st_mode):04o})"
    if not os.access(directory, os.W_OK | os.X_OK):
        return "a directory that is not writable"
    return None


def can_make_directory_in(directory: Path) -> bool:
    """Return whether a private directory may be made in `directory`.

    `directory` must belong to this user, or to root, which owns a container's mounted volumes.
    """
    try:
        return directory.is_dir() and directory.stat().st_uid in (os.getuid(), 0)
    except OSError:
        return False
