"""The units of a release: a list in its manifest, or a table in a Parquet file that the manifest names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, pairwise
from typing import Annotated, Any, Self, overload

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import (
    SerializerFunctionWrapHandler,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapSerializer,
    WrapValidator,
    model_serializer,
)

from pipeline.errors import DataError
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.units import CorpusUnit, UnitRecord
from pipeline.store.records.write_once import put_by_content
from pipeline.store.rows.arrays import one_chunk

# More units than this are stored as a table: in the manifest a unit takes 1.3 kB, which every reader parses.
MAX_LISTED = 1_000
_GROUP_UNITS = 10_000  # units in one row group, converted together
_FOLDER = "units/tables/"


class VectorUnit(Stored):
    """One unit of vectors in a release or a candidate."""

    ordinal: int
    """number of the unit, which gives each of its rows an address"""
    path: str
    rows: int
    """dead rows included"""
    bytes: int = 0
    sha256: str
    space_id: str
    numerics_id: str
    copied: dict[str, int] = {}
    """vectors copied from units of other numerics: numerics_id -> count"""
    corpus: FileRef
    """the corpus unit, which holds the texts"""
    dropped: tuple[int, ...] = ()
    """rows of the corpus unit without a vector"""
    moments: FileRef | None = None
    """moments of all its vectors"""
    live_moments: FileRef | None = None
    """moments of its vectors without dead rows, if the unit is large and has dead rows"""
    sample: FileRef | None = None
    """some of its rows with ids and vectors, if it is large"""
    record: str
    """path of the unit's record"""
    quarantine: FileRef | None = None
    """rows whose vector was unusable"""
    counts: dict[str, int] = {}
    """counts of its record, by name; empty if the units are listed in the manifest, not in a table"""

    @classmethod
    def of(cls, texts: CorpusUnit, vectors: UnitRecord, record: str) -> Self:
        """Return the vector unit of a corpus unit.

        Args:
            record: path of the record of the vectors.
        """
        shared = {name: value for name, value in vectors if name in cls.model_fields}
        return cls(ordinal=texts.ordinal, corpus=texts.file, record=record, **shared)

    @model_serializer(mode="wrap")
    def _without_missing_counts(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields without `counts` if there are none, as in manifests that list their units."""
        value: dict[str, Any] = serialize(self)
        if not self.counts:
            del value["counts"]
        return value

    @property
    def file(self) -> FileRef:
        """The file with the unit's rows."""
        return FileRef(path=self.path, sha256=self.sha256, rows=self.rows, bytes=self.bytes)

    def vectors_record(self) -> UnitRecord | None:
        """Return the record of the unit's vectors; None if its counts are not known."""
        if not self.counts:
            return None
        name = f"vectors/{self.space_id[:16]}/{self.corpus.sha256[:24]}"
        shared = {field: value for field, value in self if field in UnitRecord.model_fields}
        return UnitRecord(name=name, source=self.corpus.sha256, **shared)

    def references(self) -> Iterator[FileRef]:
        """Yield the unit's files. The reference to its record has neither size nor sha256."""
        yield from (self.file, FileRef(path=self.record, sha256=""))
        yield from super().references()


_FILE = pa.struct(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
    ]
)
_FILE_COLUMNS = ("corpus", "moments", "live_moments", "sample", "quarantine")
_COUNTS = pa.map_(pa.string(), pa.int64())
_SCHEMA = pa.schema(
    [
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
        pa.field("space_id", pa.string(), nullable=False),
        pa.field("numerics_id", pa.string(), nullable=False),
        pa.field("copied", _COUNTS, nullable=False),
        pa.field("corpus", _FILE, nullable=False),
        pa.field("dropped", pa.list_(pa.int64()), nullable=False),
        pa.field("moments", _FILE),
        pa.field("live_moments", _FILE),
        pa.field("sample", _FILE),
        pa.field("record", pa.string(), nullable=False),
        pa.field("quarantine", _FILE),
        pa.field("counts", _COUNTS, nullable=False),
    ]
)


