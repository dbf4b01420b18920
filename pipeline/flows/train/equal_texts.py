"""Find the equal texts among training pairs: a positive of an equal anchor cannot be an anchor's negative.

The keys of all texts are split once by hash, and compared only within each partition. So neither a worker's
memory nor the bytes read per pair grow with the number of pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.flows.context import FlowContext, map_in_order
from pipeline.flows.workers.tasks import PlainTask, Pool
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.dead import Dead
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.units import CorpusUnit
from pipeline.store.rows.address import to_addresses
from pipeline.store.rows.arrays import one_chunk
from pipeline.store.rows.schema import KEY
from pipeline.text.key_tables.keys import text_hashes
from pipeline.text.key_tables.partitions import partition_of, read_from_all, store_partitions

_PAIRS_IN_MEMORY = 1 << 22  # their keys take about 300 MB
KNOWN_SCHEMA = pa.schema(
    [pa.field("anchor", KEY, nullable=False), pa.field("address", pa.int64(), nullable=False)]
)
_POSITIVES = pa.schema([("key", KEY), ("address", pa.int64()), ("anchor", KEY)])
_ANCHORS = pa.schema([("anchor", KEY), ("unit", pa.int64())])
_REPEATS = pa.schema([("address", pa.int64())])


class EqualTexts(Stored):
    """Equal texts among training pairs."""

    repeats: FileRef | None
    """addresses of positives that equal an earlier positive; None if there are none"""
    known: tuple[FileRef, ...]
    """files of `KNOWN_SCHEMA`: the key of an anchor, and the address of a text that cannot be its negative.
    These texts are all positives of equal anchors, and the anchor's own text. Partition n of each file is for
    the anchors of unit n"""


def find_equal_texts(
    context: FlowContext, units: Sequence[tuple[CorpusUnit, CorpusUnit]], folder: str
) -> EqualTexts:
    """Find the equal texts among units of (anchors, positives).

    Args:
        folder: folder of the files, which the caller removes when it no longer needs them.
    """
    wanted = -(-sum(positives.rows for _, positives in units) // _PAIRS_IN_MEMORY)
    division = _Division(context.store, folder, 1 << max(0, wanted - 1).bit_length(), len(units))
    numbered = [
        _Pairs(number=number, anchors=anchors, positives=positives)
        for number, (anchors, positives) in enumerate(units)
    ]
    keys = map_in_order(context, DivideKeys(division), numbered)
    anchors, parts = tuple(each.anchors for each in keys), range(division.parts)
    equal = map_in_order(context, FindEqual(division, tuple(each.positives for each in keys), anchors), parts)
    known = map_in_order(context, DivideKnown(division, tuple(each.known for each in equal), anchors), parts)
    repeats = context.workers.run(JoinRepeats(context.store), tuple(each.repeats for each in equal), Pool(1))
    return EqualTexts(repeats=repeats, known=known)


def remove_equal_texts(store: Store, folder: str) -> None:
    """Remove the files that `find_equal_texts` left in the folder."""
    in_threads(store.delete, [entry.path for entry in store.list(folder)])


@dataclass(frozen=True)
class _Division:
    """The division of the work."""

    store: Store
    folder: str
    """folder of the files"""
    parts: int
    """number of parts of the keys, a power of two"""
    units: int
    """number of units"""

    def part_of(self, keys: pa.Array) -> np.ndarray:
        """Return the part (n,) of each key."""
        return partition_of(text_hashes(pa.table({"text_key": keys})), self.parts)

    def store_by_part(self, table: pa.Table, column: str, name: str) -> FileRef:
        """Store a table in partitions by the part of the keys in one column."""
        parts = self.part_of(one_chunk(table[column]))
        return store_partitions(self.store, table, parts, self.parts, f"{self.folder}/{name}.arrow")


class _Pairs(Stored):
    """A unit of anchors and one of positives, row for row."""

    number: int
    anchors: CorpusUnit
    positives: CorpusUnit


class _Keys(Stored):
    """The keys of a unit of pairs, in partitions by their part: positives, and distinct anchors."""

    positives: FileRef
    anchors: FileRef


class _Equal(Stored):
    """The equal texts of one part of the keys; `known` is in partitions by the part of the anchor."""

    repeats: FileRef
    known: FileRef


@dataclass(frozen=True)
class DivideKeys(PlainTask[_Pairs, _Keys]):
    """Divide the keys of the texts of a unit."""

    division: _Division

    def work(self, pairs: _Pairs) -> _Keys:
        keys, anchors = (_keys(self.division.store, unit) for unit in (pairs.positives, pairs.anchors))
        addresses = pa.array(to_addresses(pairs.positives.ordinal, np.arange(len(keys))), pa.int64())
        distinct = pc.unique(anchors)
        numbers = pa.array(np.full(len(distinct), pairs.number), pa.int64())
        positives = pa.table([keys, addresses, anchors], schema=_POSITIVES)
        of_unit = pa.table([distinct, numbers], schema=_ANCHORS)
        return _Keys(
            positives=self.division.store_by_part(positives, "key", f"positives-{pairs.number:05d}"),
            anchors=self.division.store_by_part(of_unit, "anchor", f"anchors-{pairs.number:05d}"),
        )


@dataclass(frozen=True)
class FindEqual(PlainTask[int, _Equal]):
    """Find the equal texts of one part of the keys."""

    division: _Division
    positives: tuple[FileRef, ...]
    anchors: tuple[FileRef, ...]

    def work(self, part: int) -> _Equal:
        division, stop = self.division, part + 1
        positives = read_from_all(division.store, self.positives, _POSITIVES, part, stop).combine_chunks()
        anchors = read_from_all(division.store, self.anchors, _ANCHORS, part, stop)
        repeats, known = _find_equal(positives, pc.unique(one_chunk(anchors["anchor"])))
        path = f"{division.folder}/repeats-{part:05d}.arrow"
        rows, whole = pa.table([repeats], schema=_REPEATS), np.zeros(len(repeats), np.int64)
        return _Equal(
            repeats=store_partitions(division.store, rows, whole, 1, path),
            known=division.store_by_part(known, "anchor", f"known-{part:05d}"),
        )


@dataclass(frozen=True)
class DivideKnown(PlainTask[int, FileRef]):
    """Divide the known texts for one part of the anchors among the units that have these anchors."""

    division: _Division
    known: tuple[FileRef, ...]
    anchors: tuple[FileRef, ...]

    def work(self, part: int) -> FileRef:
        division, stop = self.division, part + 1
        known = read_from_all(division.store, self.known, KNOWN_SCHEMA, part, stop)
        anchors = read_from_all(division.store, self.anchors, _ANCHORS, part, stop)
        of_units = anchors.join(known, "anchor", join_type="inner", use_threads=False)
        of_units = of_units.sort_by(
            [("unit", "ascending"), ("anchor", "ascending"), ("address", "ascending")]
        )
        rows = of_units.select(KNOWN_SCHEMA.names).cast(KNOWN_SCHEMA)
        path = f"{division.folder}/units-{part:05d}.arrow"
        return store_partitions(division.store, rows, of_units["unit"].to_numpy(), division.units, path)


@dataclass(frozen=True)
class JoinRepeats(PlainTask[tuple[FileRef, ...], FileRef | None]):
    """Store the addresses of all repeated positives, eight bytes each, as dead rows."""

    store: Store

    def work(self, parts: tuple[FileRef, ...]) -> FileRef | None:
        addresses = read_from_all(self.store, parts, _REPEATS)["address"].to_numpy()
        return Dead(np.sort(addresses)).store_in(self.store, "pairs/repeats")


def _find_equal(positives: pa.Table, anchors: pa.Array) -> tuple[np.ndarray, pa.Table]:
    """Find the equal texts of one part.

    Equal positives are represented by the first of them, the one with the smallest address.

    Args:
        positives: key, address and key of the anchor of each positive.
        anchors: distinct keys of anchors.

    Returns:
        Addresses of positives that equal an earlier positive, and the part's rows of `EqualTexts.known`.
    """
    firsts = positives.group_by("key", use_threads=False).aggregate([("address", "min")])
    keys, addresses = one_chunk(firsts["key"]), firsts["address_min"]
    first_address = addresses.take(pc.index_in(one_chunk(positives["key"]), value_set=keys))
    positives_of_anchors = pa.table([positives["anchor"], first_address], names=["anchor", "address"])
    # The index in `keys` of each anchor whose text is also a positive; null for other anchors.
    index_of_anchor = pc.index_in(anchors, value_set=keys)
    anchors_themselves = pa.table(
        [anchors.filter(pc.is_valid(index_of_anchor)), addresses.take(pc.drop_null(index_of_anchor))],
        names=["anchor", "address"],
    )
    pairs = pa.concat_tables([positives_of_anchors, anchors_themselves])
    known = pairs.group_by(["anchor", "address"], use_threads=False).aggregate([])
    all_addresses = positives["address"].to_numpy()
    repeated = all_addresses[all_addresses != first_address.to_numpy()]
    return repeated, known.select(KNOWN_SCHEMA.names).cast(KNOWN_SCHEMA)


def _keys(store: Store, unit: CorpusUnit) -> pa.Array:
    """Read the keys of the unit's texts; equal texts have equal keys."""
    return one_chunk(pq.read_table(unit.file.open(store), columns=["text_key"])["text_key"])
