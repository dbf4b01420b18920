"""List the live data files of a Delta table, with the library deltalake.

This module is separate from `detect_lakes`, because deltalake is an optional dependency.

The library does not say which deletion vectors data files have. When it reads vectors itself, it keeps a
value in memory for every row. So a log that may name vectors is read here, too.
"""

import base64
import io
import json
import os
import re
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.daemon import in_daemon_thread
from pipeline.errors import DataError, PipelineError, TransientError
from pipeline.store.files.base import in_threads
from pipeline.store.files.open_store import open_store, store_of
from pipeline.store.records.units import TableSnapshot
from pipeline.text.sources.lake_file import DeletionVector, TableColumn, TableFile
from pipeline.text.sources.listing import FoundFile, Listing, local_names, local_path, remote_names, uri_of
from pipeline.text.sources.storage_errors import storage_errors

# The protocol's reader features that do not concern data files, or that this module handles.
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
_LOG, _SIDECARS = "_delta_log", "_sidecars"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[\da-fA-F-]{36})?\.(?:parquet|json)")
# The columns of a checkpoint that are read: an action is a value of one of them.
_ACTIONS = ["add.path", "add.deletionVector", "sidecar.path"]
# From ZeroMQ's base 85 alphabet to Python's; characters that only Python's alphabet has are invalid.
_FROM_Z85 = bytes.maketrans(
    f"{digits}{ascii_lowercase}{ascii_uppercase}.-:+=^!/*?&<>()[]{{}}@%$#;_`|~".encode(),
    f"{digits}{ascii_uppercase}{ascii_lowercase}!#$%&()*+-;<=>?@^_`{{|}}~     ".encode(),
)
_ENCODED_UUID = 20  # characters
_MAX_BYTES = 1 << 31  # size of a file of vectors: the protocol's numbers have 32 bits


def list_delta_files(uri: str, snapshot: int | datetime | None) -> Listing:
    """List the data files of a version of a table. Reads its log.

    Args:
        uri: root of the table.
        snapshot: number of the version, or a time at which it was the latest; None for the latest.

    Raises:
        DataError: there is no such version, or a feature of the table is not supported.
    """
    # a thread that ends with the process
    table = in_daemon_thread(partial(_open, uri, snapshot), "manta-delta").result()
    features = _features(table)
    if unknown := sorted(features - _FEATURES):
        raise DataError(
            uri,
            f"no reader features of Delta besides {', '.join(sorted(_FEATURES))}",
            ", ".join(unknown),
            "write the current rows to a table without them",
        )
    read, columns = TableSnapshot(format="Delta", id=table.version()), _columns(table, features)
    added = list(_added_files(table))
    paths = [add["path"] for add, _ in added]
    vectors = _vectors(uri, read, paths) if "deletionVectors" in features else {}
    files = [
        FoundFile(
            path=unquote(path),
            uri=_file_uri(uri, path),
            size=add["size_bytes"],
            stamp=str(add["modification_time"]),
            table=TableFile(
                snapshot=read,
                location=path,
                columns=columns,
                constants=constants,
                vector=vectors.get(path),
            ),
        )
        for path, (add, constants) in zip(paths, added, strict=True)
    ]
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
    """Raise DataError if the log of a local table has a file that is not regular: the library would wait for
    a pipe.
    """
    folder = Path(root or "", _LOG)
    entries = [*folder.glob("*"), *folder.glob(f"{_SIDECARS}/*")] if root else []
    for entry in entries:
        if not (entry.is_file() or entry.is_dir()):
            raise DataError(str(entry), "a regular file", "a pipe, a device or a socket", "remove it")


def _check_time(uri: str, version: int, snapshot: datetime) -> None:
    """Raise DataError if the version is later than `snapshot`: if all are, the library opens the first one.

    The time of a commit is the time of its file in the log, as in the library.
    """
    entry = open_store(uri).entry(f"{_LOG}/{version:020d}.json")
    if entry is not None and int(entry.modified * 1_000) > int(snapshot.timestamp() * 1_000):
        raise DataError(
            uri,
            f"a version of {snapshot.isoformat()} or earlier (corpus.snapshot)",
            f"version {version} of {datetime.fromtimestamp(entry.modified, UTC).isoformat()} as the first",
            "set corpus.snapshot to a later time, or to null for the latest version",
        )


def _explained(uri: str, error: Exception) -> PipelineError:
    """Return the project's error for an error of the library."""
    found = next(iter(str(error).splitlines()), type(error).__name__)  # a stack trace may follow
    if "error sending request" in found or isinstance(error, TimeoutError | ConnectionError):
        return TransientError(uri, "an answer of the storage", found, "run again")
    return DataError(uri, "a readable Delta table", found, _OTHER_VERSION)


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


