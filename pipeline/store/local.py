"""A store in a local directory."""

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
from pipeline.store.base import PARTIAL, Entry, Store, checked, remove, room, tree_bytes, verified
from pipeline.store.lease import is_running

_NO_LINKS = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class LocalStore(Store):
    """A store in a directory. Files are written under a temporary name, flushed to disk and renamed.

    The root may be a symbolic link. Links below the root have to lead to a path below the root: reading or
    writing any other link raises DataError, and listings leave it out. To keep a part of the root on another
    disk, mount that disk.
    """

    shared = False

    def read(self, path: str) -> bytes:
        return self._absolute(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        with self._temporary(self._absolute(path), replace=True) as temporary:
            _write_durably(temporary, data)

    def create(self, path: str, data: bytes) -> bool:
        file = self._absolute(path)
        if file.exists():
            return False
        with self._temporary(file) as temporary:
            _write_durably(temporary, data)
            return _link_once(temporary, file, data)

    def put(self, local: Path, path: str) -> None:
        with self._temporary(self._absolute(path), replace=True) as temporary:
            shutil.move(local, temporary)  # a rename on one disk, a copy across disks
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())

    def open(self, path: str, sha256: str | None = None) -> pa.NativeFile:
        file = verified(self._absolute(path), sha256, self.uri_of(path))
        return pa.memory_map(str(file)) if file.stat().st_size else pa.OSFile(str(file))

    def local(self, path: str, sha256: str | None = None) -> Path:
        file = self._absolute(path)
        if not file.is_file():
            raise FileNotFoundError(str(file))
        return verified(file, sha256, str(file))

    def entry(self, path: str) -> Entry | None:
        file = self._absolute(path)
        return self._entry(file) if file.is_file() else None

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        entries = []
        for directory, folders, names in os.walk(self._absolute(prefix) if prefix else self.uri):
            folders[:] = [folder for folder in folders if not folder.startswith(PARTIAL)]
            entries += [
                self._entry(Path(directory, name))
                for name in names
                if name.endswith(suffix) and not name.startswith(PARTIAL)
            ]
        return sorted((entry for entry in entries if entry), key=lambda entry: entry.path)

    def delete(self, path: str) -> None:
        file = Path(self.uri, checked(path))
        self._refuse_outside(file.parent)  # not of the file: a link out of the root is deleted itself
        file.unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        folder = Path(self.uri)
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def sweep(self, before: float) -> int:
        partial = [
            Path(directory, name)
            for directory, folders, names in os.walk(self.uri)
            for name in (*folders, *names)
            if name.startswith(PARTIAL)
        ]
        freed = 0
        for path in partial:
            if path.exists() and path.stat().st_mtime < before:
                freed += tree_bytes(path)
                remove(path)
        return freed

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        _make(Path(self.uri), self.uri)
        prefix = f"{PARTIAL}{_process_space()}-"
        for directory in Path(self.uri).glob(f"{prefix}*-*"):
            # Directories of killed runs go at once: they may be as large as the corpus.
            if not is_running(int(directory.name.split("-")[-2])):
                remove(directory)
        with (
            tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-", dir=self.uri) as name,
            room(self.uri),
        ):
            yield Path(name)

    def _absolute(self, path: str) -> Path:
        file = Path(self.uri, checked(path))
        self._refuse_outside(file)
        return file

    def _refuse_outside(self, file: Path) -> None:
        if not self._is_inside(file):
            raise DataError(
                str(file),
                "a path below the root",
                f"a link to {os.path.realpath(file)}",
                "mount the other disk there instead; if you did not make the link, do not use this root",
            )

    def _is_inside(self, file: Path) -> bool:
        root = os.path.realpath(self.uri)
        return os.path.commonpath([root, os.path.realpath(file)]) == root

    def _entry(self, file: Path) -> Entry | None:
        try:
            status = file.stat()
        except FileNotFoundError:  # removed since it was listed, or a broken link
            return None
        if file.is_symlink() and not self._is_inside(file):
            return None
        path = file.relative_to(self.uri).as_posix()
        return Entry(path, status.st_size, str(status.st_mtime_ns), status.st_mtime)

    @contextlib.contextmanager
    def _temporary(self, file: Path, replace: bool = False) -> Iterator[Path]:
        """Yield a temporary path beside `file`. With `replace` it becomes `file` at the end of the block."""
        _make(file.parent, self.uri)
        temporary = file.parent / f"{PARTIAL}{os.getpid()}-{secrets.token_hex(6)}"
        try:
            with room(self.uri):
                yield temporary
                if replace:
                    os.replace(temporary, file)
            _sync_directory(file.parent)
        finally:
            temporary.unlink(missing_ok=True)


def _make(folder: Path, root: str) -> None:
    """Make a folder and its parents. Raises ConfigError if that is not possible, as below /proc."""
    try:
        with room(root):
            folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        raise ConfigError(
            root, "a writable folder", " ".join(str(error).split()), "check the path"
        ) from error


def _process_space() -> str:
    """Return an id, 12 hex digits, of the PID namespace of this process.

    Pods may share a directory, a host name and even the kernel, so that their process ids do not compare.
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # these files exist on Linux alone
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _write_durably(file: Path, data: bytes, mode: str = "wb") -> None:
    with file.open(mode) as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems do not sync directories
        pass
    finally:
        os.close(handle)


def _link_once(temporary: Path, file: Path, data: bytes) -> bool:
    try:
        os.link(temporary, file)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _claim_once(file, data)
    return True


def _claim_once(file: Path, data: bytes) -> bool:
    """Create the file under its final name, without a hard link; remove it if writing fails."""
    try:
        _write_durably(file, data, "xb")
    except FileExistsError:
        return False
    except OSError:
        file.unlink(missing_ok=True)
        raise
    return True
