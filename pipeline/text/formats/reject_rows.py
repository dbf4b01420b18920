"""Separate the rows of a batch into good rows, filtered rows and rows to quarantine, each with its reason."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import Defect
from pipeline.store.releases.left_out import LeftOutIds
from pipeline.store.rows.arrays import is_text, join_tables, one_chunk
from pipeline.text.formats.quarantine import RejectedRow, quarantine
from pipeline.text.formats.row_filter import FilteredRows
from pipeline.text.normalize import normalize, valid_utf8
from pipeline.text.sources.sources import SourceFile

FILTERED = pa.schema([("id", pa.string()), ("row", pa.int64()), ("by", pa.string())])
"""Schema of filtered rows: id as a string, null if it cannot be read, row number, and what leaves it out:
`where`, `exclude` or `erased`."""


@dataclass(frozen=True)
class RawBatch:
    """Rows as the reader of a file format returns them, before they are checked."""

    rows: pa.Table
    """id (of the type that all files agree on), text (string or binary), kept columns, and row number"""
    position: int
    """input bytes read so far"""
    rejected: Sequence[RejectedRow] = ()
    """rows that the reader could not parse"""
    surrogates: Sequence[int] = ()
    """numbers of the rows whose text had lone surrogates"""
    nulled: Sequence[int] = ()
    """numbers of the rows with a kept value that did not fit and became null, once for each such value"""
    not_utf8: Mapping[str, np.ndarray] = field(default_factory=dict)
    """numbers of the rows whose value in a kept column has text that is not valid UTF-8, by column"""
    filtered: FilteredRows | None = None
    """the rows that corpus.where does not let through; None without corpus.where"""


@dataclass(frozen=True)
class SourceBatch:
    """Rows of a file, separated into good, bad and filtered ones."""

    good: pa.Table
    """id, text (normalized), kept columns, and row number"""
    bad: pa.Table
    """a quarantine table, sorted by row number"""
    filtered: pa.Table
    """`FILTERED`: rows that corpus.where, corpus.exclude or an erasure leave out"""
    position: int = 0
    """input bytes read so far"""
    surrogates: tuple[int, ...] = ()
    """numbers of the good rows whose text had lone surrogates"""
    nulled: tuple[int, ...] = ()
    """numbers of the good rows with a kept value that became null, once for each such value"""

    @property
    def rows(self) -> int:
        """Number of rows: good, bad and filtered."""
        return self.good.num_rows + self.bad.num_rows + self.filtered.num_rows

    def head(self, count: int) -> "SourceBatch":
        """Return the first `count` rows by row number."""
        if count >= self.rows:
            return self
        parts = (self.good, self.bad, self.filtered)
        end = int(np.sort(np.concatenate([part["row"].to_numpy() for part in parts]))[count])
        good, bad, filtered = (part.filter(pc.less(part["row"], end)) for part in parts)
        return SourceBatch(
            good=good,
            bad=bad,
            filtered=filtered,
            position=self.position,
            surrogates=tuple(row for row in self.surrogates if row < end),
            nulled=tuple(row for row in self.nulled if row < end),
        )


def sift(
    raw: RawBatch,
    file: SourceFile,
    excluded: frozenset[str] = frozenset(),
    left_out: LeftOutIds | None = None,
) -> SourceBatch:
    """Normalize the texts of a batch and reject rows without an id or a text.

    Rows that an erasure, corpus.where or corpus.exclude leave out are not checked. A rejected row has the
    first reason that applies: filter_failed, invalid_utf8, null_id, empty.

    Args:
        excluded: ids of the rows that corpus.exclude leaves out.
        left_out: ids of the rows that erasures leave out for good.
    """
    raw, erased = _exclude(raw, left_out or frozenset(), "erased")
    raw, named = _exclude(raw, excluded, "exclude")
    raw, others = _filter(raw)
    filtered = pa.concat_tables([erased, named, others])
    table = raw.rows.combine_chunks()
    checked = ["id", "text"] if is_text(table["id"].type) else ["text"]
    valid_by_column = {name: valid_utf8(one_chunk(table[name])) for name in checked} | {
        name: ~np.isin(table["row"].to_numpy(), rows) for name, rows in raw.not_utf8.items() if len(rows)
    }
    is_valid, text = np.logical_and.reduce(list(valid_by_column.values())), one_chunk(table["text"])
    if not is_valid.all():  # null instead of bytes that cannot be cast to a string
        text = pc.if_else(pa.array(is_valid), text.cast(pa.large_binary()), None)
    texts = normalize(text)
    has_id = table["id"].is_valid().to_numpy()
    has_text = pc.fill_null(pc.greater(pc.binary_length(texts), 0), False).to_numpy(zero_copy_only=False)
    good = is_valid & has_id & has_text
    rejected = raw.rejected
    if not good.all():
        valid_by_column = {name: valid[~good] for name, valid in valid_by_column.items()}
        rejected = (*rejected, *_reasons(table.filter(pa.array(~good)), valid_by_column))
    table = table.set_column(table.schema.get_field_index("text"), "text", texts).filter(pa.array(good))
    good_rows = set(table["row"].to_pylist()) if raw.surrogates or raw.nulled else set()
    sifted = SourceBatch(
        good=table,
        bad=quarantine(file.name, rejected),
        filtered=filtered,
        position=raw.position,
        surrogates=tuple(row for row in raw.surrogates if row in good_rows),
        nulled=tuple(row for row in raw.nulled if row in good_rows),
    )
    if sifted.rows != raw.rows.num_rows + len(raw.rejected) + filtered.num_rows:
        raise Defect(
            file.uri,
            f"{raw.rows.num_rows} + {len(raw.rejected)} rows, good or bad, and {filtered.num_rows} filtered",
            f"{sifted.rows}",
            "report this with the file",
        )
    return sifted


def _exclude(raw: RawBatch, ids: LeftOutIds | frozenset[str], by: str) -> tuple[RawBatch, pa.Table]:
    """Return the rows whose id is not among `ids`, and the others (`FILTERED`), rejected ones included."""
    if not ids:
        return raw, FILTERED.empty_table()
    names = _readable(raw.rows["id"])
    is_excluded = np.fromiter((name in ids for name in names), bool, len(names))
    excluded = raw.rows.filter(pa.array(is_excluded))
    rows = list(zip(_readable(excluded["id"]), excluded["row"].to_pylist(), strict=True))
    rows += [(bad.id, bad.row) for bad in raw.rejected if bad.id in ids]
    filtered = [{"id": name, "row": row, "by": by} for name, row in rows]
    numbers, kept = {row for _, row in rows}, raw.rows.filter(pa.array(~is_excluded))
    found = raw.filtered
    if found is not None:
        left_out = found.left_out[~np.isin(found.left_out, list(numbers))]
        failed = {row: reason for row, reason in found.failed.items() if row not in numbers}
        found = FilteredRows(left_out, failed)
    rejected = [bad for bad in raw.rejected if bad.row not in numbers]
    raw = replace(raw, rows=kept, rejected=rejected, filtered=found)
    return raw, pa.Table.from_pylist(filtered, FILTERED)


def _filter(raw: RawBatch) -> tuple[RawBatch, pa.Table]:
    """Return the rows that corpus.where lets through, and the rows that it leaves out (`FILTERED`).

    Rows on which it failed are among the rejected rows.
    """
    if raw.filtered is None:
        return raw, FILTERED.empty_table()
    left_out, failed = raw.filtered.left_out, raw.filtered.failed
    numbers = raw.rows["row"].to_numpy()
    is_left_out, has_failed = np.isin(numbers, left_out), np.isin(numbers, list(failed))
    numbers_left_out = set(left_out.tolist())
    rejected = [row for row in raw.rejected if row.row not in numbers_left_out]
    bad = raw.rows.filter(pa.array(has_failed))
    rejected += [
        RejectedRow(row, "filter_failed", failed[row], row_id, text)
        for row, row_id, text in zip(
            bad["row"].to_pylist(), _readable(bad["id"]), _readable(bad["text"]), strict=True
        )
    ]
    ids = raw.rows["id"].filter(pa.array(is_left_out))
    without_id = left_out[~np.isin(left_out, numbers)]  # their id or text has a wrong type
    names = [*_readable(ids), *(None for _ in without_id)]
    of_rows = np.concatenate([numbers[is_left_out], without_id])
    filtered = pa.table([names, of_rows, pa.repeat("where", len(names))], schema=FILTERED)
    rows = raw.rows.filter(pa.array(~is_left_out & ~has_failed))
    return replace(raw, rows=rows, rejected=rejected), filtered


def _reasons(bad: pa.Table, valid_by_column: dict[str, np.ndarray]) -> Iterator[RejectedRow]:
    """Yield each bad row with its reason.

    Args:
        bad: n rows.
        valid_by_column: (n,) bool for each column of strings, False for values that are not valid UTF-8.
    """
    rows = zip(bad["row"].to_pylist(), _readable(bad["id"]), _readable(bad["text"]), strict=True)
    for index, (row, row_id, text) in enumerate(rows):
        invalid = [name for name, is_valid in valid_by_column.items() if not is_valid[index]]
        if invalid:
            yield RejectedRow(row, "invalid_utf8", f"column {', '.join(invalid)}", row_id, text)
        else:
            yield RejectedRow(row, "null_id" if row_id is None else "empty", "", row_id, text)


def rechunk(tables: Iterable[pa.Table], rows: int, max_bytes: int | None = None) -> Iterator[pa.Table]:
    """Yield the same rows in tables of exactly `rows` rows, each in one chunk; the last may be shorter.

    A table is also shorter if its column `text` would exceed `max_bytes`. The result depends on the rows
    only, not on how the input divides them into tables.
    """
    pending: list[pa.Table] = []
    pending_rows = pending_bytes = 0
    for table in tables:
        while table.num_rows:
            take = min(rows - pending_rows, table.num_rows)
            if max_bytes is not None and "text" in table.column_names:
                bytes_up_to = np.cumsum(pc.binary_length(table["text"]).to_numpy())
                fitting = int(np.searchsorted(bytes_up_to, max_bytes - pending_bytes, side="right"))
                # A text over max_bytes gets its own table.
                take = min(take, fitting if pending_rows else max(fitting, 1))
                pending_bytes += int(bytes_up_to[take - 1]) if take else 0
            if take:
                pending.append(table.slice(0, take))
                pending_rows += take
            if take < table.num_rows or pending_rows == rows:
                pending_rows = pending_bytes = 0
                yield join_tables(pending)
            table = table.slice(take)
    if pending:
        yield join_tables(pending)


def _readable(column: pa.ChunkedArray) -> list[str | None]:
    """Return the values as strings, with U+FFFD for bytes that are not valid UTF-8."""
    if pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        return [None if value is None else str(value) for value in column.to_pylist()]
    encoded = column.cast(pa.large_binary()).to_pylist()
    return [None if value is None else value.decode(errors="replace") for value in encoded]
