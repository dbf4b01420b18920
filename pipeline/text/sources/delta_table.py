"""List the live data files of a Delta table, with the library deltalake."""

import contextlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError, PipelineError, TransientError
from pipeline.store.files.disk import regular_file
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import TableSnapshot
from pipeline.text.sources import delta_vectors
from pipeline.text.sources.lake_file import TableColumn, TableFile
from pipeline.text.sources.listing import FoundFile, Listing, local_path, uri_of
from pipeline.text.sources.storage_errors import storage_errors

# Features of the protocol for readers that change nothing about data files, or that this module handles.
_FEATURES = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "variantType",
    "variantType-preview",
}
_OTHER_VERSION = "check corpus.uri and corpus.snapshot: the log may have no such version; null is the latest"
_MAPPING = "delta.columnMapping."
_RESTORE = "restore the file of the vector, or read another version"
# Memory of the child that reads vectors, beyond its imports: room for the log and for the stacks of the
# library's 512 threads, and the values of each row as the library, Arrow and NumPy hold them.
_MEMORY, _BYTES_PER_ROW = (1 << 30) + 540 * (2 << 20), 12
# Time limit of the child: for its imports on a busy machine, and for the vector of each data file.
_START_S, _S_PER_FILE = 600.0, 0.2
_COOKIE_OF_RUNS = (
    12_347  # begins a Roaring bitmap with runs, and with the number of containers; 12,346 all others
)


def list_delta_files(uri: str, snapshot: int | datetime | None) -> Listing:
    """List the data files of a version of a table. Reads its log and its deletion vectors.

    Args:
        uri: root of the table.
        snapshot: number of the version, or a time at which it was the latest; None for the latest.

    Raises:
        DataError: there is no such version, or a feature of the table is not supported.
    """
    table = _open(uri, snapshot)
    features = _features(table)
    if unknown := sorted(features - _FEATURES):
        raise DataError(
            uri,
            f"no reader features of Delta besides {', '.join(sorted(_FEATURES))}",
            ", ".join(unknown),
            "write the current rows to a table without them",
        )
    read, columns = TableSnapshot(format="Delta", id=table.version()), _columns(table, features)
    deleted = _deleted_rows(uri, table) if "deletionVectors" in features else {}
    files = [
        FoundFile(
            path=unquote(add["path"]),
            uri=_file_uri(uri, add["path"]),
            size=add["size_bytes"],
            stamp=str(add["modification_time"]),
            table=TableFile(
                snapshot=read,
                location=add["path"],
                columns=columns,
                constants=constants,
                deleted=deleted.pop(unquote(add["path"]), np.zeros(0, np.int64)),
            ),
        )
        for add, constants in _added_files(table)
    ]
    if deleted:
        raise DataError(
            uri, f"data files of {read}", f"a deletion vector of {min(deleted)}", "check the log of the table"
        )
    return Listing("", files)


def _open(uri: str, snapshot: int | datetime | None) -> Any:
    """Open the table at a version."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    version = snapshot if isinstance(snapshot, int) else None
    _check_log(local_path(uri))
    try:
        table = DeltaTable(local_path(uri) or uri, version, _storage_options())
        if isinstance(snapshot, datetime):
            table.load_as_version(snapshot)
            _check_time(uri, table.version(), snapshot)
    except (DeltaError, OSError, ValueError) as error:
        raise _explained(uri, error) from error
    return table


def _check_log(root: str | None) -> None:
    """Raise DataError if the log of a local table has a pipe or the like: the library would wait for it."""
    folder = Path(root or "", "_delta_log")
    for entry in os.scandir(folder) if root and folder.is_dir() else ():
        if not (entry.is_file() or entry.is_dir()):
            raise DataError(entry.path, "a regular file", "a pipe, a device or a socket", "remove it")


def _check_time(uri: str, version: int, snapshot: datetime) -> None:
    """Raise DataError if the version was committed later: the library opens the first one if all were.

    As for the library, the time of a commit is that of its file in the log.
    """
    entry = open_store(uri).entry(f"_delta_log/{version:020d}.json")
    if entry is not None and int(entry.modified * 1_000) > int(snapshot.timestamp() * 1_000):
        raise DataError(
            uri,
            f"a version of {snapshot.isoformat()} or earlier (corpus.snapshot)",
            f"version {version} of {datetime.fromtimestamp(entry.modified, UTC).isoformat()} as the first",
            "set corpus.snapshot to a later time, or to null for the latest version",
        )


def _explained(uri: str, error: Exception, remedy: str = _OTHER_VERSION) -> PipelineError:
    """Return the project's error for an error of the library."""
    found = next(iter(str(error).splitlines()), type(error).__name__)  # a stack trace may follow
    if "error sending request" in found or isinstance(error, TimeoutError | ConnectionError):
        return TransientError(uri, "an answer of the storage", found, "run again")
    return DataError(uri, "a readable Delta table", found, remedy)


