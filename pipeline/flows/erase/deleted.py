"""Erase rows that were deleted from the corpus some days ago: a bounded part of every night.

The root has a table of the addresses of dead rows, each with the day since which it is known to be dead. It
has no ids. An id is erased when all its rows are dead and one of them was for long enough.

This is a module of its own, because only nights with release.erase_after_days load it.
"""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.flows.erase.choose import EraseRequest
from pipeline.flows.erase.erase import erase
from pipeline.flows.erase.find import ErasedIds, is_filled
from pipeline.log import Stages, announce, counted
from pipeline.store.files.base import Store
from pipeline.store.files.check_store import clock
from pipeline.store.records.dead import Dead
from pipeline.store.records.units import Corpus
from pipeline.store.releases.commits import ERASURES
from pipeline.store.releases.release import Releases
from pipeline.store.rows.address import ordinal_of, row_of, to_addresses
from pipeline.store.rows.arrays import one_chunk
from pipeline.text.key_tables.buckets import read_key_bucket
from pipeline.text.key_tables.line_numbers import parents_of

DEAD_SINCE = f"{ERASURES}/dead-since.parquet"
"""path of the table of dead rows"""
_SETTLED = -1  # the row was erased, or another version of it was in the corpus when its time came
_DAY_S = 86_400
_MAX_UNITS = 64  # corpus units whose rows a night erases
_MAX_ROWS = 100_000
_SCHEMA = pa.schema([pa.field("address", pa.int64()), pa.field("day", pa.int32())])


@dataclass(frozen=True, eq=False)
class DeadSince:
    """The dead rows of a root: since when they are known to be dead."""

    addresses: np.ndarray
    """(n,) int64, ascending"""
    days: np.ndarray
    """(n,) int32, days since 1970; _SETTLED for rows that need no more attention"""

    @classmethod
    def load(cls, store: Store) -> "DeadSince":
        """Load the table; an empty one if there is none. Raises DataError if it is damaged."""
        try:
            table = pq.read_table(pa.BufferReader(store.read(DEAD_SINCE)))
        except FileNotFoundError:
            table = _SCHEMA.empty_table()
        return cls(table["address"].to_numpy(), table["day"].to_numpy())

    def store_in(self, store: Store) -> None:
        """Store the table in the place of the one before."""
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table([self.addresses, self.days], schema=_SCHEMA), sink, compression="zstd")
        store.write(DEAD_SINCE, sink.getvalue().to_pybytes())

    def now(self, dead: np.ndarray, day: int) -> "DeadSince":
        """Return the table with these dead rows (n,), new ones since `day`; the units of others are gone."""
        known = np.isin(dead, self.addresses)
        days = np.full(len(dead), day, np.int32)
        days[known] = self.days[np.searchsorted(self.addresses, dead[known])]
        return DeadSince(dead, days)

    def due(self, day: int) -> np.ndarray:
        """Return the addresses (n,) of rows that are dead since `day` or before, of some of the units."""
        due = self.addresses[(self.days >= 0) & (self.days <= day)][:_MAX_ROWS]
        units = np.unique(ordinal_of(due))[:_MAX_UNITS]
        return due[np.isin(ordinal_of(due), units)]

    def since(self, addresses: np.ndarray, day: int) -> "DeadSince":
        """Return the table with another day for some rows (n,)."""
        return DeadSince(self.addresses, np.where(np.isin(self.addresses, addresses), day, self.days))