class UnitTable(Sequence[VectorUnit]):
    """The units of a release in a Parquet file, one row per unit. The file is read at the first use.

    Tables are equal if their files are equal. Pickling keeps only the reference to the file.
    """

    def __init__(self, store: Store, file: FileRef, units: tuple[VectorUnit, ...] | None = None) -> None:
        """Refer to a stored table.

        Args:
            units: content of the file, if it is known.
        """
        self._store, self.file = store, file
        if units is not None:
            self.__dict__["_units"] = units

    def __repr__(self) -> str:
        return f"UnitTable({self._store!r}, {self.file!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return UnitTable, (self._store, self.file)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnitTable) and self.file == other.file

    def __hash__(self) -> int:
        return hash(self.file)

    def __len__(self) -> int:
        return self.file.rows

    def __iter__(self) -> Iterator[VectorUnit]:
        return iter(self._units)

    @overload
    def __getitem__(self, index: int) -> VectorUnit: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[VectorUnit]: ...
    def __getitem__(self, index: int | slice) -> VectorUnit | Sequence[VectorUnit]:
        return self._units[index]

    def references(self) -> Iterator[FileRef]:
        """Yield the files of all units, without making `VectorUnit` objects.

        Raises:
            DataError: the table is missing, or was changed.
        """
        own = [field.name for field in _FILE]
        for group in self._groups():
            for row in group.select([*own, *_FILE_COLUMNS, "record"]).to_pylist():
                yield FileRef(**{name: row[name] for name in own})
                yield FileRef(path=row["record"], sha256="")
                yield from (FileRef.model_validate(row[name]) for name in _FILE_COLUMNS if row[name])

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yield path and size of the files that `references` yields, without making an object for each.

        Raises:
            DataError: the table is missing, or was changed.
        """
        for group in self._groups():
            yield from zip(group["path"].to_pylist(), group["bytes"].to_pylist(), strict=True)
            yield from ((path, 0) for path in group["record"].to_pylist())
            for files in (one_chunk(group[name]).drop_null() for name in _FILE_COLUMNS):
                yield from zip(files.field("path").to_pylist(), files.field("bytes").to_pylist(), strict=True)

    def is_complete(self) -> bool:
        """Return whether the file exists and has the recorded size."""
        return self.file.is_complete(self._store)

    @cached_property
    def _units(self) -> tuple[VectorUnit, ...]:
        """The content of the file."""
        return tuple(unit for group in self._groups() for unit in _units_of(group))

    def _groups(self) -> Iterator[pa.Table]:
        """Yield the row groups of the file.

        Raises:
            DataError: the file is missing, or was changed.
        """
        where = self._store.uri_of(self.file.path)
        try:
            file = pq.ParquetFile(pa.BufferReader(self.file.read(self._store)))
        except FileNotFoundError:
            raise DataError(
                where,
                "the table of the release's units",
                "no such file",
                "restore it, or roll back to an older release",
            ) from None
        yield from map(file.read_row_group, range(file.num_row_groups))


def _units_of(group: pa.Table) -> Iterator[VectorUnit]:
    """Yield the units of a row group."""
    # Maps are converted here, because pyarrow takes ten times as long.
    maps = [field.name for field in _SCHEMA if field.type == _COUNTS]
    rows = group.drop_columns(maps).to_pylist()
    for row, *counts in zip(rows, *(_dicts(group[name]) for name in maps), strict=True):
        yield VectorUnit.model_validate(row | dict(zip(maps, counts, strict=True)))


def _dicts(column: pa.ChunkedArray) -> Iterator[dict[str, int]]:
    """Yield the maps of a column."""
    array = one_chunk(column)
    names, counts = array.keys.to_pylist(), array.items.to_pylist()
    for start, end in pairwise(array.offsets.to_pylist()):
        yield dict(zip(names[start:end], counts[start:end], strict=True))


def store_units(store: Store, units: Sequence[VectorUnit]) -> Sequence[VectorUnit]:
    """Return the units as a manifest stores them: a few as a tuple, many as a table, which is written now."""
    if len(units) <= MAX_LISTED:
        return tuple(unit.model_copy(update={"counts": {}}) for unit in units)
    remaining = iter(units)
    with store.scratch() as scratch:
        local = scratch / "units.parquet"
        with pq.ParquetWriter(local, _SCHEMA, compression="zstd", write_statistics=False) as writer:
            while group := [{"counts": {}} | unit.model_dump() for unit in islice(remaining, _GROUP_UNITS)]:
                writer.write_table(pa.Table.from_pylist(group, _SCHEMA))
        return UnitTable(store, put_by_content(store, local, _FOLDER, len(units)), tuple(units))


def _parse(value: Any, parse: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Sequence[VectorUnit]:
    """Parse the field: units in a list become a tuple, a reference to a stored table becomes a
    `UnitTable`.
    """
    if isinstance(value, UnitTable):
        return value
    if isinstance(value, Mapping):
        if not isinstance(info.context, Store):
            raise ValueError("the table of units needs the store that it is in")
        return UnitTable(info.context, FileRef.model_validate(value))
    return tuple(parse(value))


def _serialize(units: Sequence[VectorUnit], serialize: Callable[[Any], Any]) -> Any:
    """Return the list of units, or the reference to their table."""
    return units.file.model_dump() if isinstance(units, UnitTable) else serialize(units)


Units = Annotated[Sequence[VectorUnit], WrapValidator(_parse), WrapSerializer(_serialize)]
"""Type of the field with the units of a release: a tuple, or a table that is read when it is used."""
