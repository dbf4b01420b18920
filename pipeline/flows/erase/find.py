"""Find the rows to erase, in every corpus unit below a root: those of releases, and of nights without one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.flows.context import FlowContext, map_in_order
from pipeline.flows.workers.tasks import PlainTask
from pipeline.store.files.base import Store
from pipeline.store.records.units import CorpusUnit
from pipeline.store.rows.address import to_addresses
from pipeline.store.rows.arrays import one_chunk
from pipeline.store.rows.schema import original_name
from pipeline.text.formats.row_filter import filter_table
from pipeline.text.normalize import blake2b_digests
from pipeline.where.parse import columns_of, parse_where

_PARENT = "parent"  # the column with the document's id, in units of chunks
_OWN_COLUMNS = ("text", "text_key", "file", "row")  # columns that a condition cannot name
_CORPUS_UNITS = "units/corpus"


@dataclass(frozen=True)
class ErasedIds:
    """Ids of the rows to erase, as strings; with corpus.chunk the ids of documents."""

    ids: frozenset[str]

    @cached_property
    def _values(self) -> pa.Array:
        return pa.array(sorted(self.ids), pa.string())

    def mask(self, ids: pa.ChunkedArray | pa.Array) -> np.ndarray:
        """Return a mask (n,) of ids of any type: True for those to erase."""
        texts = one_chunk(ids).cast(pa.string())
        return np.asarray(pc.is_in(texts, value_set=self._values))

    def buckets(self, count: int) -> set[int]:
        """Return the numbers of the buckets of a key table, of `count` buckets, that may have the ids."""
        digests = blake2b_digests(self._values, 8)
        hashes = np.frombuffer(digests.buffers()[1], dtype=">u8", count=len(digests)).astype(np.uint64)
        return buckets_of(hashes, count)


def buckets_of(hashes: np.ndarray, count: int) -> set[int]:
    """Return the buckets of hashes (n,) uint64 in a table of `count` buckets, a power of two."""
    if count <= 1:
        return set(range(count)) if len(hashes) else set()
    return set((hashes >> np.uint64(65 - count.bit_length())).tolist())


class UnitToSearch(NamedTuple):
    """A corpus unit."""

    path: str
    sha256: str | None
    """None for a unit that no release names"""
    is_chunked: bool | None
    """whether its rows are chunks; None if that is not known"""


class FoundRows(NamedTuple):
    """The rows of a corpus unit that are to be erased, with the values by which other files are searched."""

    rows: tuple[int, ...]
    """ascending"""
    ids: tuple[str, ...]
    """ids of the rows; of chunks, not of their documents"""
    texts: tuple[str, ...]
    keys: tuple[bytes, ...]
    """text keys"""


@dataclass(frozen=True)
class FindErasedRows(PlainTask[UnitToSearch, FoundRows]):
    """Find the rows of a unit that have one of the ids. Other rows stay in the unit's file."""

    store: Store
    erased: ErasedIds

    def work(self, unit: UnitToSearch) -> FoundRows:
        file = pq.ParquetFile(self.store.open(unit.path, unit.sha256))
        names = set(file.schema_arrow.names)
        columns = [_PARENT] if unit.is_chunked else ["id"]
        if unit.is_chunked is None and {_PARENT, "start", "end"} <= names:
            columns.append(_PARENT)
        rows, tables, start = list[int](), list[pa.Table](), 0
        for number in range(file.num_row_groups):
            ids = file.read_row_group(number, columns=[*columns, "row"])
            masks = [self.erased.mask(ids[name]) for name in columns]
            found = np.flatnonzero(np.logical_or.reduce(masks) & is_filled(ids))
            if len(found):
                table = file.read_row_group(number, columns=["id", "text", "text_key"])
                tables.append(table.take(pa.array(found)))
                rows += (found + start).tolist()
            start += ids.num_rows
        values = pa.concat_tables(tables).to_pydict() if tables else {"id": (), "text": (), "text_key": ()}
        ids_of_rows = tuple(map(str, values["id"]))
        return FoundRows(tuple(rows), ids_of_rows, tuple(values["text"]), tuple(values["text_key"]))


def is_filled(rows: pa.Table) -> np.ndarray:
    """Return a mask (n,) of rows with a column `row`: False for rows that an earlier erasure emptied."""
    return np.asarray(rows["row"].to_numpy() >= 0)


class MatchedIds(NamedTuple):
    """The ids of the rows of a unit that pass a condition."""

    ids: tuple[str, ...]
    """each once; with corpus.chunk those of documents"""
    failed: int
    """number of rows for which the condition cannot be evaluated"""


