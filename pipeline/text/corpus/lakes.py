"""Refuse Delta and Iceberg tables as a corpus.

Such a table looks like a folder of Parquet files, but some of the files still hold removed rows: only the
table's log says which files are live.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from pipeline.errors import DataError

_MARKERS = {
    "Delta": re.compile(r"(?P<top>(?:.*/)?)_delta_log/[^/]+\.(?:json|checkpoint\.parquet)"),
    "Iceberg": re.compile(r"(?P<top>(?:.*/)?)metadata/[^/]*\.metadata\.json(?:\.gz)?"),
}
LOG_FOLDERS = ("_delta_log", "metadata")
"""Names of the folders that hold the logs."""
_REMEDIES = {
    "Delta": "write its current rows to Parquet files first, for instance with deltalake: "
    "pyarrow.parquet.write_table(DeltaTable(uri).to_pyarrow_table(), file)",
    "Iceberg": "write its current rows to Parquet files first, for instance with pyiceberg: "
    "pyarrow.parquet.write_table(table.scan().to_arrow(), file)",
}


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
                    _REMEDIES[kind],
                )


def possible_table_roots(base: str) -> Iterator[str]:
    """Yield `base` and the folders above it that may be the root of a table.

    A table keeps its files in a folder named data, or in folders of partitions (key=value).
    """
    yield base
    while base.rpartition("/")[2] == "data" or "=" in base.rpartition("/")[2]:
        base = base.rpartition("/")[0]
        yield base