def _vectors(uri: str, read: TableSnapshot, paths: list[str]) -> dict[str, DeletionVector]:
    """Return the deletion vectors of a version, by the paths of their data files in the log.

    Args:
        paths: the data files of the version, as the library lists them.

    Raises:
        DataError: the log cannot be read, or has other data files than `paths`.
    """
    live = dict[tuple[str, str], DeletionVector | None]()
    with storage_errors(uri, ""):
        for action, path, vector in _log(uri, read.id):
            file = (path, vector.id if vector else "")
            if action == "add":
                live[file] = vector
            elif action == "remove":
                live.pop(file, None)
    listed, found = Counter(paths), Counter(path for path, _ in live)
    if others := sorted(path for path in listed | found if not listed[path] == found[path] == 1):
        raise DataError(
            _file_uri(uri, others[0]),
            f"once in the log of {read}, as deltalake lists it",
            f"{found[others[0]]:,} times in the log, {listed[others[0]]:,} times in the list",
            "check the log of the table",
        )
    return {path: vector for (path, _), vector in live.items() if vector}


def _log(uri: str, version: int) -> Iterator[tuple[str, str, DeletionVector | None]]:
    """Yield the actions on data files that make up a version: the last checkpoint's, then later commits'."""
    root = local_path(uri)
    top = f"{root or uri}/{_LOG}"
    names = remote_names(uri, _LOG) if root is None else local_names(top)
    checkpoints, commits = defaultdict[tuple[int, int], list[str]](list), list[int]()
    for name in names:
        if (found := _CHECKPOINT.fullmatch(name)) and int(found[1]) <= version:
            checkpoints[int(found[1]), int(found[2] or 1)].append(f"{top}/{name}")
        elif found := _COMMIT.fullmatch(name):
            commits.append(int(found[1]))
    complete = [(*key, sorted(files)) for key, files in checkpoints.items() if len(files) >= key[1]]
    last, count, files = max(complete, default=(-1, 0, []))
    for file in files[:count]:
        for action in _actions(uri, file):
            yield action
            if action[0] == "sidecar":
                yield from _actions(uri, f"{top}/{_SIDECARS}/{unquote(action[1]).rpartition('/')[2]}")
    later = [f"{top}/{number:020d}.json" for number in sorted(commits) if last < number <= version]
    if len(later) != version - last:
        remedy = "restore the others, or read another version"
        raise DataError(top, f"commits {last + 1} to {version}", f"{len(later)} of them", remedy)
    for actions in in_threads(lambda file: [*_actions(uri, file)], later):
        yield from actions


def _actions(uri: str, file: str) -> Iterator[tuple[str, str, DeletionVector | None]]:
    """Yield the actions of a file of the log: add, remove or sidecar, the path of a file, and its vector."""
    try:
        for actions in _stored_actions(file):
            for name in {"add", "remove", "sidecar"} & actions.keys():
                if action := actions[name]:
                    yield name, str(action["path"]), _vector(uri, action)
    except FileNotFoundError as error:
        raise DataError(file, "a file of the log", "no such file", "restore it") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        found = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
        raise DataError(file, "actions of the protocol of Delta", found, "restore the file") from error


def _stored_actions(file: str) -> Iterator[dict[str, Any]]:
    store, name = store_of(file)
    if name.endswith(".json"):
        yield from map(json.loads, filter(bytes.strip, io.BytesIO(store.read(name))))
        return
    with store.open(name) as stream:
        for batch in pq.ParquetFile(stream).iter_batches(columns=_ACTIONS):
            yield from batch.to_pylist()


def _vector(root: str, action: Mapping[str, Any]) -> DeletionVector | None:
    """Return the deletion vector of a data file. Raises ValueError, LookupError or TypeError if damaged."""
    stored = action.get("deletionVector")
    if stored is None:
        return None
    kind, text, offset = stored["storageType"], stored["pathOrInlineDv"], stored.get("offset")
    start, size = int(1 if offset is None else offset), int(stored["sizeInBytes"])
    if not (0 <= start < _MAX_BYTES and 0 < size < _MAX_BYTES):
        raise ValueError(f"a deletion vector of {size:,} bytes at {start:,}")
    if kind == "u":
        name = f"deletion_vector_{uuid.UUID(bytes=_from_z85(text[-_ENCODED_UUID:]))}.bin"
        prefix = text[:-_ENCODED_UUID]
        path = f"{prefix}/{name}" if prefix else name
    else:
        path = {"p": text, "i": action["path"]}[kind]
    return DeletionVector(
        id=kind + text + ("" if offset is None else f"@{offset}"),
        uri=_file_uri(root, path),
        offset=start,
        size=size,
        cardinality=int(stored["cardinality"]),
        content=_from_z85(text)[:size] if kind == "i" else None,
    )


def _from_z85(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(_FROM_Z85))


def _file_uri(root: str, path: str) -> str:
    """Return the URI of a file that the log names. Paths are percent-encoded, and may be absolute."""
    decoded = unquote(path)
    if "://" in path or path.startswith("file:"):
        return uri_of(decoded)
    top = local_path(root) or root if "://" in root else root
    if decoded.startswith("/"):
        return "/".join(top.split("/")[:3]) + decoded if "://" in top else decoded
    return f"{top.rstrip('/')}/{decoded}"
