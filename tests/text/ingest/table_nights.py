"""Nights over a Delta or Iceberg table, compared with the rows that the table's own library reads."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from pipeline.settings import CorpusSettings
from pipeline.store.records.units import Corpus, TableSnapshot
from pipeline.text.sources.sources import SourceFile, list_files
from tests.text.ingest.editing import Nights, addresses


class TableNights(Nights):
    """Nights over a table below a folder whose name has a space. Subclasses know the format."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.root = folder / "a table"
        self.corpus = CorpusSettings(uri=str(self.root), keep=("lang",))

    def set(self, **settings: Any) -> None:
        """Change settings of the corpus."""
        self.corpus = self.corpus.model_copy(update=settings)

    def read(self, columns: list[str]) -> pa.Table:
        """The rows of the table, as its library reads them."""
        raise NotImplementedError

    def snapshot(self) -> TableSnapshot:
        """The current snapshot."""
        raise NotImplementedError

    def file_of(self, row_id: int) -> SourceFile:
        """The data file that has a row with this id, deleted or not."""
        return next(
            file
            for file in list_files(self.corpus)
            if any(
                row_id in column.to_pylist() for column in pq.read_table(file.uri, partitioning=None).columns
            )
        )

    def others(self, *files: SourceFile) -> list[str]:
        """URIs of the other data files."""
        return [
            file.uri for file in list_files(self.corpus) if file.name not in {each.name for each in files}
        ]

    def checked(self, untouched: Sequence[str] = ()) -> Corpus:
        """Run a night that must not open some files, and compare its live rows with those of the library."""
        with unreadable(untouched):
            ingested = self.night()
        columns = [self.corpus.id, self.corpus.text, "lang"]
        expected = self.read(columns).select(columns).to_pylist()
        live = addresses(self.store, ingested).values()
        assert sorted(live, key=str) == sorted((tuple(row.values()) for row in expected), key=str)
        assert ingested.snapshot == self.snapshot()
        return ingested


class DeltaNights(TableNights):
    """Nights over a Delta table."""

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.root)

    def write(self, table: pa.Table, **options: Any) -> None:
        write_deltalake(self.root, table, mode="append", **options)

    def read(self, columns: list[str]) -> pa.Table:
        return pa.table(self.table.scan(columns=columns))

    def snapshot(self) -> TableSnapshot:
        return TableSnapshot(format="Delta", id=self.table.version())


class IcebergNights(TableNights):
    """Nights over an Iceberg table of a catalog in a file beside it."""

    def __init__(
        self,
        folder: Path,
        first: pa.Table,
        partition_by: str | None = None,
        location: str | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(folder)
        location = location or f"file://{self.root}"
        self.catalog = SqlCatalog(
            "c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}", **settings
        )
        self.catalog.create_namespace("ns")
        table = self.catalog.create_table("ns.t", first.schema, location=location)
        if partition_by:
            with table.update_spec() as spec:
                spec.add_field(partition_by, IdentityTransform(), partition_by)
        table.append(first)

    @property
    def table(self) -> Table:
        return self.catalog.load_table("ns.t")

    def read(self, columns: list[str]) -> pa.Table:
        return self.table.scan(selected_fields=tuple(columns)).to_arrow()

    def snapshot(self) -> TableSnapshot:
        current = self.table.current_snapshot()
        assert current is not None
        return TableSnapshot(format="Iceberg", id=current.snapshot_id)


def data_file(nights: IcebergNights, row_id: int) -> DataFile:
    """The data file that has a row with this id, as pyiceberg describes it."""
    location = nights.file_of(row_id).table.location
    return next(task.file for task in nights.table.scan().plan_files() if task.file.file_path == location)


@contextlib.contextmanager
def unreadable(files: Sequence[str]) -> Iterator[None]:
    """Replace files by bytes of the same size that are not Parquet for the duration of the block."""
    contents = {file: Path(file).read_bytes() for file in files}
    try:
        for file, content in contents.items():
            Path(file).write_bytes(b"x" * len(content))
        yield
    finally:
        for file, content in contents.items():
            Path(file).write_bytes(content)
