"""List the live data files of an Iceberg table, with pyiceberg, an optional dependency."""

import contextlib
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

import pyarrow as pa

from pipeline.errors import ConfigError, DataError, TransientError
from pipeline.store.files.base import in_threads
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import TableSnapshot
from pipeline.text.sources.delete_files import data_files_of
from pipeline.text.sources.lake_file import DeleteFile, TableColumn, TableFile
from pipeline.text.sources.listing import FoundFile, Listing, uri_of
from pipeline.text.sources.storage_errors import storage_errors

CATALOG = "iceberg://"
"""Scheme of a table in a catalog: iceberg://CATALOG/NAMESPACE.TABLE."""
METADATA = re.compile(r"(?:v(\d+)|(\d+)-[^/]*)(?:\.gz)?\.metadata\.json(?:\.gz)?")
"""Name of a metadata file, with its number."""
_HINT = "version-hint.text"


def list_iceberg_files(uri: str, names: Iterable[str], snapshot: int | datetime | None) -> Listing:
    """List the data files of a snapshot of a table. Reads its metadata and its manifests.

    Args:
        uri: root of the table, one of its metadata files, or iceberg://CATALOG/NAMESPACE.TABLE.
        names: names of the files in the folder metadata of the root.
        snapshot: id of the snapshot, or a time at which it was the current one; None for the current one.

    Raises:
        DataError: there is no such snapshot, or it has data or delete files that cannot be read.
    """
    from pyiceberg.exceptions import ValidationError

    try:
        with storage_errors(uri, ""):
            with _reading_metadata():
                table = _open(uri, names)
                scan = table.scan(snapshot_id=_find_snapshot(uri, table, snapshot))
                tasks = sorted(scan.plan_files(), key=lambda task: task.file.file_path)
            _check_formats(tasks)
            return Listing("", _data_files(table, scan, tasks))
    except (ValueError, ValidationError, NotImplementedError) as error:
        found = " ".join(str(error).split())[:400]
        if "equality deletes" not in found:
            raise DataError(uri, "a readable Iceberg table", found, "check its metadata") from error
        remedy = "rewrite its data files with the engine that writes it, so that no equality deletes are left"
        raise DataError(uri, "an Iceberg table with position deletes only", found, remedy) from error


@contextlib.contextmanager
def _reading_metadata() -> Iterator[None]:
    """Turn the errors that the library raises for damaged metadata into ValueError."""
    from pyiceberg.exceptions import ResolveError

    try:
        yield
    except (LookupError, TypeError, EOFError, SystemError, ResolveError, zlib.error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _check_formats(tasks: Sequence[Any]) -> None:
    """Raise DataError if a data file is not Parquet."""
    other = (task.file for task in tasks if task.file.file_format.value != "PARQUET")
    if (file := next(other, None)) is not None:
        remedy = "write its rows again as Parquet"
        raise DataError(file.file_path, "a data file of Parquet", file.file_format.value, remedy)


def _data_files(table: Any, scan: Any, tasks: Sequence[Any]) -> list[FoundFile]:
    """Return the data files that a scan reads."""
    current, schema = scan.snapshot(), scan.projection()
    read = TableSnapshot(format="Iceberg", id=current.snapshot_id if current else 0)
    columns, top = _columns(table, schema), f"{table.location().rstrip('/')}/"
    return [
        FoundFile(
            path=task.file.file_path.removeprefix(top),
            uri=uri_of(task.file.file_path),
            size=task.file.file_size_in_bytes,
            stamp="",
            table=TableFile(
                snapshot=read,
                location=task.file.file_path,
                columns=columns,
                constants=dict(_constants(table, schema, task.file)),
                delete_files=delete_files,
            ),
        )
        for task, delete_files in zip(tasks, _delete_files(tasks), strict=True)
    ]


def _open(uri: str, names: Iterable[str]) -> Any:
    """Open the table by its catalog or by its latest metadata file."""
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.serializers import FromInputFile
    from pyiceberg.table import Table

    from pipeline.text.sources.iceberg_io import StoredFiles

    files = StoredFiles()
    if uri.startswith(CATALOG):
        location, metadata = _in_catalog(uri)
    else:
        location = uri if METADATA.fullmatch(uri.rpartition("/")[2]) else _latest_metadata(uri, names)
        metadata = FromInputFile.table_metadata(files.new_input(location))
    return Table((uri,), metadata, location, files, NoopCatalog("none"))


def _in_catalog(uri: str) -> tuple[str, Any]:
    """Return the location and the content of the metadata file that a catalog names."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError, RESTError

    name, _, table = uri.removeprefix(CATALOG).partition("/")
    try:
        found = load_catalog(name).load_table(table)
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise DataError(uri, f"a table of the catalog {name}", str(error), "check corpus.uri") from error
    except (NotInstalledError, RESTError, ValueError, *_client_errors()) as error:
        set_here = f"PYICEBERG_CATALOG__{name.upper()}__URI and so on, or .pyiceberg.yaml"
        expected, message = f"the catalog {name} ({set_here})", " ".join(str(error).split())[:400]
        if _is_down(error):
            remedy = "run again when the catalog answers, or correct its settings"
            raise TransientError(uri, expected, message, remedy) from error
        raise ConfigError(uri, expected, message, "correct its settings") from error
    return found.metadata_location, found.metadata


def _client_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the libraries that ask catalogs, as far as they are loaded."""
    names = {"requests": "RequestException", "sqlalchemy.exc": "SQLAlchemyError"}
    return tuple(
        getattr(sys.modules[module], name) for module, name in names.items() if module in sys.modules
    )


def _is_down(error: Exception) -> bool:
    """Return whether an error says that a catalog did not answer, or had an error of its own."""
    from pyiceberg.exceptions import ServerError, ServiceUnavailableError, TooManyRequestsError

    if isinstance(error, OSError):  # from requests; for an invalid URL, it is also a ValueError
        return not isinstance(error, ValueError)
    busy = (ServerError, ServiceUnavailableError, TooManyRequestsError)
    return isinstance(error, busy) or type(error).__name__ == "OperationalError"


def _latest_metadata(uri: str, names: Iterable[str]) -> str:
    """Return the metadata file of the current version of a table.

    It is the file named in version-hint.text. A hint that is only a number may be outdated: then, and without
    a hint, it is the file with the highest number, if only one file has this number.
    """
    numbers = {name: int(match[1] or match[2]) for name in names if (match := METADATA.fullmatch(name))}
    if _HINT in names and (hint := open_store(uri).read(f"metadata/{_HINT}").decode().strip()) in numbers:
        return f"{uri}/metadata/{hint}"
    latest = [name for name, number in numbers.items() if number == max(numbers.values())]
    if len(latest) > 1:
        raise DataError(
            uri,
            "one latest metadata file",
            f"{' and '.join(sorted(latest)[:2])}, one of which was never committed",
            f"set corpus.uri to {CATALOG}CATALOG/NAMESPACE.TABLE, or to the metadata file",
        )
    return f"{uri}/metadata/{latest[0]}"


def _find_snapshot(uri: str, table: Any, snapshot: int | datetime | None) -> int | None:
    """Return the id of the snapshot to read; None for the current one."""
    if snapshot is None:
        return None
    if isinstance(snapshot, datetime):
        found = table.snapshot_as_of_timestamp(int(snapshot.timestamp() * 1_000))
    else:
        found = table.snapshot_by_id(snapshot)
    if found is None:
        known = [f"{entry.snapshot_id} of {_time_of(entry)}" for entry in table.snapshots()]
        raise DataError(
            uri,
            f"the snapshot {snapshot} (corpus.snapshot)",
            f"{len(known)} snapshots, {known[0]} to {known[-1]}" if known else "no snapshots",
            "it may have expired: set corpus.snapshot to another one, or to null for the current one",
        )
    return int(found.snapshot_id)


def _time_of(snapshot: Any) -> str:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1_000).astimezone().isoformat(timespec="seconds")


