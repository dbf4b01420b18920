"""Directories that only this user writes to: what lies in them was put there by this user."""

import contextlib
import os
import stat
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_owned(directory: Path) -> None:
    """Make the directory for this user alone (mode 0700), and its parents, where it is missing."""
    with contextlib.suppress(FileExistsError):  # also a file or a link: `problem_with` says so
        directory.mkdir(mode=0o700, parents=True)


def problem_with(directory: Path) -> str | None:
    """Why files in the directory may be somebody else's, or cannot be written, in words; None where neither is so.

    A link is followed where this user or the system's administrator made it.
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
        return "no directory"
    if status.st_uid != user:
        return f"a directory of user {status.st_uid}"
    if status.st_mode & _OTHERS_WRITE:
        return f"a directory that others may write to (mode {stat.S_IMODE(status.st_mode):04o})"
    if not os.access(directory, os.W_OK | os.X_OK):
        return "a directory that may not be written to"
    return None


def may_hold(directory: Path) -> bool:
    """Whether a directory of this user can lie in this one: it belongs to this user or to the system's administrator, as volumes do."""
    try:
        return directory.is_dir() and directory.stat().st_uid in (os.getuid(), 0)
    except OSError:
        return False
