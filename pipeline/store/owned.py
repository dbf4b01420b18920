"""Directories that only this user can write to, so that their content can be trusted."""

import contextlib
import os
import stat
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_owned(directory: Path) -> None:
    """Make the directory (mode 0700) and its parents if they are missing."""
    # FileExistsError is also raised for a file or a link; `problem_with` reports these.
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)


def problem_with(directory: Path) -> str | None:
    """Describe why the directory is not writable, or may hold files of other users; None if it is fine.

    A symbolic link is followed if this user or root made it.
    """
    user = os.getuid()
    try:
        link = directory.lstat()
        status = directory.stat()
    except OSError as error:
        return str(error.strerror)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (user, 0):
        return f"a link of user {link.st_uid}"
    if not stat.S_ISDIR(status.st_mode):
        return "not a directory"
    if status.st_uid != user:
        return f"a directory of user {status.st_uid}"
    if status.st_mode & _OTHERS_WRITE:
        return f"a directory that others may write to (mode {stat.S_IMODE(status.st_mode):04o})"
    if not os.access(directory, os.W_OK | os.X_OK):
        return "a directory that is not writable"
    return None


def may_hold(directory: Path) -> bool:
    """Return whether this user may make a directory in `directory`.

    Its owner has to be this user, or root as for volumes.
    """
    try:
        return directory.is_dir() and directory.stat().st_uid in (os.getuid(), 0)
    except OSError:
        return False