def _columns(table: Any, schema: Any) -> dict[str, TableColumn]:
    """Return the columns of a schema. Files without field ids name them as in the table's name mapping."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    mapping = table.name_mapping()
    names = {field.field_id: tuple(field.names) for field in mapping.root} if mapping else {}
    types = schema_to_pyarrow(schema)
    return {
        column.name: TableColumn(
            names.get(column.field_id, ()), column.field_id, types.field(column.name).type
        )
        for column in schema.fields
    }


def _constants(table: Any, schema: Any, file: Any) -> Iterator[tuple[str, pa.Scalar]]:
    """Yield columns that a file may lack, each with the value that they then have in all its rows.

    The values are those of its partition, and the defaults of columns that were added later.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.transforms import IdentityTransform

    types, by_id = schema_to_pyarrow(schema), {column.field_id: column for column in schema.fields}
    for column in schema.fields:
        if column.initial_default is not None:
            yield column.name, pa.scalar(column.initial_default, types.field(column.name).type)
    for position, part in enumerate(table.specs()[file.spec_id].fields):
        column, value = by_id.get(part.source_id), file.partition[position]
        if column is not None and value is not None and isinstance(part.transform, IdentityTransform):
            yield column.name, pa.scalar(value, types.field(column.name).type)


def _delete_files(tasks: Sequence[Any]) -> list[tuple[DeleteFile, ...]]:
    """Return the delete files of each data file.

    A manifest gives all delete files of a partition to each data file of the partition. Delete files that
    list no row of a data file are left out, so that this data file is not read again when rows of other data
    files are deleted.
    """
    files = [[_delete_file(file) for file in task.delete_files] for task in tasks]
    counts = Counter(chain.from_iterable(files))
    shared = [file for file, count in counts.items() if count > 1]
    data_files = dict(zip(shared, in_threads(data_files_of, shared), strict=True))
    return [
        tuple(
            sorted(
                (
                    file
                    for file in of_task
                    if task.file.file_path in data_files.get(file, (task.file.file_path,))
                ),
                key=lambda file: file.uri,
            )
        )
        for task, of_task in zip(tasks, files, strict=True)
    ]


def _delete_file(file: Any) -> DeleteFile:
    return DeleteFile(uri_of(file.file_path), file.file_size_in_bytes, file.file_format.value == "PUFFIN")
