"""What a night changes, one bucket of ids at a time: which row of an id is live, which rows keep their address, which need one, and which are dead."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store.schema import KEY, QUARANTINE
from pipeline.store.units import Changes
from pipeline.text.corpus.keys import by_text

_NO_KEY = pa.scalar(b"\0" * 16, KEY)
NOWHERE = -1
EXAMPLES = 5  # rows of each kind of change that are drawn


def line_schema(id_type: pa.DataType) -> pa.Schema:
    """A line on its way. file: place in tonight's listing, -1 for one that is gone or was read again; position: among the rows read tonight, -1 for others."""
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
class Drawn:
    """Examples of one kind of change, with the smallest text keys of all that are of the kind.

    keys (n,) uint64: ascending; before (n,) int64: addresses in the previous corpus, NOWHERE for new rows; now (n,) int64: indices into
    `Settled.lines`, later positions of rows, NOWHERE for deleted rows.
    """

    keys: np.ndarray
    before: np.ndarray
    now: np.ndarray

    @classmethod
    def of(cls, keys: np.ndarray, before: np.ndarray, now: np.ndarray) -> "Drawn":
        """The `EXAMPLES` rows with the smallest keys; `before` and `now` run parallel to `keys`."""
        chosen = np.argsort(keys, kind="stable")[:EXAMPLES]
        return cls(keys[chosen], before[chosen], now[chosen])

    def moved(self, positions: np.ndarray) -> "Drawn":
        """The same with positions[now] in place of now."""
        now = self.now.copy()
        now[now != NOWHERE] = positions[now[now != NOWHERE]]
        return Drawn(self.keys, self.before, now)

    def __add__(self, other: "Drawn") -> "Drawn":
        pairs = ((self.keys, other.keys), (self.before, other.before), (self.now, other.now))
        keys, before, now = (np.concatenate(pair) for pair in pairs)
        return Drawn.of(keys, before, now)


@dataclass(frozen=True, eq=False)
class Settled:
    """One bucket. lines: tonight's, sorted by (id, file, row), `lost` marking losers of their id, `address` final where it is not null.

    wanted: places in `lines` of live rows that need a row in a unit; dead: addresses that are live no more; winners: for each line the place of its id's first.
    examples: of new, changed and deleted rows, in this order.
    """

    lines: pa.Table
    wanted: np.ndarray
    dead: np.ndarray
    winners: np.ndarray
    changes: Changes
    examples: tuple[Drawn, Drawn, Drawn]


def settle(before: pa.Table, now: pa.Table, *, reuse: bool) -> Settled:
    """Both as `line_schema`. before: last night's lines; those of files that were not read tonight are still true. now: lines of the files read tonight.

    Of rows with one id the first by (file, row) is live, whatever was live before. A live row whose id was live with the same text and kept columns keeps
    that row's address, in whichever file it stands now. reuse=False gives every live row a new address: the comparison then only counts.
    """
    lines = pa.concat_tables([before.filter(pc.greater_equal(before["file"], 0)), now.cast(before.schema)])
    lines = lines.take(
        pc.sort_indices(lines, sort_keys=[("id", "ascending"), ("file", "ascending"), ("row", "ascending")])
    ).combine_chunks()
    first = firsts(lines["id"].combine_chunks())
    live = before.filter(before["address"].is_valid()).combine_chunks()
    winners = lines.filter(pa.array(first)).combine_chunks()
    place = pc.index_in(winners["id"].combine_chunks(), value_set=live["id"].combine_chunks())
    known = place.is_valid().to_numpy(zero_copy_only=False)
    place = pc.fill_null(place, 0).to_numpy()
    same = known & _equal(winners, live, place)
    keeps = same & reuse
    address = np.full(lines.num_rows, NOWHERE, dtype=np.int64)
    held = live["address"].to_numpy()
    address[np.flatnonzero(first)[keeps]] = held[place[keeps]]
    gone = np.ones(len(held), dtype=bool)
    gone[place[keeps]] = False
    lines = lines.set_column(
        lines.schema.get_field_index("address"), "address", pa.array(address, mask=address == NOWHERE)
    ).append_column("lost", pa.array(~first))
    changes = Changes(
        new=int((~known).sum()),
        changed=int((known & ~same).sum()),
        unchanged=int(same.sum()),
        deleted=live.num_rows - int(known.sum()),
    )
    of_each = (
        np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
        if len(first)
        else np.zeros(0, dtype=np.int64)
    )
    examples = _drawn(winners, live, place, np.flatnonzero(first), known, same)
    return Settled(
        lines, np.flatnonzero(first)[~keeps], held[gone] if reuse else held[:0], of_each, changes, examples
    )


