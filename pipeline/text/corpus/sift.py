"""Good rows and bad: a batch of input rows is sifted into texts to encode and rows to set aside, each with its reason."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import Defect
from pipeline.text.corpus.normalize import normalize, valid_utf8
from pipeline.text.corpus.quarantine import Rejected, quarantine
from pipeline.text.corpus.sources import SourceFile


@dataclass(frozen=True)
class RawBatch:
    """Rows as a reader found them: id (agreed type), text (string or binary), kept columns, row; what it could not read; input bytes read so far.

    surrogates: numbers of the rows whose text had lone surrogates; dropped: of those with a kept value that did not fit, once for each such value.
    """

    rows: pa.Table
    position: int
    rejected: tuple[Rejected, ...] = ()
    surrogates: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True)
class SourceBatch:
    """Input rows, each in one of two tables. good: id, text (normalized), kept columns, row; bad: as QUARANTINE, by row."""

    good: pa.Table
    bad: pa.Table
    position: int = 0
    surrogates: frozenset[int] = field(default_factory=frozenset)
    dropped: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return self.good.num_rows + self.bad.num_rows

    def head(self, count: int) -> "SourceBatch":
        """The first `count` rows by row number."""
        if count >= self.rows:
            return self
        last = np.sort(np.concatenate([self.good["row"].to_numpy(), self.bad["row"].to_numpy()]))[count]
        good, bad = (table.filter(pc.less(table["row"], int(last))) for table in (self.good, self.bad))
        return SourceBatch(
            good,
            bad,
            self.position,
            frozenset(row for row in self.surrogates if row < last),
            tuple(row for row in self.dropped if row < last),
        )


def sift(raw: RawBatch, file: SourceFile) -> SourceBatch:
    """Rows with an id and a text, normalized; the others with the first reason that holds: invalid_utf8, null_id, empty."""
    table = raw.rows.combine_chunks()
    utf8 = {
        name: valid_utf8(_one(table[name]))
        for name in table.column_names
        if name == "text" or _is_string(table[name].type)
    }
    decoded = np.logical_and.reduce(list(utf8.values()))
    text = _one(table["text"])
    texts = normalize(text if decoded.all() else _where(decoded, text))
    has_id = table["id"].is_valid().to_numpy()
    filled = pc.fill_null(pc.greater(pc.binary_length(texts), 0), False).to_numpy(zero_copy_only=False)
    good = decoded & has_id & filled
    rejected = (
        raw.rejected
        if good.all()
        else (
            *raw.rejected,
            *_rejected(table.filter(pa.array(~good)), {name: valid[~good] for name, valid in utf8.items()}),
        )
    )
    table = table.set_column(table.schema.get_field_index("text"), "text", texts).filter(pa.array(good))
    taken = frozenset(table["row"].to_pylist()) if raw.surrogates or raw.dropped else frozenset()
    dropped = tuple(row for row in raw.dropped if row in taken)
    sifted = SourceBatch(
        table, quarantine(file.name, rejected), raw.position, taken.intersection(raw.surrogates), dropped
    )
    if sifted.rows != raw.rows.num_rows + len(raw.rejected):
        raise Defect(
            file.uri,
            f"{raw.rows.num_rows} + {len(raw.rejected)} rows, good or bad",
            f"{sifted.rows}",
            "report this with the file",
        )
    return sifted


def _rejected(bad: pa.Table, utf8: dict[str, np.ndarray]) -> Iterator[Rejected]:
    """The reason of each bad row."""
    for place, (row, row_id, text) in enumerate(
        zip(bad["row"].to_pylist(), _shown(bad["id"]), _shown(bad["text"]), strict=True)
    ):
        broken = [name for name, valid in utf8.items() if not valid[place]]
        if broken:
            yield Rejected(row, "invalid_utf8", f"column {', '.join(broken)}", row_id, text)
        else:
            yield Rejected(row, "null_id" if row_id is None else "empty", "", row_id, text)


def rechunk(tables: Iterable[pa.Table], rows: int, most_bytes: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly `rows` rows, fewer where their texts would exceed `most_bytes`; the last may be shorter.

    Where a table ends depends on the rows alone, not on how they arrived.
    """
    waiting: list[pa.Table] = []
    held_rows = held_bytes = 0
    for table in tables:
        while table.num_rows:
            lengths = (
                pc.binary_length(table["text"]).to_numpy()
                if "text" in table.column_names
                else np.zeros(table.num_rows, dtype=np.int64)
            )
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
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else pa.array([], column.type)
    )


def _is_string(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _where(valid: np.ndarray, strings: pa.Array) -> pa.Array:
    """The valid ones; null elsewhere."""
    return pc.if_else(
        pa.array(valid), strings.cast(pa.large_binary()), pa.scalar(None, pa.large_binary())
    ).cast(pa.large_string())


def _shown(column: pa.ChunkedArray) -> list[str | None]:
    """Values as people read them."""
    if pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        return [None if value is None else str(value) for value in column.to_pylist()]
    return [
        None if value is None else value.decode(errors="replace")
        for value in column.cast(pa.large_binary()).to_pylist()
    ]
