"""A store in a local directory."""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from pipeline.errors import ConfigError, DataError, MissingFile, TransientError
from pipeline.store.files.base import (
    PARTIAL,
    Entry,
    Store,
    check_sha256,
    normal_path,
)
from pipeline.store.files.disk import (
    regular_file,
    remove,
    temporary_folder,
    translate_disk_errors,
    translate_read_errors,
    tree_bytes,
)
from pipeline.store.files.lease import is_running, pid_namespace

_PAGE = 1_000  # files that `pages` yields together
_LINKS_UNSUPPORTED = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class LocalStore(Store):
    """A store in a directory. Files are written under a temporary name, flushed to disk and renamed.

    The root may be a symbolic link. Links below the root must lead to a path below the root: reading or
    writing another link raises DataError, and listings leave it out. To keep a part of the root on another
    disk, mount that disk there.
    """

    shared = False

    def read(self, path: str) -> bytes:
        with translate_read_errors(self.uri):
            return Path(regular_file(self._absolute(path))).read_bytes()

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
            shutil.move(local, temporary)  # renames on the same disk, copies to another disk
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())

    def open(self, path: str, sha256: str | None = None) -> pa.NativeFile:
        with translate_read_errors(self.uri):
            file = Path(regular_file(self._absolute(path)))
            check_sha256(file, sha256, self.uri_of(path))
            return pa.memory_map(str(file)) if file.stat().st_size else pa.OSFile(str(file))

    def local(self, path: str, sha256: str | None = None) -> Path:
        file = self._absolute(path)
        with translate_read_errors(self.uri):
            if not file.is_file():
                raise MissingFile.at(str(file))
            return check_sha256(file, sha256, str(file))

    def entry(self, path: str) -> Entry | None:
        file = self._absolute(path)
        with translate_read_errors(self.uri):
            return self._entry(file) if file.is_file() else None

    def list(self, prefix: str = "", suffix: str = "") -> list[Entry]:
        entries = (entry for page in self._pages(prefix, suffix) for entry in page)
        return sorted(entries, key=lambda entry: entry.path)

    def pages(self, prefix: str) -> Iterator[Sequence[Entry]]:
        return self._pages(prefix, "")

    def _pages(self, prefix: str, suffix: str) -> Iterator[Sequence[Entry]]:
        """Yield the files of one folder at a time, at most _PAGE together.

        Raises:
            ConfigError, TransientError: a folder cannot be read, so it is unknown which files exist.
        """
        top = self._absolute(prefix) if prefix else Path(self.uri)
        for directory, folders, names in os.walk(top, onerror=self._refuse_unreadable):
            folders[:] = [folder for folder in folders if not folder.startswith(PARTIAL)]
            files = [name for name in names if name.endswith(suffix) and not name.startswith(PARTIAL)]
            for start in range(0, len(files), _PAGE):
                page = (self._entry(Path(directory, name)) for name in files[start : start + _PAGE])
                yield [entry for entry in page if entry]

    def _refuse_unreadable(self, error: OSError) -> None:
        # a folder that is missing, or is a file, holds no files
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            with translate_read_errors(self.uri):
                raise error

    def delete(self, path: str) -> None:
        file = Path(self.uri, normal_path(path))
        self._refuse_outside(file.parent)  # not the file itself: deleting a link leaves its target alone
        with translate_disk_errors(self.uri):
            file.unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        folder = Path(self.uri)
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def sweep(self, before: float) -> int:
        freed = 0
        for path in tuple(Path(self.uri).rglob(f"{PARTIAL}*")):
            if path.exists() and path.stat().st_mtime < before:
                freed += tree_bytes(path)
                remove(path)
        return freed

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        _make_folder(Path(self.uri), self.uri)
        prefix = f"{PARTIAL}{_pid_namespace_id()}-"
        for directory in Path(self.uri).glob(f"{prefix}*-*"):
            # Directories of killed runs are removed now: they may be as large as the corpus.
            if not is_running(int(directory.name.split("-")[-2])):
                remove(directory)
        with temporary_folder(f"{prefix}{os.getpid()}-", self.uri) as folder:
            yield folder

    def _absolute(self, path: str) -> Path:
        file = Path(self.uri, normal_path(path))
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
        """Yield a path beside `file` for temporary content, which is removed at the end of the block.

        Args:
            replace: at the end of the block rename the temporary file to `file`, which may exist.

        Raises:
            TransientError: another process removes the folder.
        """
        _make_folder(file.parent, self.uri)
        temporary = file.parent / f"{PARTIAL}{os.getpid()}-{secrets.token_hex(6)}"
        try:
            with translate_disk_errors(self.uri):
                yield temporary
                if replace:
                    os.replace(temporary, file)
            _sync_directory(file.parent)
        except FileNotFoundError as error:
            if str(error.filename) not in (str(temporary), str(file.parent)):
                raise
            raise TransientError(
                str(file.parent),
                "a folder that stays while files are written",
                "none",
                "see what removes it, and run again",
            ) from error
        finally:
            with contextlib.suppress(OSError):  # `sweep` removes it later
                temporary.unlink(missing_ok=True)


class ScratchStore(LocalStore):
    """A store of temporary files in a local directory. They are not flushed to disk."""

    def write(self, path: str, data: bytes) -> None:
        self._writable(path).write_bytes(data)

    def create(self, path: str, data: bytes) -> bool:
        if self.exists(path):
            return False
        self.write(path, data)
        return True

    def put(self, local: Path, path: str) -> None:
        shutil.move(local, self._writable(path))

    def _writable(self, path: str) -> Path:
        """Return the absolute path of a file and make its folder."""
        file = self._absolute(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        return file


def _make_folder(folder: Path, root: str) -> None:
    """Make a folder and its parents. Raises ConfigError if they cannot be made, as below /proc."""
    try:
        with translate_disk_errors(root):
            folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        raise ConfigError(
            root, "a writable folder", " ".join(str(error).split()), "check the path"
        ) from error


def _pid_namespace_id() -> str:
    """Return an id, 12 hex digits, of the PID namespace of this process.

    Process ids identify a process only within one namespace, and pods that share a directory may also share
    the host name and the kernel.
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # these files of the system exist on Linux only
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    parts += filter(None, [pid_namespace()])
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _write_durably(file: Path, data: bytes, mode: str = "wb") -> None:
    with file.open(mode) as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems do not sync directories
            os.fsync(handle)
    finally:
        os.close(handle)


def _link_once(temporary: Path, file: Path, data: bytes) -> bool:
    """Link the finished temporary file, which contains `data`, as `file`. Returns False if `file` exists."""
    try:
        os.link(temporary, file)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _LINKS_UNSUPPORTED:
            raise
        return _create_exclusively(file, data)
    return True


def _create_exclusively(file: Path, data: bytes) -> bool:
    """Create the file under its final name, without a hard link. Returns False if it exists."""
    try:
        _write_durably(file, data, "xb")
    except FileExistsError:
        return False
    except OSError:
        file.unlink(missing_ok=True)
        raise
    return True