def erase_deleted(
    releases: Releases, after_days: int, protected: frozenset[str], stages: Stages
) -> dict[str, int]:
    """Erase the rows that are dead for `after_days` days and whose id is not in the corpus any more.

    Days count from the release that lacks a row; of rows that were dead before nights began to count, and
    after a rollback, from the release that is current then. A call erases the rows of a bounded number of
    units.

    Args:
        protected: ids that are not erased, and looked at again after as many days.

    Returns:
        Numbers of ids that were erased, and that are protected; empty without a release.

    Raises:
        TransientError: a command or a service uses the root.
        DataError: a file of a release is missing or damaged.
    """
    store, current = releases.store, releases.current()
    if current is None:
        return {}
    corpora = [Corpus.read(store, releases.get(number).corpus) for number in releases.numbers()]
    corpus = Corpus.read(store, current.corpus)
    table = DeadSince.load(store).now(_dead_rows(store, corpus, corpora), _day_of(releases, current.release))
    today = int(clock(store) // _DAY_S)
    due = table.due(today - after_days)
    ids = _ids_at(store, [*corpora, corpus], due)
    wanted = set(ids.values()) - _ids_in_corpus(store, corpus, frozenset(ids.values()))
    held = wanted & protected
    waiting = {address for address, name in ids.items() if name in held}
    settled = set(due.tolist()) - {address for address, name in ids.items() if name in wanted}
    table = table.since(np.array([*waiting], np.int64), today).since(np.array([*settled], np.int64), _SETTLED)
    table.store_in(store)
    if held:
        announce(f"{counted(len(held), 'id')} not erased, because release.protected names them")
    request = EraseRequest(
        ids=frozenset(wanted - held), reason=f"release.erase_after_days={after_days}", protected=protected
    )
    receipt = erase(releases, request, stages) if request.ids else None
    erased = receipt.ids_found if receipt else 0
    if erased:
        announce(f"{counted(erased, 'id')} erased, which the corpus has not had for {after_days} days")
    return {"erased": erased, "protected": len(held)}


def _day_of(releases: Releases, number: int) -> int:
    """Return the day, since 1970, on which the current release was published, or rolled back to."""
    commits = [each for each in releases.history() if each.kind in ("publish", "rollback")]
    last = max((each for each in commits if each.release == number), key=lambda each: each.commit)
    return int(datetime.datetime.fromisoformat(last.committed_at).timestamp() // _DAY_S)


def _dead_rows(store: Store, corpus: Corpus, corpora: Sequence[Corpus]) -> np.ndarray:
    """Return the addresses (n,), ascending, of the rows of all corpora that are not live in `corpus`."""
    own = {unit.ordinal for unit in corpus.units}
    others = {unit.ordinal: unit.rows for each in corpora for unit in each.units if unit.ordinal not in own}
    rows = [to_addresses(ordinal, np.arange(count)) for ordinal, count in others.items()]
    return np.unique(np.concatenate([Dead.load(store, corpus.dead).addresses, *rows]))


def _ids_at(store: Store, corpora: Sequence[Corpus], addresses: np.ndarray) -> dict[int, str]:
    """Return the ids at addresses, of documents if rows are chunks; none for rows that were erased."""
    units = {unit.ordinal: (unit, each.is_chunked) for each in corpora for unit in each.units}
    found = dict[int, str]()
    for ordinal in np.unique(ordinal_of(addresses)).tolist():
        unit, is_chunked = units[ordinal]
        column = "parent" if is_chunked else "id"
        rows = addresses[ordinal_of(addresses) == ordinal]
        table = pq.read_table(unit.file.open(store), columns=[column, "row"]).take(pa.array(row_of(rows)))
        filled = is_filled(table)
        names = table[column].cast(pa.string()).filter(pa.array(filled)).to_pylist()
        found |= dict(zip(rows[filled].tolist(), names, strict=True))
    return found


def _ids_in_corpus(store: Store, corpus: Corpus, ids: frozenset[str]) -> set[str]:
    """Return those of the ids that a row of the corpus has, a quarantined one included."""
    wanted, found = pa.array(sorted(ids), pa.string()), set[str]()
    for number in sorted(ErasedIds(ids).buckets(len(corpus.keys))):
        lines = read_key_bucket(store, corpus.keys, number, len(corpus.keys), ["id", "row"])
        if lines is not None and lines.num_rows:
            names = one_chunk(parents_of(lines["id"], lines["row"].to_numpy())).cast(pa.string())
            found.update(names.filter(pc.is_in(names, value_set=wanted)).to_pylist())
    if corpus.quarantine is not None:
        names = pq.read_table(corpus.quarantine.open(store), columns=["id"])["id"]
        found.update(names.filter(pc.is_in(names, value_set=wanted)).to_pylist())
    return found
