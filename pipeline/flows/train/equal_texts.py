"""Find the equal texts among training pairs, whose positives cannot be negatives of each other's anchors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.flows.workers.tasks import PlainTask
from pipeline.store.address import to_addresses
from pipeline.store.arrays import one_chunk
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.once import put_by_content
from pipeline.store.schema import KEY
from pipeline.store.stored import FileRef, Stored
from pipeline.store.units import CorpusUnit

_PAIRS_IN_MEMORY = 1 << 22  # their keys take about 300 MB
_KNOWN_SCHEMA = pa.schema(
    [pa.field("anchor", KEY, nullable=False), pa.field("address", pa.int64(), nullable=False)]
)


class EqualTexts(Stored):
    """Equal texts among training pairs, as `Relate` finds them.

    Attributes:
        repeats: addresses of positives that equal an earlier one; None if there are none.
        known: table of (key of an anchor, address of a text that cannot be its negative). These texts are all
            positives of equal anchors, and the anchor's own text.
    """

    repeats: FileRef | None
    known: FileRef


@dataclass(frozen=True)
class Relate(PlainTask[Sequence[tuple[CorpusUnit, CorpusUnit]], EqualTexts]):
    """Find equal texts among all pairs by their keys, one part of the keys at a time to limit memory."""

    store: Store

    def work(self, units: Sequence[tuple[CorpusUnit, CorpusUnit]]) -> EqualTexts:
        """Return the equal texts among (anchors, positives) units."""
        parts = -(-sum(unit.rows for _, unit in units) // _PAIRS_IN_MEMORY)
        repeats = []
        with self.store.scratch() as scratch:
            file = scratch / "known.parquet"
            with pq.ParquetWriter(file, _KNOWN_SCHEMA, compression="NONE", use_dictionary=False) as writer:
                for part in range(parts):
                    repeated, known = _find_equal(*self._read_part(units, part, parts))
                    repeats.append(repeated)
                    writer.write_table(known)
            return EqualTexts(
                repeats=Dead(np.sort(np.concatenate(repeats))).store_in(self.store, "pairs/repeats"),
                known=put_by_content(self.store, file, "pairs/known", 0),
            )

    def _read_part(
        self, units: Sequence[tuple[CorpusUnit, CorpusUnit]], part: int, parts: int
    ) -> tuple[pa.Table, pa.Array]:
        """Read the keys of one part.

        Returns:
            The positives whose key is in the part, as a table of key, address and the key of their anchor;
            and the distinct keys of the part among all anchors.
        """
        positive_tables, anchor_keys = [], []
        for anchors, positives in units:
            keys, keys_of_anchors = _keys(self.store, positives), _keys(self.store, anchors)
            addresses = to_addresses(positives.ordinal, np.arange(len(keys)))
            table = pa.table({"key": keys, "address": addresses, "anchor": keys_of_anchors})
            if parts > 1:
                table = table.filter(_in_part(keys, part, parts))
                keys_of_anchors = keys_of_anchors.filter(_in_part(keys_of_anchors, part, parts))
            positive_tables.append(table)
            anchor_keys.append(pc.unique(keys_of_anchors))
        return pa.concat_tables(positive_tables).combine_chunks(), pc.unique(pa.concat_arrays(anchor_keys))


def _find_equal(positives: pa.Table, anchors: pa.Array) -> tuple[np.ndarray, pa.Table]:
    """Find the equal texts of one part.

    Equal positives are represented by the first of them, the one with the smallest address.

    Args:
        positives: key, address and key of the anchor of each positive.
        anchors: distinct keys of anchors.

    Returns:
        Addresses of positives that equal an earlier one, and the part's rows of `EqualTexts.known`.
    """
    firsts = positives.group_by("key", use_threads=False).aggregate([("address", "min")])
    keys, addresses = firsts["key"].combine_chunks(), firsts["address_min"]
    first_address = addresses.take(pc.index_in(positives["key"].combine_chunks(), value_set=keys))
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
    return repeated, known.select(_KNOWN_SCHEMA.names).cast(_KNOWN_SCHEMA)


def _keys(store: Store, unit: CorpusUnit) -> pa.Array:
    """Read the keys of the unit's texts; equal texts have equal keys."""
    return one_chunk(pq.read_table(unit.file.open(store), columns=["text_key"])["text_key"])


def _in_part(keys: pa.Array, part: int, parts: int) -> pa.Array:
    """Return a mask of the keys that are in the part.

    Keys are hashes of 16 bytes; the first 8 bytes decide, so that parts have about the same size.
    """
    words = np.frombuffer(keys.buffers()[1], "<u8")[2 * keys.offset :][: 2 * len(keys) : 2]
    return pa.array(words % np.uint64(parts) == part)
