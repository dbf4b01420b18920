"""Resolve the ids of one bucket: find the live row of each id, reuse its address, and count the changes."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store.records.units import Changes
from pipeline.store.rows.arrays import one_chunk
from pipeline.store.rows.schema import KEY, QUARANTINE
from pipeline.text.key_tables.keys import line_identities, text_hashes
from pipeline.text.key_tables.line_numbers import are_chunks, are_first, parents_of, rows_of_lines

_NO_KEY = pa.scalar(b"\0" * 16, KEY)
ABSENT = -1  # marks a missing file index, position or address
EXAMPLES = 5  # rows that the report shows of each kind of change


def line_schema(id_type: pa.DataType) -> pa.Schema:
    """Return the schema of lines. While ids are resolved, a line stands for a good input row, or for a chunk.

    Its column `carried` is a digest of the kept columns. `file` is the file's index in tonight's listing,
    ABSENT if the file is gone or was read again. `position` is the row's index among the rows of its bucket
    that were read tonight, ABSENT for other rows.
    """
    return pa.schema(
        [
            pa.field("id", id_type),
            pa.field("text_key", KEY),
            pa.field("carried", KEY),
            pa.field("file", pa.int32()),
            pa.field("row", pa.int64()),
            pa.field("address", pa.int64()),
            pa.field("position", pa.int64()),
        ]
    )


def resolved_schema(id_type: pa.DataType) -> pa.Schema:
    """Return the schema of `ResolvedIds.lines`."""
    return line_schema(id_type).append(pa.field("duplicate", pa.bool_()))


class LineChange(NamedTuple):
    """A new, changed or deleted row: one element of each argument of `choose_examples`."""

    key: int
    before: int
    now: int


def choose_examples(keys: np.ndarray, before: np.ndarray, now: np.ndarray) -> list[LineChange]:
    """Choose the EXAMPLES changes with the smallest keys.

    Args:
        keys: (n,) uint64: `text_hashes` of the rows.
        before: (n,) int64: addresses in the previous corpus, ABSENT for new rows.
        now: (n,) int64: indices into `ResolvedIds.lines`, ABSENT for deleted rows.
    """
    chosen = np.argsort(keys, kind="stable")[:EXAMPLES]
    columns = (values[chosen].tolist() for values in (keys, before, now))
    return [LineChange(*change) for change in zip(*columns, strict=True)]


def duplicate_schema(id_type: pa.DataType) -> pa.Schema:
    """Return the schema of `ResolvedIds.duplicates`."""
    fields = [line_schema(id_type).field(name) for name in ("id", "file", "row")]
    return pa.schema([*fields, pa.field("winner_file", pa.int32()), pa.field("winner_row", pa.int64())])


@dataclass(frozen=True, eq=False)
class ResolvedIds:
    """The lines of one bucket with their ids resolved."""

    lines: pa.Table
    """sorted by (id, file, row); the column `duplicate` marks rows whose id an earlier row has, and `address`
    is set for rows that keep theirs
    """
    to_write: np.ndarray
    """indices in `lines` of live rows that have to be written to a new unit"""
    dead: np.ndarray
    """addresses that are no longer live"""
    winners: np.ndarray
    """for each line, the index of the first line with the same id, whose row is live; if the lines are
    chunks, valid only for the first chunk of a row
    """
    changes: Changes
    deleted: pa.Table
    """id and row of the input rows that are no longer live; the first chunk of a row that was cut"""
    examples: tuple[list[LineChange], ...]
    """`choose_examples` of the new, the changed and the deleted rows"""

    @property
    def live_rows(self) -> int:
        """Number of input rows that are live. A row that is cut into chunks counts once."""
        is_live = ~self.lines["duplicate"].to_numpy()
        return int(np.count_nonzero(is_live & are_first(self.lines["row"].to_numpy())))

    def duplicates(self) -> pa.Table:
        """Return the duplicate rows (id, file, row), each with the file and row that won its id.

        A row that is cut into chunks is one duplicate.
        """
        lines = self.lines["row"].to_numpy()
        indices = np.flatnonzero(self.lines["duplicate"].to_numpy() & are_first(lines))
        ids = parents_of(self.lines["id"], lines)
        rows = pa.table({"id": ids, "file": self.lines["file"], "row": rows_of_lines(lines)})
        duplicates, winners = rows.take(pa.array(indices)), rows.take(pa.array(self.winners[indices]))
        duplicates = duplicates.append_column("winner_file", winners["file"])
        return duplicates.append_column("winner_row", winners["row"])


class _Comparison:
    """Comparison of tonight's winners (the first row of each id) with last night's live rows.

    Attributes:
        winners: tonight's winners.
        line_indices: (n,) index of each winner among the lines.
        live: last night's live rows.
        live_indices: (n,) index of the live row with the winner's id; 0 if there is none.
        is_known: (n,) bool, True if there is a live row with the winner's id.
        is_same: (n,) bool, True if the text and the kept columns of that row are equal to the winner's.
        is_deleted: (m,) bool, True for a live row whose id no winner has.
    """

    def __init__(self, winners: pa.Table, line_indices: np.ndarray, live: pa.Table) -> None:
        self.winners, self.line_indices, self.live = winners, line_indices, live
        indices = pc.index_in(one_chunk(winners["id"]), value_set=one_chunk(live["id"]))
        self.is_known = indices.is_valid().to_numpy(zero_copy_only=False)
        self.live_indices = pc.fill_null(indices, 0).to_numpy()
        self.is_same = self.is_known & _equal(winners, live, self.live_indices)
        self.is_deleted = np.ones(live.num_rows, dtype=bool)
        self.is_deleted[self.live_indices[self.is_known]] = False

    def changes(self) -> Changes:
        """Count new, changed, unchanged and deleted rows."""
        known, same = int(self.is_known.sum()), int(self.is_same.sum())
        new, deleted = len(self.is_known) - known, self.live.num_rows - known
        return Changes(new=new, changed=known - same, unchanged=same, deleted=deleted)

    def deleted(self) -> pa.Table:
        """Return id and row of deleted rows; of a row that was cut into chunks, of its first chunk."""
        is_first = are_first(self.live["row"].to_numpy())
        return self.live.select(["id", "row"]).filter(pa.array(self.is_deleted & is_first))

    def examples(self) -> tuple[list[LineChange], ...]:
        """Return examples of new, changed and deleted rows."""
        keys, addresses = text_hashes(self.winners), self.live["address"].to_numpy()
        new, changed = np.flatnonzero(~self.is_known), np.flatnonzero(self.is_known & ~self.is_same)
        before = addresses[self.is_deleted]
        return (
            choose_examples(keys[new], np.full(len(new), ABSENT), self.line_indices[new]),
            choose_examples(keys[changed], addresses[self.live_indices[changed]], self.line_indices[changed]),
            choose_examples(text_hashes(self.live)[self.is_deleted], before, np.full(len(before), ABSENT)),
        )


def resolve_ids(before: pa.Table, now: pa.Table, *, reuse: bool) -> ResolvedIds:
    """Resolve the ids of one bucket.

    If several rows share an id, the first by (file, row) wins, with all of its chunks, regardless of the
    previous night. If the row that was live under this id had the same text and kept columns, the winner
    keeps its address, even if the row moved to another file.

    Args:
        before: last night's lines (`line_schema`); lines whose `file` is not ABSENT are still valid.
        now: lines of the files read tonight.
        reuse: False gives every live row a new address; changes are still counted.
    """
    lines = pa.concat_tables([before.filter(pc.greater_equal(before["file"], 0)), now.cast(before.schema)])
    lines = lines.sort_by([("id", "ascending"), ("file", "ascending"), ("row", "ascending")]).combine_chunks()
    ids = one_chunk(lines["id"])
    differs = pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    is_winner = np.append(True, differs)[: len(ids)]  # the slice handles a table without rows
    if are_chunks(numbers := lines["row"].to_numpy()):
        rows = line_identities(lines["file"].to_numpy(), rows_of_lines(numbers))
        is_winner = np.isin(rows, rows[is_winner & are_first(numbers)])
    live = before.filter(before["address"].is_valid()).combine_chunks()
    winners = lines.filter(pa.array(is_winner)).combine_chunks()
    comparison = _Comparison(winners, np.flatnonzero(is_winner), live)

    keeps = comparison.is_same & reuse
    live_addresses = live["address"].to_numpy()
    addresses = np.full(lines.num_rows, ABSENT, dtype=np.int64)
    addresses[comparison.line_indices[keeps]] = live_addresses[comparison.live_indices[keeps]]
    # Without reuse the new corpus has no unit of the previous one, so no old address has to be marked as
    # dead.
    is_dead = np.full(len(live_addresses), reuse)
    is_dead[comparison.live_indices[keeps]] = False
    address_column = pa.array(addresses, mask=addresses == ABSENT)
    lines = lines.set_column(lines.schema.get_field_index("address"), "address", address_column)
    return ResolvedIds(
        lines=lines.append_column("duplicate", pa.array(~is_winner)),
        to_write=comparison.line_indices[~keeps],
        dead=live_addresses[is_dead],
        winners=np.maximum.accumulate(np.where(is_winner, np.arange(len(is_winner)), 0)),
        changes=comparison.changes(),
        deleted=comparison.deleted(),
        examples=comparison.examples(),
    )


def _equal(winners: pa.Table, live: pa.Table, index: np.ndarray) -> np.ndarray:
    """Return (n,) bool: True if text and kept columns of winner i equal those of live row `index[i]`."""
    if not live.num_rows:
        return np.zeros(winners.num_rows, dtype=bool)
    other = live.select(["text_key", "carried"]).take(pa.array(index))
    equal = (
        pc.equal(pc.fill_null(winners[name], _NO_KEY), pc.fill_null(other[name], _NO_KEY))
        for name in other.column_names
    )
    return np.asarray(pc.and_(*equal).to_numpy())


def quarantine_duplicates(duplicates: pa.Table, names: pa.Array) -> pa.Table:
    """Return duplicate rows as a quarantine table, sorted by file and row.

    Args:
        duplicates: table as `ResolvedIds.duplicates` returns it.
        names: names of the files in tonight's listing.
    """
    rows = duplicates.sort_by([("file", "ascending"), ("row", "ascending")]).combine_chunks()
    file, winner = (names.take(rows[name].combine_chunks()) for name in ("file", "winner_file"))
    winner_row = rows["winner_row"].cast(pa.string()).combine_chunks()
    return pa.table(
        {
            "file": file,
            "row": rows["row"],
            "id": rows["id"].cast(pa.string()),
            "reason": pa.repeat(pa.scalar("duplicate_id"), rows.num_rows),
            "detail": pc.binary_join_element_wise(winner, "row", winner_row, "has it first", " "),
            "excerpt": pa.nulls(rows.num_rows, pa.string()),
        },
        schema=QUARANTINE,
    )
