"""A store in a directory."""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pipeline.errors import ConfigError, DataError
from pipeline.store.base import PARTIAL, Entry, Store, checked, room, verified

_NO_LINKS = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class LocalStore(Store):
    """A directory. Writes go to a temporary name, are flushed to disk, and take their name in one step.

    The root may be a link, and so may what lies below it as long as it leads to another place below it: a link that leads out is a DataError when it is read or
    written, and no listing shows it. A part of the root that has to lie on another disk is mounted there.
    """

    def read(self, path: str) -> bytes:
        return self._place(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        place = self._place(path)
        with self._temporary(place) as temporary:
            _write_durably(temporary, data)
            os.replace(temporary, place)
        _sync_directory(place.parent)

    def create(self, path: str, data: bytes) -> bool:
        place = self._place(path)
        if place.exists():
            return False
        with self._temporary(place) as temporary:
            _write_durably(temporary, data)
            created = _link_once(temporary, place, data)
        _sync_directory(place.parent)
        return created

    def put(self, local: Path, path: str) -> None:
        place = self._place(path)
        with self._temporary(place) as temporary:
            shutil.move(local, temporary)  # a rename on one disk, a copy across disks
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())
            os.replace(temporary, place)
        _sync_directory(place.parent)

    def open(self, path: str, sha256: str | None = None) -> pa.NativeFile:
        place = verified(self._place(path), sha256, self.uri_of(path))
        return pa.memory_map(str(place)) if place.stat().st_size else pa.OSFile(str(place))

    def local(self, path: str, sha256: str | None = None) -> Path:
        place = self._place(path)
        if not place.is_file():
            raise FileNotFoundError(str(place))
        return verified(place, sha256, str(place))

    def size(self, path: str) -> int | None:
        place = self._place(path)
        return place.stat().st_size if place.is_file() else None

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        top = self._place(prefix) if prefix else Path(self.uri)
        entries = []
        for directory, folders, names in os.walk(top):
            folders[:] = [folder for folder in folders if not folder.startswith(PARTIAL)]
            entries += [
                self._entry(Path(directory, name))
                for name in names
                if name.endswith(suffix) and not name.startswith(PARTIAL)
            ]
        return sorted((entry for entry in entries if entry), key=lambda entry: entry.path)

    def delete(self, path: str) -> None:
        place = Path(self.uri, checked(path))
        self._refuse_outside(place.parent)  # of a link that leads out the link goes
        place.unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        place = Path(self.uri)
        while not place.exists():
            place = place.parent
        return shutil.disk_usage(place).free

    def sweep(self, before: float) -> int:
        left = [
            Path(directory, name)
            for directory, folders, names in os.walk(self.uri)
            for name in (*folders, *names)
            if name.startswith(PARTIAL)
        ]
        return sum(_removed(place) for place in left if place.exists() and place.stat().st_mtime < before)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        _make(Path(self.uri), self.uri)
        mine = f"{PARTIAL}{_process_space()}-"
        for place in Path(self.uri).glob(f"{mine}*-*"):
            if _is_dead(place.name.split("-")[-2]):  # a killed run's, and it may be as large as the corpus
                _removed(place)
        with (
            tempfile.TemporaryDirectory(prefix=f"{mine}{os.getpid()}-", dir=self.uri) as directory,
            room(self.uri),
        ):
            yield Path(directory)

    def _place(self, path: str) -> Path:
        place = Path(self.uri, checked(path))
        self._refuse_outside(place)
        return place

    def _refuse_outside(self, place: Path) -> None:
        if not self._is_inside(place):
            remedy = "mount the other disk there instead, or do not use what put the link in place"
            raise DataError(
                str(place), "a place below the root", f"a link to {os.path.realpath(place)}", remedy
            )

    def _is_inside(self, place: Path) -> bool:
        root = os.path.realpath(self.uri)
        return os.path.commonpath([root, os.path.realpath(place)]) == root

    def _entry(self, place: Path) -> Entry | None:
        try:
            status = place.stat()
        except FileNotFoundError:  # removed while we were listing, or a link to nothing
            return None
        if place.is_symlink() and not self._is_inside(place):
            return None
        return Entry(
            place.relative_to(self.uri).as_posix(), status.st_size, str(status.st_mtime_ns), status.st_mtime
        )

    @contextlib.contextmanager
    def _temporary(self, place: Path) -> Iterator[Path]:
        _make(place.parent, self.uri)
        temporary = place.parent / f"{PARTIAL}{os.getpid()}-{secrets.token_hex(6)}"
        try:
            with room(self.uri):
                yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def _make(folder: Path, root: str) -> None:
    """Make a folder and those above it. ConfigError where that is not possible, as in a file system of the kernel's such as /proc."""
    try:
        with room(root):
            folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        raise ConfigError(
            root, "a folder that may be written to", " ".join(str(error).split()), "check the path"
        ) from error


def _removed(place: Path) -> int:
    """Bytes of the file or directory that is gone afterwards; whoever else removes it at the same time is welcome."""
    files = [place] if place.is_file() else [file for file in place.rglob("*") if file.is_file()]
    size = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            size += file.stat().st_size
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)
    return size


def _process_space() -> str:
    """Where a process number means what it means here, 12 hex digits: pods may share a directory, a host name, and even the kernel."""
    facts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # only Linux tells
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        facts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


def _is_dead(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (ValueError, PermissionError):
        return False
    return False


def _write_durably(place: Path, data: bytes) -> None:
    with place.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems refuse to sync a directory; the name is theirs to keep
        pass
    finally:
        os.close(handle)


def _link_once(temporary: Path, place: Path, data: bytes) -> bool:
    try:
        os.link(temporary, place)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _claim_once(place, data)
    return True


def _claim_once(place: Path, data: bytes) -> bool:
    """On a file system without hard links: the name itself is claimed, and given up again when the content does not fit."""
    try:
        handle = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        place.unlink(missing_ok=True)
        raise
    return True