def _storage_options() -> dict[str, str]:
    """Return the endpoint and time limit of the project's S3 client. The library finds the keys by itself."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    options = {"timeout": f"{os.environ.get('MANTA_STORE_TIMEOUT_S') or 30}s"}
    if endpoint:
        options |= {"aws_endpoint": endpoint, "aws_allow_http": str(endpoint.startswith("http://")).lower()}
    return options


def _features(table: Any) -> set[str]:
    """Return the features that readers of the table must support; columnMapping only if it is in use."""
    protocol, mode = table.protocol(), table.metadata().configuration.get(f"{_MAPPING}mode", "none")
    features = set(protocol.reader_features or ())
    if protocol.min_reader_version == 2:
        features.add("columnMapping")
    return features - {"columnMapping"} if mode == "none" else features


def _columns(table: Any, features: set[str]) -> dict[str, TableColumn]:
    """Return the columns that are in data files, that is, all but those of partitions."""
    metadata, types = table.metadata(), pa.schema(table.schema().to_arrow())
    is_mapped = "columnMapping" in features
    has_ids = is_mapped and metadata.configuration[f"{_MAPPING}mode"] == "id"
    return {
        column["name"]: TableColumn(
            names=(column["metadata"][f"{_MAPPING}physicalName"] if is_mapped else column["name"],),
            field_id=int(column["metadata"][f"{_MAPPING}id"]) if has_ids else None,
            kind=types.field(column["name"]).type,
        )
        for column in json.loads(table.schema().to_json())["fields"]
        if column["name"] not in metadata.partition_columns
    }


def _added_files(table: Any) -> Iterator[tuple[dict[str, Any], dict[str, pa.Scalar]]]:
    """Yield the path, size and time of each data file, with the values of its partition by column."""
    files = pa.table(table.get_add_actions())
    names = table.metadata().partition_columns
    values = [files["partition"].combine_chunks().field(name) for name in names]
    plain = files.select(["path", "size_bytes", "modification_time"])
    for row, add in enumerate(plain.to_pylist()):
        yield add, {name: column[row] for name, column in zip(names, values, strict=True)}


def _deleted_rows(uri: str, table: Any) -> dict[str, np.ndarray]:
    """Return the deleted rows of each data file with a deletion vector, by its path. A child reads them."""
    files = pa.table(table.get_add_actions()).select(["num_records"])
    rows, limit_s = pc.sum(files["num_records"]).as_py() or 0, _START_S + len(files) * _S_PER_FILE
    with storage_errors(uri, ""):
        for file in _vector_files(uri):
            regular_file(file)
    job = [local_path(uri) or uri, table.version(), _storage_options(), _MEMORY + rows * _BYTES_PER_ROW]
    program = [sys.executable, "-m", delta_vectors.__name__, json.dumps(job)]
    try:
        child = subprocess.run(program, capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        found = f"no end after {limit_s:,.0f} s: a vector may be a pipe, or its storage not answer"
        raise DataError(uri, "deletion vectors that can be read", found, _RESTORE) from error
    if child.returncode:
        raise _vector_error(uri, child, rows)
    deleted = pa.ipc.open_stream(child.stdout).read_all()
    paths = (unquote(path.removeprefix(table.table_uri)) for path in deleted["path"].to_pylist())
    return {path: row.values.to_numpy() for path, row in zip(paths, deleted["rows"], strict=True)}


def _vector_error(uri: str, child: "subprocess.CompletedProcess[bytes]", rows: int) -> PipelineError:
    """Return the error for a child that could not read the deletion vectors of a table with so many rows."""
    if child.returncode > 0:  # the library's message names the vector
        message = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return _explained(uri, ValueError(message), _RESTORE)
    large = [str(file) for file in _vector_files(uri) if _last_row(file.read_bytes()) >= rows]
    found = f"one that crashes a process or exceeds its memory (signal {-child.returncode})"
    return DataError(", ".join(large) or uri, f"deletion vectors of {rows:,} rows", found, _RESTORE)


def _vector_files(uri: str) -> list[Path]:
    """Return the files of deletion vectors in the folder of a local table, and in those just below it."""
    root = Path(local_path(uri) or os.devnull)
    return sorted(chain(root.glob("deletion_vector_*.bin"), root.glob("*/deletion_vector_*.bin")))


def _last_row(content: bytes) -> int:
    """Return about the last row that a file of deletion vectors lists: at most 2^16 less, or 2^32.

    A vector precedes its checksum: bitmaps of 2^32 rows each, whose header has the upper 16 bits of all rows.
    """
    start, last = 1, 0
    with contextlib.suppress(struct.error):
        while start < len(content):
            (size,) = struct.unpack_from(">I", content, start)
            bitmaps, key, cookie, containers = struct.unpack_from("<QIII", content, start + 8)
            has_runs = cookie & 0xFFFF == _COOKIE_OF_RUNS
            count = (cookie >> 16) + 1 if has_runs else containers
            keys = start + 24 + ((count + 7) // 8 if has_runs else 4)
            (upper,) = struct.unpack_from("<H", content, keys + 4 * (count - 1))
            last = max(last, 1 << 32 if bitmaps > 1 or key else upper << 16)
            start += size + 8
    return last


def _file_uri(root: str, path: str) -> str:
    """Return the URI of a data file. The path in the log is percent-encoded, and may be absolute."""
    decoded = unquote(path)
    if "://" in path or path.startswith("file:"):
        return uri_of(decoded)
    top = local_path(root) or root if "://" in root else root
    return f"{top.rstrip('/')}/{decoded}"
