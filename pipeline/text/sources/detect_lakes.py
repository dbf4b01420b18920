"""Recognize Delta and Iceberg tables without their libraries, and refuse to read some of their files as plain
Parquet.

Such a table looks like a folder of Parquet files, but some of the files still hold removed rows: only the
table's log says which files are live.
"""

import glob
import importlib.util
import re
from collections.abc import Iterable, Iterator, Sequence

from pipeline.errors import ConfigError, DataError
from pipeline.settings import CorpusSettings
from pipeline.text.sources.delta_table import list_delta_files
from pipeline.text.sources.iceberg_table import CATALOG, METADATA, list_iceberg_files
from pipeline.text.sources.listing import Listing, local_names, local_path, remote_names
from pipeline.text.sources.storage_errors import storage_errors

_MARKERS = {
    "Delta": re.compile(r"(?P<top>(?:.*/)?)_delta_log/[^/]+\.(?:json|checkpoint\.parquet)"),
    "Iceberg": re.compile(r"(?P<top>(?:.*/)?)metadata/[^/]*\.metadata\.json(?:\.gz)?"),
}
LOG_FOLDERS = ("_delta_log", "metadata")
"""Names of the folders that hold the logs."""
_EXTRAS = {"Delta": ("delta", ("deltalake", "pyroaring")), "Iceberg": ("iceberg", ("pyiceberg", "pyroaring"))}
"""The extra of pyproject.toml and the modules that read a table."""


def list_table(corpus: CorpusSettings) -> Listing | None:
    """List the data files of the table at corpus.uri; None if it is not the root of a table.

    Raises:
        ConfigError: the library that reads the table is not installed, or corpus.snapshot is set and there is
            no table.
        DataError: the table cannot be read at this snapshot.
    """
    uri = corpus.uri.rstrip("/") or corpus.uri
    if corpus.format != "jsonl":
        if _is_delta(uri):
            _check_library(uri, "Delta")
            return list_delta_files(uri, corpus.snapshot)
        names = _metadata_names(uri)
        if names or uri.startswith(CATALOG) or METADATA.fullmatch(uri.rpartition("/")[2]):
            _check_library(uri, "Iceberg")
            return list_iceberg_files(local_path(uri) or uri, names, corpus.snapshot)
    if corpus.snapshot is not None:
        raise ConfigError(
            "corpus.snapshot",
            "a Delta or Iceberg table at corpus.uri",
            f"no table at {corpus.uri}",
            "set corpus.uri to the folder of the table, or leave the snapshot out",
        )
    return None


def _is_delta(uri: str) -> bool:
    marker = _MARKERS["Delta"]
    return any(marker.fullmatch(f"_delta_log/{name}") for name in _names_in(uri, "_delta_log"))


def _metadata_names(uri: str) -> tuple[str, ...]:
    """Return the names in the folder metadata if one of them is the name of an Iceberg metadata file."""
    names = tuple(_names_in(uri, "metadata"))
    return names if any(map(METADATA.fullmatch, names)) else ()


def _names_in(uri: str, folder: str) -> Iterable[str]:
    """Return the names of the files in a folder below a URI; none if the URI is not that of a folder."""
    if glob.has_magic(uri) or uri.startswith(CATALOG):
        return ()
    path = local_path(uri)
    with storage_errors(uri):
        return remote_names(uri, folder) if path is None else local_names(f"{path}/{folder}")


def _check_library(uri: str, kind: str) -> None:
    extra, modules = _EXTRAS[kind]
    if module := next((name for name in modules if importlib.util.find_spec(name) is None), None):
        raise ConfigError(
            uri,
            f"the package {module}, which reads tables of {kind}",
            "it is not installed",
            f'install it: pip install "manta-embeddings[{extra}]"',
        )


def refuse_tables(uri: str, names: Iterable[str], parquet_files: Sequence[str]) -> None:
    """Raise a DataError if Parquet files belong to a Delta or Iceberg table.

    Args:
        uri: the folder that all names are relative to.
        names: names of all files below the folder, hidden ones included.
        parquet_files: names of the files that would be read.
    """
    for name in names:
        for kind, marker in _MARKERS.items():
            match = marker.fullmatch(name)
            if match and any(file.startswith(match["top"]) for file in parquet_files):
                raise DataError(
                    f"{uri}/{match['top']}".rstrip("/"),
                    "Parquet files without removed rows",
                    f"a table of {kind} ({name}), whose files may contain removed rows",
                    "set corpus.uri to the folder of the table, which is read at one of its snapshots",
                )


def possible_table_roots(base: str) -> Iterator[str]:
    """Yield `base` and the folders above it that may be the root of a table.

    A table keeps its files in a folder named data, or in folders of partitions (key=value).
    """
    yield base
    while base.rpartition("/")[2] == "data" or "=" in base.rpartition("/")[2]:
        base = base.rpartition("/")[0]
        yield base
