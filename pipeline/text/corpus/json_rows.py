"""Parse JSON lines one by one, in blocks that Arrow cannot parse, and reject invalid lines with a reason."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipeline.settings import CorpusSettings
from pipeline.store.arrays import array_of
from pipeline.text.corpus.json_values import convert_value, is_id, parse_line, show_value
from pipeline.text.corpus.normalize import has_surrogates, replace_surrogates
from pipeline.text.corpus.quarantine import RejectedRow
from pipeline.text.corpus.sources import SourceFile


def keys_by_column(schema: pa.Schema, corpus: CorpusSettings) -> dict[str, str]:
    """Map each column of the batch to the key of its value in a JSON object."""
    return dict(zip(schema.names, (corpus.id, corpus.text, *corpus.keep), strict=True))


def partition_values(schema: pa.Schema, file: SourceFile, corpus: CorpusSettings) -> dict[str, pa.Scalar]:
    """Map columns of the batch to the value that rows without one get from the file's hive partition.

    Columns whose type cannot hold the value are left out.
    """
    values = {}
    for column, name in keys_by_column(schema, corpus).items():
        with contextlib.suppress(pa.ArrowException):
            values[column] = pa.scalar(file.partitions.get(name), pa.string()).cast(schema.field(column).type)
    return {column: value for column, value in values.items() if value.is_valid}


@dataclass
class LineParser:
    """Rows and rejected lines of one block; `add` parses a line."""

    file: SourceFile
    corpus: CorpusSettings
    schema: pa.Schema
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    """(id, text, kept values, row number) of each row"""
    rejected: list[RejectedRow] = field(default_factory=list)
    surrogates: list[int] = field(default_factory=list)
    """numbers of the rows whose text had lone surrogates"""
    nulled: list[int] = field(default_factory=list)
    """numbers of the rows with a kept value that did not fit and became null, once for each such value"""
    partition: dict[str, Any] = field(init=False)
    """values of rows that lack them; see `partition_values`"""

    def __post_init__(self) -> None:
        self.partition = {
            column: value.as_py()
            for column, value in partition_values(self.schema, self.file, self.corpus).items()
        }

    def add(self, number: int, line: bytes) -> None:
        """Parse a line and add it to the rows or to the rejected lines."""
        value, reason, detail = parse_line(line)
        if value is None:
            self.rejected.append(RejectedRow(number, reason, detail, text=line.decode(errors="replace")))
            return
        row_id, text, *kept_values = (
            self.partition.get(column) if value.get(key) is None else value[key]
            for column, key in keys_by_column(self.schema, self.corpus).items()
        )
        type_errors = []
        if not isinstance(text, str | None):
            type_errors.append(f"{self.corpus.text} is {show_value(text)}, not a string")
        id_type = self.schema.field("id").type
        if row_id is not None and not is_id(row_id, id_type):
            type_errors.append(f"{self.corpus.id} is {show_value(row_id)}, not an id of type {id_type}")
        if type_errors:
            self.rejected.append(
                RejectedRow(
                    number,
                    "wrong_type",
                    ", ".join(type_errors),
                    id=row_id if isinstance(row_id, str | None) else show_value(row_id),
                    text=text if isinstance(text, str) else None,
                )
            )
        else:
            self.rows.append(self._to_row(number, row_id, text, kept_values))

    def _to_row(
        self, number: int, row_id: Any, text: str | None, kept_values: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Convert values to a row. Lone surrogates become U+FFFD, kept values that do not fit become None."""
        if isinstance(row_id, str):
            row_id = replace_surrogates(row_id)
        kept_types = self.schema.types[2:]  # after the id and the text
        kept = [convert_value(value, kind) for value, kind in zip(kept_values, kept_types, strict=True)]
        self.nulled += [number for _, fits in kept if not fits]
        if isinstance(text, str) and has_surrogates(text):
            self.surrogates.append(number)
            text = replace_surrogates(text)
        return row_id, text, *(value for value, _ in kept), number

    def table(self) -> pa.Table:
        """Return the rows added so far."""
        schema = self.schema.append(pa.field("row", pa.int64()))
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(schema)
        return pa.table(
            [array_of(values, kind) for values, kind in zip(columns, schema.types, strict=True)],
            schema=schema,
        )
