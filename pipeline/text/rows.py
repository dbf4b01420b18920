"""Good rows and bad: a batch of input rows is sifted into texts to encode and rows to set aside, each with its reason."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store.schema import QUARANTINE
from pipeline.text.normalize import normalize, valid_utf8
from pipeline.text.sources import SourceFile

_EXCERPT = 200          # characters of a text that the quarantine shows


@dataclass(frozen=True)
class Rejected:
    """One input row that is set aside. row: its number in the file, -1 for the file as a whole."""

    row: int
    reason: str
    detail: str = ""
    id: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class RawBatch:
    """Rows as a reader found them: id (agreed type), text (string or binary), kept columns, row; what it could not read; input bytes read so far.

    surrogates: numbers of the rows whose text had lone surrogates.
    """

    rows: pa.Table
    position: int
    rejected: tuple[Rejected, ...] = ()
    surrogates: tuple[int, ...] = ()


@dataclass(frozen=True)
class SourceBatch:
    """Input rows, each in one of two tables. good: id, text (normalized), kept columns, row; bad: as QUARANTINE, by row."""

    good: pa.Table
    bad: pa.Table
    position: int = 0
    surrogates: frozenset[int] = field(default_factory=frozenset)

    @property
    def rows(self) -> int:
        return self.good.num_rows + self.bad.num_rows

    def head(self, count: int) -> "SourceBatch":
        """The first `count` rows by row number."""
        if count >= self.rows:
            return self
        last = np.sort(np.concatenate([self.good["row"].to_numpy(), self.bad["row"].to_numpy()]))[count]
        good, bad = (table.filter(pc.less(table["row"], int(last))) for table in (self.good, self.bad))
        return SourceBatch(good, bad, self.position, frozenset(row for row in self.surrogates if row < last))


def sift(raw: RawBatch, file: SourceFile) -> SourceBatch:
    """Rows with an id and a text, normalized; the others with the first reason that holds: invalid_utf8, null_id, empty."""
    table = raw.rows.combine_chunks()
    utf8 = {name: valid_utf8(_one(table[name])) for name in table.column_names if _holds_text(table[name].type)}
    decoded = np.logical_and.reduce([np.ones(len(table), dtype=bool), *utf8.values()])
    text = _one(table["text"])
    texts = normalize(text if decoded.all() else _where(decoded, text))
    has_id = table["id"].is_valid().to_numpy()
    filled = pc.fill_null(pc.greater(pc.binary_length(texts), 0), False).to_numpy(zero_copy_only=False)
    rejected = [*raw.rejected]
    for row in np.flatnonzero(~(decoded & has_id & filled)).tolist():
        broken = [name for name, valid in utf8.items() if not valid[row]]
        reason, detail = ("invalid_utf8", f"column {', '.join(broken)}") if broken else ("null_id", "") if not has_id[row] else ("empty", "")
        rejected.append(Rejected(table["row"][row].as_py(), reason, detail, _shown(table["id"], row), _shown(table["text"], row)))
    table = table.set_column(table.schema.get_field_index("text"), "text", texts)
    good = table if decoded.all() and has_id.all() and filled.all() else table.filter(pa.array(decoded & has_id & filled))
    return SourceBatch(good, quarantine(file.name, rejected), raw.position, frozenset(raw.surrogates) & set(good["row"].to_pylist()) if raw.surrogates else frozenset())


def quarantine(file: str, rejected: Iterable[Rejected]) -> pa.Table:
    """The rows as a quarantine table, by row number."""
    rows = [
        {"file": file, "row": one.row, "id": one.id, "reason": one.reason, "detail": one.detail or None, "excerpt": excerpt(one.text)}
        for one in sorted(rejected, key=lambda one: one.row)
    ]
    return pa.Table.from_pylist(rows, schema=QUARANTINE)


def excerpt(text: str | None) -> str | None:
    """The first characters of a text."""
    return text[:_EXCERPT] if text is not None else None


def rechunk(tables: Iterable[pa.Table], rows: int, most_bytes: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly `rows` rows, fewer where their texts would exceed `most_bytes`; the last may be shorter.

    Where a table ends depends on the rows alone, not on how they arrived.
    """
    waiting: list[pa.Table] = []
    held_rows = held_bytes = 0
    for table in tables:
        while table.num_rows:
            lengths = pc.binary_length(table["text"]).to_numpy() if "text" in table.column_names else np.zeros(table.num_rows, dtype=np.int64)
            fits = int(np.searchsorted(np.cumsum(lengths), most_bytes - held_bytes, side="right"))
            take = min(rows - held_rows, max(fits, 0 if held_rows else 1), table.num_rows)
            if take:
                waiting.append(table.slice(0, take))
            held_rows, held_bytes = held_rows + take, held_bytes + int(lengths[:take].sum())
            if take < table.num_rows or held_rows == rows:
                yield pa.concat_tables(waiting).combine_chunks()
                waiting, held_rows, held_bytes = [], 0, 0
            table = table.slice(take)
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _holds_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _where(valid: np.ndarray, strings: pa.Array) -> pa.Array:
    """The valid ones; null elsewhere."""
    return pc.if_else(pa.array(valid), strings.cast(pa.large_binary()), pa.scalar(None, pa.large_binary())).cast(pa.large_string())


def _shown(column: pa.ChunkedArray, row: int) -> str | None:
    value = column[row]
    if not value.is_valid:
        return None
    return value.cast(pa.large_binary()).as_py().decode(errors="replace") if _holds_text(column.type) else str(value.as_py())
