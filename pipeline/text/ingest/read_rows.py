"""Rows read tonight, in two tables: lines, which suffice to resolve ids, and contents.

Both are stored in partitions by the hash of the id.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.rows.schema import KEY
from pipeline.text.key_tables.keys import carried_keys
from pipeline.text.key_tables.line_numbers import rows_of_lines
from pipeline.text.key_tables.partitions import PartitionReader
from pipeline.text.normalize import text_keys

_IN_LINES = {"id", "text_key", "file", "row"}  # columns of units that are stored in lines


def read_line_schema(id_type: pa.DataType) -> pa.Schema:
    """Return the schema of `ReadRows.lines`.

    `carried` is a digest of the kept columns, and `file` is the file's index in tonight's listing.
    """
    return pa.schema(
        [
            pa.field("id", id_type),
            pa.field("text_key", KEY),
            pa.field("carried", KEY),
            pa.field("file", pa.int32()),
            pa.field("row", pa.int64()),
        ]
    )


def content_schema(units: pa.Schema) -> pa.Schema:
    """Return the schema of `ReadRows.contents` (texts and kept columns), from the schema of units."""
    return pa.schema([field for field in units if field.name not in _IN_LINES])


class ReadRows(NamedTuple):
    """Good rows: row i of both tables is the same row."""

    lines: pa.Table
    """`read_line_schema`"""
    contents: pa.Table
    """`content_schema`"""

    @classmethod
    def of(cls, good: pa.Table, file: int, units: pa.Schema) -> "ReadRows":
        """Divide good rows of one file.

        Args:
            good: rows as `SourceBatch.good` has them, or their chunks.
            file: index of the file in tonight's listing.
            units: schema of the corpus's units.
        """
        rows, schema = good.combine_chunks(), content_schema(units)
        keys = [text_keys(chunk) for chunk in rows["text"].chunks]
        lines = {
            "id": rows["id"],
            "text_key": pa.chunked_array(keys, KEY),
            "carried": carried_keys(rows, [name for name in schema.names if name != "text"]),
            "file": pa.array(np.full(rows.num_rows, file, dtype=np.int32)),
            "row": rows["row"],
        }
        contents = {name: rows[name] for name in schema.names}
        return cls(
            pa.table(lines, schema=read_line_schema(units.field("id").type)),
            pa.table(contents, schema=schema),
        )

    def unit_rows(self, files: pa.Array, units: pa.Schema) -> pa.Table:
        """Return the rows as rows of units; `files` are the names of the files in tonight's listing."""
        of_lines = {name: self.lines[name] for name in self.lines.column_names}
        of_lines["file"] = files.take(self.lines["file"].combine_chunks())
        of_lines["row"] = pa.array(rows_of_lines(self.lines["row"].to_numpy()))
        columns = [of_lines[name] if name in _IN_LINES else self.contents[name] for name in units.names]
        return pa.Table.from_arrays(columns, schema=units)


class ReadPart(Stored):
    """Stored rows, in the order of (file, row) within each partition."""

    lines: FileRef
    contents: FileRef

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.lines.rows


def read_lines(
    work: PartitionReader, part: ReadPart, id_type: pa.DataType, first: int, stop: int
) -> pa.Table:
    """Read the lines of the partitions from `first` to `stop` in the order of (file, row)."""
    lines = work.read([part.lines], read_line_schema(id_type), first, stop)
    return lines if stop - first == 1 else lines.take(_order(lines))


def read_part(work: PartitionReader, part: ReadPart, units: pa.Schema, first: int, stop: int) -> ReadRows:
    """Read the rows of the partitions from `first` to `stop` in the order of (file, row)."""
    lines = work.read([part.lines], read_line_schema(units.field("id").type), first, stop)
    contents = work.read([part.contents], content_schema(units), first, stop)
    if stop - first == 1:
        return ReadRows(lines, contents)
    order = _order(lines)
    return ReadRows(lines.take(order), contents.take(order))


def _order(lines: pa.Table) -> pa.Array:
    """Return the indices that sort lines by (file, row)."""
    return pa.array(np.lexsort([lines["row"].to_numpy(), lines["file"].to_numpy()]))
