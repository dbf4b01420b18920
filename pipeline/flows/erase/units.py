"""Rewrite units without the rows to erase. All other rows keep their addresses.

A corpus unit keeps its number of rows: an erased row has empty values. A unit of vectors loses the row, whose
number joins `dropped`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.flows.encode.samples import sample_unit
from pipeline.flows.workers.tasks import PlainTask
from pipeline.stats.moments import Moments, merge_tree
from pipeline.store.files.base import Store, sha256_of
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import UnitRecord
from pipeline.store.records.write_once import (
    create_record,
    put_by_content,
    store_by_content,
    store_table_by_content,
)
from pipeline.store.rows.schema import QUARANTINE, vector_matrix, writer_options

ERASED = "erased"
"""reason of an erased row in the list of a unit's rows without a vector"""


class UnitToRewrite(NamedTuple):
    """A corpus unit, the units of vectors that were made from it, and the rows to erase."""

    corpus: FileRef
    vectors: tuple[VectorUnit, ...]
    """each file once"""
    rows: tuple[int, ...]
    """rows of the corpus unit, ascending"""


class RewrittenUnit(NamedTuple):
    """The units that replace a corpus unit and its units of vectors."""

    corpus: FileRef
    vectors: tuple[VectorUnit, ...]
    """in the order of `UnitToRewrite.vectors`; without `live_moments`"""


@dataclass(frozen=True)
class RewriteUnit(PlainTask[UnitToRewrite, RewrittenUnit]):
    """Write the units again without the rows to erase, one row group in memory at a time."""

    store: Store

    def work(self, unit: UnitToRewrite) -> RewrittenUnit:
        corpus = self._rewrite_corpus(unit)
        vectors = tuple(self._rewrite_vectors(each, unit, corpus) for each in unit.vectors)
        return RewrittenUnit(corpus, vectors)

    def _rewrite_corpus(self, unit: UnitToRewrite) -> FileRef:
        source, start = pq.ParquetFile(unit.corpus.open(self.store)), 0
        schema, rows = source.schema_arrow, np.array(unit.rows)
        blank = blank_row(schema)
        with self.store.scratch() as scratch:
            file = scratch / "unit.parquet"
            with pq.ParquetWriter(file, schema, **writer_options(schema)) as writer:
                for number in range(source.num_row_groups):
                    table = source.read_row_group(number)
                    order = np.arange(table.num_rows)
                    order[rows[(rows >= start) & (rows < start + len(order))] - start] = len(order)
                    start += len(order)
                    writer.write_table(pa.concat_tables([table, blank]).take(pa.array(order)))
            digest, size = sha256_of(file), file.stat().st_size
            path = f"units/corpus/{digest[:24]}.parquet"
            self.store.put(file, path)
        return FileRef(path=path, sha256=digest, rows=unit.corpus.rows, bytes=size)

    def _rewrite_vectors(self, old: VectorUnit, unit: UnitToRewrite, corpus: FileRef) -> VectorUnit:
        dropped = np.array(old.dropped, dtype=np.int64)
        rows = np.setdiff1d(unit.rows, dropped)
        removed = rows - np.searchsorted(dropped, rows)
        name = f"{old.space_id[:16]}/{corpus.sha256[:24]}"
        with self.store.scratch() as scratch:
            file = scratch / "vectors.parquet"
            kept = _write_without(pq.ParquetFile(old.file.open(self.store)), removed, file)
            moments = Moments.empty(_dim(file)) if not kept else merge_tree(_moments(file))
            content = moments.to_bytes()
            reference = store_by_content(self.store, content, f"moments/{name}", ".safetensors", kept)
            sample = sample_unit(self.store, pq.ParquetFile(file), name)
            vectors = put_by_content(self.store, file, f"units/vectors/{name}", kept, digits=12)
        changes: dict[str, Any] = {
            **dict(vectors),
            "dropped": tuple(np.union1d(dropped, unit.rows).tolist()),
            "moments": reference,
            "sample": sample,
            "quarantine": self._rewrite_quarantine(old, unit, name),
        }
        path = old.record.replace(unit.corpus.sha256[:24], corpus.sha256[:24])
        known = UnitRecord.load(self.store, old.record)
        counts = known.counts if known else old.counts
        record = UnitRecord(
            name=f"vectors/{name}",
            counts=counts,
            space_id=old.space_id,
            numerics_id=old.numerics_id,
            copied=old.copied,
            source=corpus.sha256,
            **changes,
        )
        record = create_record(self.store, path, record)
        return old.model_copy(update={**changes, "corpus": corpus, "record": path, "live_moments": None})

    def _rewrite_quarantine(self, old: VectorUnit, unit: UnitToRewrite, name: str) -> FileRef | None:
        """Store the list of the rows without a vector, with a line without values for each erased row."""
        if old.quarantine is None:
            return None
        lines = pq.read_table(old.quarantine.open(self.store)).to_pylist()
        by_row = dict(zip(old.dropped, lines, strict=True))
        erased = {"file": "", "row": -1, "reason": ERASED}
        by_row |= dict.fromkeys(unit.rows, erased)
        table = pa.Table.from_pylist([by_row[row] for row in sorted(by_row)], schema=QUARANTINE)
        return store_table_by_content(self.store, table, f"quarantine/{name}")


def _write_without(source: pq.ParquetFile, removed: np.ndarray, file: Any) -> int:
    """Write the rows of a file except those at the positions `removed`. Returns their number."""
    schema, start, kept = source.schema_arrow, 0, 0
    with pq.ParquetWriter(file, schema, **writer_options(schema)) as writer:
        for number in range(source.num_row_groups):
            table = source.read_row_group(number)
            keep = np.ones(table.num_rows, dtype=bool)
            keep[removed[(removed >= start) & (removed < start + len(keep))] - start] = False
            start += len(keep)
            if keep.any():
                writer.write_table(table.filter(pa.array(keep)))
                kept += int(keep.sum())
    return kept


def _moments(file: Any) -> Any:
    """Yield the moments of the vectors of each row group."""
    source = pq.ParquetFile(file)
    for number in range(source.num_row_groups):
        column = source.read_row_group(number, columns=["vector"])["vector"]
        yield Moments.of(vector_matrix(column).astype(np.float32, copy=False))


def _dim(file: Any) -> int:
    return int(pq.read_schema(file).field("vector").type.list_size)


def blank_row(schema: pa.Schema) -> pa.Table:
    """Return a table of one row without values: null, or empty or zero in columns that cannot be null.

    A row number is -1, which no row has.
    """
    columns = [
        pa.nulls(1, field.type) if field.nullable else pa.array([_empty(field.type)], field.type)
        for field in schema
    ]
    if (row := schema.get_field_index("row")) >= 0:
        columns[row] = pa.array([-1], pa.int64())
    return pa.Table.from_arrays(columns, schema=schema)


def _empty(of_type: pa.DataType) -> Any:
    """Return the empty or zero value of a type of columns that cannot be null."""
    if pa.types.is_fixed_size_binary(of_type):
        return bytes(of_type.byte_width)
    if pa.types.is_binary(of_type) or pa.types.is_large_binary(of_type):
        return b""
    if pa.types.is_string(of_type) or pa.types.is_large_string(of_type):
        return ""
    if pa.types.is_struct(of_type):
        return {field.name: None if field.nullable else _empty(field.type) for field in of_type}
    if pa.types.is_nested(of_type):
        return []
    return pa.scalar(0, pa.int64()).cast(of_type).as_py()