def _drawn(
    winners: pa.Table,
    live: pa.Table,
    place: np.ndarray,
    lines: np.ndarray,
    known: np.ndarray,
    same: np.ndarray,
) -> tuple[Drawn, Drawn, Drawn]:
    """Examples of new, changed and deleted rows. lines: index of each winner among the lines."""
    keys, held = by_text(winners), live["address"].to_numpy()
    fresh, changed = np.flatnonzero(~known), np.flatnonzero(known & ~same)
    gone = np.ones(len(held), dtype=bool)
    gone[place[known]] = False
    return (
        Drawn.of(keys[fresh], np.full(len(fresh), NOWHERE), lines[fresh]),
        Drawn.of(keys[changed], held[place[changed]], lines[changed]),
        Drawn.of(by_text(live)[gone], held[gone], np.full(int(gone.sum()), NOWHERE)),
    )


def firsts(ids: pa.Array) -> np.ndarray:
    """(n,) bool: which of sorted ids differ from the one before."""
    first = np.ones(len(ids), dtype=bool)
    if len(ids) > 1:
        first[1:] = pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    return first


def _equal(winners: pa.Table, live: pa.Table, place: np.ndarray) -> np.ndarray:
    """Whether text and kept columns of each winner are those of the live row at `place`."""
    if not live.num_rows:
        return np.zeros(winners.num_rows, dtype=bool)
    there = live.select(["text_key", "carried"]).take(pa.array(place))
    equal = [
        pc.equal(pc.fill_null(winners[name], _NO_KEY), pc.fill_null(there[name], _NO_KEY))
        for name in ("text_key", "carried")
    ]
    return np.asarray(pc.and_(*equal).to_numpy())


def losers(settled: Settled) -> pa.Table:
    """The bucket's losers (id, file, row) and where the winner of each stands (winner_file, winner_row)."""
    lost = np.flatnonzero(settled.lines["lost"].to_numpy())
    mine, theirs = (
        settled.lines.select(["id", "file", "row"]).take(pa.array(places))
        for places in (lost, settled.winners[lost])
    )
    return mine.append_column("winner_file", theirs["file"]).append_column("winner_row", theirs["row"])


def set_aside(lost: pa.Table, names: pa.Array) -> pa.Table:
    """Losers as a quarantine table, in order of file and row; names: of the files in tonight's listing."""
    lost = lost.take(
        pc.sort_indices(lost, sort_keys=[("file", "ascending"), ("row", "ascending")])
    ).combine_chunks()
    where = [names.take(lost[name].combine_chunks()) for name in ("file", "winner_file")]
    detail = pc.binary_join_element_wise(
        where[1], "row", lost["winner_row"].cast(pa.string()).combine_chunks(), "has it first", " "
    )
    reason = pa.repeat(pa.scalar("duplicate_id"), lost.num_rows)
    return pa.table(
        [
            where[0],
            lost["row"],
            lost["id"].cast(pa.string()),
            reason,
            detail,
            pa.nulls(lost.num_rows, pa.string()),
        ],
        schema=QUARANTINE,
    )