@dataclass(frozen=True)
class MatchIds(PlainTask[UnitToSearch, MatchedIds]):
    """Find the ids of the rows of a unit that pass a condition on id and kept columns."""

    store: Store
    where: str

    def work(self, unit: UnitToSearch) -> MatchedIds:
        file = pq.ParquetFile(self.store.open(unit.path, unit.sha256))
        stored = {original_name(name): name for name in file.schema_arrow.names if name not in _OWN_COLUMNS}
        wanted, id_column = columns_of(self.where), _PARENT if unit.is_chunked else "id"
        ids, failed = set[str](), 0
        for number in range(file.num_row_groups):
            columns = {stored[name] for name in wanted if name in stored}
            rows = file.read_row_group(number, columns=sorted({*columns, id_column, "row"}))
            rows = rows.filter(pa.array(is_filled(rows)))
            if not set(wanted) <= stored.keys():
                failed += rows.num_rows
                continue
            table = pa.table({name: rows[stored[name]] for name in wanted})
            found = filter_table(self.where, table, np.arange(rows.num_rows))
            others = np.union1d(found.left_out, np.fromiter(found.failed, np.int64))
            passing = np.setdiff1d(np.arange(rows.num_rows), others)
            ids.update(rows[id_column].take(pa.array(passing)).cast(pa.string()).to_pylist())
            failed += len(found.failed)
        return MatchedIds(tuple(sorted(ids)), failed)


def find_ids(
    context: FlowContext, units: Sequence[UnitToSearch], where: str, schema: pa.Schema
) -> MatchedIds:
    """Find the ids of which any stored version passes a condition, on the workers.

    Args:
        schema: schema of the units of the current release.

    Raises:
        ConfigError: the condition does not fit the columns of the current release.
    """
    columns = [field.with_name(original_name(field.name)) for field in schema]
    parse_where(where, pa.schema([each for each in columns if each.name not in _OWN_COLUMNS]))
    found = map_in_order(context, MatchIds(context.store, where), units)
    ids = set[str]().union(*(each.ids for each in found))
    return MatchedIds(tuple(sorted(ids)), sum(each.failed for each in found))


@dataclass(frozen=True)
class ErasedRows:
    """All rows to erase."""

    erased: ErasedIds
    by_unit: Mapping[str, FoundRows]
    """by the path of the corpus unit; only units with such rows"""

    def rows_of(self, path: str) -> np.ndarray:
        """Return the rows (n,) int64 of a corpus unit that are to be erased, ascending."""
        found = self.by_unit.get(path)
        return np.array(found.rows if found else (), dtype=np.int64)

    def addresses(self, units: Sequence[CorpusUnit]) -> np.ndarray:
        """Return the addresses (n,) int64 of the rows to erase in these units, ascending."""
        pieces = [to_addresses(unit.ordinal, self.rows_of(unit.path)) for unit in units]
        return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *pieces]))

    @cached_property
    def keys(self) -> frozenset[bytes]:
        """Text keys of the rows."""
        return frozenset(key for found in self.by_unit.values() for key in found.keys)

    @cached_property
    def ids(self) -> frozenset[str]:
        """Ids of the rows, and the ids that were asked for."""
        return self.erased.ids | self.ids_found

    @cached_property
    def ids_found(self) -> frozenset[str]:
        """Ids of the rows that were found; of chunks, not of their documents."""
        return frozenset(each for found in self.by_unit.values() for each in found.ids)

    @cached_property
    def texts(self) -> frozenset[str]:
        """Texts of the rows."""
        return frozenset(text for found in self.by_unit.values() for text in found.texts)

    @property
    def count(self) -> int:
        """Number of rows in units, each version of a changed row included."""
        return sum(len(found.rows) for found in self.by_unit.values())


def find_rows(context: FlowContext, units: Sequence[UnitToSearch], erased: ErasedIds) -> ErasedRows:
    """Search the units for the rows to erase, on the workers."""
    found = map_in_order(context, FindErasedRows(context.store, erased), units)
    return ErasedRows(erased, {unit.path: rows for unit, rows in zip(units, found, strict=True) if rows.rows})


def other_units(store: Store, known: set[str]) -> Iterator[UnitToSearch]:
    """Yield the corpus units that no release names, such as those of refused candidates."""
    for page in store.pages(_CORPUS_UNITS):
        for entry in page:
            if entry.path not in known and entry.path.endswith(".parquet"):
                yield UnitToSearch(entry.path, None, None)
