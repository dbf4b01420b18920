"""Tables that only look like folders of Parquet files: their logs say which rows are live, and removed ones
lie beside those.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from pipeline.errors import DataError

_MARKERS = {
    "Delta": re.compile(r"(?P<top>(?:.*/)?)_delta_log/[^/]+\.(?:json|checkpoint\.parquet)"),
    "Iceberg": re.compile(r"(?P<top>(?:.*/)?)metadata/[^/]*\.metadata\.json(?:\.gz)?"),
}
FOLDERS = ("_delta_log", "metadata")
"""in which the logs lie"""
_REMEDIES = {
    "Delta": "write its current rows to Parquet files first, for instance with deltalake: pyarrow.parquet.write_table(DeltaTable(uri).to_pyarrow_table(), file)",
    "Iceberg": "write its current rows to Parquet files first, for instance with pyiceberg: pyarrow.parquet.write_table(table.scan().to_arrow(), file)",
}


def refuse_tables(uri: str, names: Iterable[str], taken: Sequence[str]) -> None:
    """DataError where Parquet files that are `taken` belong to a Delta or Iceberg table.

    Args:
        uri: the folder that all names are relative to.
        names: all files below it that were listed, hidden ones included.
        taken: those of them that would be read.
    """
    for name in names:
        for kind, marker in _MARKERS.items():
            found = marker.fullmatch(name)
            if found and any(each.startswith(found["top"]) for each in taken):
                where = f"{uri}/{found['top']}".rstrip("/")
                raise DataError(
                    where,
                    "Parquet files all of whose rows count",
                    f"a table of {kind} ({name}), whose files may hold removed rows",
                    _REMEDIES[kind],
                )


def tops_of(base: str) -> Iterator[str]:
    """Folders above `base`, itself included, that may be the top of a table: those of partitions and of data
    lie in it.
    """
    yield base
    while base.rpartition("/")[2] == "data" or "=" in base.rpartition("/")[2]:
        base = base.rpartition("/")[0]
        yield base
