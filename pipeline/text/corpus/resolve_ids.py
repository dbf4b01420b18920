"""Resolve the ids of one bucket: which row of an id is live, which keeps its address, and what changed."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store.arrays import one_chunk
from pipeline.store.schema import KEY, QUARANTINE
from pipeline.store.units import Changes
from pipeline.text.corpus.keys import text_hashes

_NO_KEY = pa.scalar(b"\0" * 16, KEY)
ABSENT = -1  # in place of a file, a position or an address
EXAMPLES = 5  # rows of each kind of change that are kept for the report


def line_schema(id_type: pa.DataType) -> pa.Schema:
    """Schema of lines: one for each row of the input, before its address is known.

    The column file is the index in tonight's listing, ABSENT if the file is gone or was read again; position
    is the index among the rows read tonight, ABSENT for other rows.
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


@dataclass(frozen=True, eq=False)
class ChangeExamples:
    """Examples of one kind of change: the rows with the smallest text keys."""

    keys: np.ndarray
    """(n,) uint64, ascending"""
    before: np.ndarray
    """(n,) int64: addresses in the previous corpus, ABSENT for new rows"""
    now: np.ndarray
    """(n,) int64: indices into `ResolvedBucket.lines`, later positions; ABSENT for deleted rows"""

    @classmethod
    def of(cls, keys: np.ndarray, before: np.ndarray, now: np.ndarray) -> "ChangeExamples":
        """Choose the `EXAMPLES` rows with the smallest keys. All arrays are parallel."""
        chosen = np.argsort(keys, kind="stable")[:EXAMPLES]
        return cls(keys[chosen], before[chosen], now[chosen])

    def with_positions(self, positions: np.ndarray) -> "ChangeExamples":
        """Replace every index in `now` by the position at that index."""
        now = self.now.copy()
        now[now != ABSENT] = positions[now[now != ABSENT]]
        return ChangeExamples(self.keys, self.before, now)

    def __add__(self, other: "ChangeExamples") -> "ChangeExamples":
        return ChangeExamples.of(
            np.concatenate([self.keys, other.keys]),
            np.concatenate([self.before, other.before]),
            np.concatenate([self.now, other.now]),
        )


@dataclass(frozen=True, eq=False)
class ResolvedBucket:
    """The lines of one bucket with their ids resolved."""

    lines: pa.Table
    """sorted by (id, file, row); the column duplicate marks rows that lost their id to an earlier row; an
    address that is not null is final
    """
    wanted: np.ndarray
    """indices in `lines` of live rows that need a row in a unit"""
    dead: np.ndarray
    """addresses that are no longer live"""
    winners: np.ndarray
    """for each line, the index of the first line with its id"""
    changes: Changes
    examples: tuple[ChangeExamples, ChangeExamples, ChangeExamples]
    """examples of new, changed and deleted rows"""

    def duplicates(self) -> pa.Table:
        """Rows that lost their id (id, file, row), and the row that has it (winner_file, winner_row)."""
        lost = np.flatnonzero(self.lines["duplicate"].to_numpy())
        rows = self.lines.select(["id", "file", "row"])
        own, winner = rows.take(pa.array(lost)), rows.take(pa.array(self.winners[lost]))
        return own.append_column("winner_file", winner["file"]).append_column("winner_row", winner["row"])


