"""Values that describe a data file of a Delta or Iceberg table, as in the table's metadata."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipeline.config import digest_of
from pipeline.errors import DataError
from pipeline.store.records.units import TableSnapshot


@dataclass(frozen=True)
class TableColumn:
    """A column of the table, and how a data file names it."""

    names: tuple[str, ...]
    """names in files without field ids"""
    field_id: int | None = None
    """id in files with field ids, which take precedence over names"""
    kind: pa.DataType | None = None
    """type in the table"""

    @property
    def kind_of_time(self) -> tuple[str, ...]:
        """Name of the type of a column of times; empty for other columns."""
        is_time = self.kind is not None and pa.types.is_timestamp(self.kind)
        return (str(self.kind),) if is_time else ()


@dataclass(frozen=True)
class DeleteFile:
    """A file of an Iceberg table that lists deleted rows of data files."""

    uri: str
    size: int
    is_puffin: bool
    """whether it holds deletion vectors; otherwise it is a Parquet file of positions"""


@dataclass(frozen=True)
class DeletionVector:
    """The deleted rows of a data file of a Delta table, as the log describes them."""

    id: str
    """identifies the vector in the table"""
    uri: str
    """the file that holds it; the data file if the log holds it"""
    offset: int
    size: int
    """bytes, without length and checksum"""
    cardinality: int
    """number of rows"""
    content: bytes | None
    """the vector if the log holds it"""


@dataclass(frozen=True)
class TableFile:
    """The columns of a data file, and the rows of it that the table has deleted."""

    snapshot: TableSnapshot
    location: str
    """the file as the table's metadata names it"""
    columns: Mapping[str, TableColumn]
    """columns that the file may have, by their names in the table"""
    constants: Mapping[str, pa.Scalar]
    """values of columns that the file does not have, the same in all rows"""
    vector: DeletionVector | None = None
    delete_files: tuple[DeleteFile, ...] = ()

    def stamp(self, used: Iterable[str]) -> str:
        """Return a digest of the used columns and the deleted rows, which changes whenever the live rows do.

        The type of a column of times counts: if it was a column of dates before, existing units have dates,
        with which times cannot be stored. Numbers of a narrower type can be stored with wider ones.
        """
        used = set(used)
        columns = {
            name: [column.names, column.field_id, *column.kind_of_time]
            for name, column in self.columns.items()
            if name in used
        }
        constants = {
            name: [str(value.type), str(value)] for name, value in self.constants.items() if name in used
        }
        deleted = hashlib.sha256(self.vector.id.encode() if self.vector else b"").hexdigest()
        delete_files = [[file.uri, file.size] for file in self.delete_files]
        return digest_of([columns, constants, deleted, delete_files])[:32]

    def missing(self, uri: str) -> DataError:
        """Create the error for a data file that does not exist any more."""
        return DataError(
            uri,
            f"a data file of {self.snapshot}",
            "no such file: the table was vacuumed, or its snapshots have expired",
            "read a newer snapshot (corpus.snapshot), or restore the file",
        )
