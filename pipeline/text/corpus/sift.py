"""Separate the rows of a batch into texts to encode and rows to quarantine, each with its reason."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import Defect
from pipeline.store.arrays import is_text, one_chunk
from pipeline.text.corpus.normalize import normalize, valid_utf8
from pipeline.text.corpus.quarantine import RejectedRow, quarantine
from pipeline.text.corpus.sources import SourceFile


@dataclass(frozen=True)
class RawBatch:
    """Rows as a reader found them."""

    rows: pa.Table
    """id (of the agreed type), text (string or binary), kept columns, and row"""
    position: int
    """input bytes read so far"""
    rejected: Sequence[RejectedRow] = ()
    """rows that the reader could not parse"""
    surrogates: Sequence[int] = ()
    """numbers of the rows whose text had lone surrogates"""
    dropped: Sequence[int] = ()
    """numbers of the rows with a kept value that did not fit, once for each such value"""


@dataclass(frozen=True)
class SourceBatch:
    """Input rows, each in one of two tables."""

    good: pa.Table
    """id, text (normalized), kept columns, and row"""
    bad: pa.Table
    """a quarantine table, by row"""
    position: int = 0
    surrogates: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    """as in `RawBatch`, of the good rows"""

    @property
    def rows(self) -> int:
        """Number of rows, good and bad."""
        return self.good.num_rows + self.bad.num_rows

    def head(self, count: int) -> "SourceBatch":
        """The first `count` rows by row number."""
        if count >= self.rows:
            return self
        last = np.sort(np.concatenate([self.good["row"].to_numpy(), self.bad["row"].to_numpy()]))[count]
        good, bad = (table.filter(pc.less(table["row"], int(last))) for table in (self.good, self.bad))
        odd = (tuple(row for row in rows if row < last) for rows in (self.surrogates, self.dropped))
        return SourceBatch(good, bad, self.position, *odd)


def sift(raw: RawBatch, file: SourceFile) -> SourceBatch:
    """Normalize the texts of a batch and reject rows without an id or a text.

    A rejected row has the first reason that applies: invalid_utf8, null_id, empty.
    """
    table = raw.rows.combine_chunks()
    utf8 = {
        name: valid_utf8(one_chunk(table[name]))
        for name in table.column_names
        if name == "text" or is_text(table[name].type)
    }
    decoded, text = np.logical_and.reduce(list(utf8.values())), one_chunk(table["text"])
    if not decoded.all():
        text = pc.if_else(pa.array(decoded), text.cast(pa.large_binary()), None)
    texts = normalize(text)
    has_id = table["id"].is_valid().to_numpy()
    filled = pc.fill_null(pc.greater(pc.binary_length(texts), 0), False).to_numpy(zero_copy_only=False)
    good = decoded & has_id & filled
    rejected = raw.rejected
    if not good.all():
        valid = {name: mask[~good] for name, mask in utf8.items()}
        rejected = (*rejected, *_reasons(table.filter(pa.array(~good)), valid))
    table = table.set_column(table.schema.get_field_index("text"), "text", texts).filter(pa.array(good))
    rows = set(table["row"].to_pylist()) if raw.surrogates or raw.dropped else set()
    odd = (tuple(row for row in found if row in rows) for found in (raw.surrogates, raw.dropped))
    sifted = SourceBatch(table, quarantine(file.name, rejected), raw.position, *odd)
    if sifted.rows != raw.rows.num_rows + len(raw.rejected):
        raise Defect(
            file.uri,
            f"{raw.rows.num_rows} + {len(raw.rejected)} rows, good or bad",
            f"{sifted.rows}",
            "report this with the file",
        )
    return sifted


def _reasons(bad: pa.Table, utf8: dict[str, np.ndarray]) -> Iterator[RejectedRow]:
    """Yield each bad row with its reason."""
    rows = zip(bad["row"].to_pylist(), _shown(bad["id"]), _shown(bad["text"]), strict=True)
    for index, (row, row_id, text) in enumerate(rows):
        broken = [name for name, valid in utf8.items() if not valid[index]]
        if broken:
            yield RejectedRow(row, "invalid_utf8", f"column {', '.join(broken)}", row_id, text)
        else:
            yield RejectedRow(row, "null_id" if row_id is None else "empty", "", row_id, text)


def rechunk(tables: Iterable[pa.Table], rows: int, most_bytes: int | None = None) -> Iterator[pa.Table]:
    """Yield the same rows in tables of exactly `rows` rows, each in one chunk; the last may be shorter.

    A table is shorter too if the column text would exceed `most_bytes`. Its end depends on the rows only, not
    on the tables in which they came.
    """
    waiting: list[pa.Table] = []
    held_rows = held_bytes = 0
    for table in tables:
        while table.num_rows:
            lengths = np.zeros(table.num_rows, dtype=np.int64)
            if most_bytes is not None and "text" in table.column_names:
                lengths = pc.binary_length(table["text"]).to_numpy()
            fits = int(np.searchsorted(np.cumsum(lengths), (most_bytes or 0) - held_bytes, side="right"))
            take = min(rows - held_rows, max(fits, 0 if held_rows else 1), table.num_rows)
            if take:
                waiting.append(table.slice(0, take))
            held_rows, held_bytes = held_rows + take, held_bytes + int(lengths[:take].sum())
            if take < table.num_rows or held_rows == rows:
                held_rows = held_bytes = 0
                yield _join(waiting)
            table = table.slice(take)
    if waiting:
        yield _join(waiting)


def _join(waiting: list[pa.Table]) -> pa.Table:
    """Join the tables and empty the list, so that only the caller holds the rows."""
    joined = pa.concat_tables(waiting).combine_chunks()
    waiting.clear()
    return joined


def _shown(column: pa.ChunkedArray) -> list[str | None]:
    """Values as strings for people."""
    if pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        return [None if value is None else str(value) for value in column.to_pylist()]
    encoded = column.cast(pa.large_binary()).to_pylist()
    return [None if value is None else value.decode(errors="replace") for value in encoded]