class _Comparison:
    """The winners of tonight's ids beside last night's live rows.

    Attributes:
        winners: tonight's winners.
        lines: index of each winner among the lines.
        live: last night's live rows.
        index: index of the live row with each winner's id, 0 if there is none.
        known: whether there is a live row with the winner's id.
        same: whether that row's text and kept columns are equal too.
    """

    def __init__(self, winners: pa.Table, lines: np.ndarray, live: pa.Table) -> None:
        self.winners, self.lines, self.live = winners, lines, live
        found = pc.index_in(one_chunk(winners["id"]), value_set=one_chunk(live["id"]))
        self.known = found.is_valid().to_numpy(zero_copy_only=False)
        self.index = pc.fill_null(found, 0).to_numpy()
        self.same = self.known & _equal(winners, live, self.index)

    def changes(self) -> Changes:
        known, same = int(self.known.sum()), int(self.same.sum())
        new, deleted = len(self.known) - known, self.live.num_rows - known
        return Changes(new=new, changed=known - same, unchanged=same, deleted=deleted)

    def examples(self) -> tuple[ChangeExamples, ChangeExamples, ChangeExamples]:
        """Examples of new, changed and deleted rows."""
        keys, addresses = text_hashes(self.winners), self.live["address"].to_numpy()
        new, changed = np.flatnonzero(~self.known), np.flatnonzero(self.known & ~self.same)
        deleted = np.ones(len(addresses), dtype=bool)
        deleted[self.index[self.known]] = False
        before = addresses[deleted]
        return (
            ChangeExamples.of(keys[new], np.full(len(new), ABSENT), self.lines[new]),
            ChangeExamples.of(keys[changed], addresses[self.index[changed]], self.lines[changed]),
            ChangeExamples.of(text_hashes(self.live)[deleted], before, np.full(len(before), ABSENT)),
        )


def resolve_bucket(before: pa.Table, now: pa.Table, *, reuse: bool) -> ResolvedBucket:
    """Resolve the ids of one bucket.

    If several rows share an id, the first by (file, row) wins, regardless of the previous night. A winner
    whose id was live with the same text and kept columns keeps that row's address, even if it moved to
    another file.

    Args:
        before: last night's lines (`line_schema`); the lines of files that were not read tonight are still
            valid.
        now: lines of the files read tonight.
        reuse: False gives every live row a new address; the comparison then only counts the changes.
    """
    lines = pa.concat_tables([before.filter(pc.greater_equal(before["file"], 0)), now.cast(before.schema)])
    lines = lines.sort_by([("id", "ascending"), ("file", "ascending"), ("row", "ascending")]).combine_chunks()
    ids = one_chunk(lines["id"])
    first = np.append(True, pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False))[: len(ids)]
    live = before.filter(before["address"].is_valid()).combine_chunks()
    compared = _Comparison(lines.filter(pa.array(first)).combine_chunks(), np.flatnonzero(first), live)

    keeps = compared.same & reuse
    held = live["address"].to_numpy()
    address = np.full(lines.num_rows, ABSENT, dtype=np.int64)
    address[compared.lines[keeps]] = held[compared.index[keeps]]
    dead = np.full(len(held), reuse)
    dead[compared.index[keeps]] = False
    addresses = pa.array(address, mask=address == ABSENT)
    lines = lines.set_column(lines.schema.get_field_index("address"), "address", addresses)
    return ResolvedBucket(
        lines.append_column("duplicate", pa.array(~first)),
        compared.lines[~keeps],
        held[dead],
        np.maximum.accumulate(np.where(first, np.arange(len(first)), 0)),
        compared.changes(),
        compared.examples(),
    )


def _equal(winners: pa.Table, live: pa.Table, index: np.ndarray) -> np.ndarray:
    """Return whether text and kept columns of each winner equal those of the live row at `index`."""
    if not live.num_rows:
        return np.zeros(winners.num_rows, dtype=bool)
    other = live.select(["text_key", "carried"]).take(pa.array(index))
    equal = (
        pc.equal(pc.fill_null(winners[name], _NO_KEY), pc.fill_null(other[name], _NO_KEY))
        for name in other.column_names
    )
    return np.asarray(pc.and_(*equal).to_numpy())


def quarantine_duplicates(duplicates: pa.Table, names: pa.Array) -> pa.Table:
    """Duplicate rows as a quarantine table, sorted by file and row.

    Args:
        duplicates: rows of `ResolvedBucket.duplicates`.
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
