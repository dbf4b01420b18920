"""Rows that differ between a release and the releases whose rows a target may hold.

Upserts are found by address, since a row whose text or kept columns change gets another address. Deletes are
found by id, in the key tables.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.flows.key_tables import live_rows_by_bucket
from pipeline.flows.rows import LiveRows, is_live, units_by_ordinal
from pipeline.store.files.base import Store
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.rows.address import to_addresses
from pipeline.store.rows.arrays import empty_table, one_chunk

_BATCH_ROWS = 8_192  # read at once: 12 MB of vectors at d = 384


class UnitUpserts(NamedTuple):
    """Rows of one unit to insert or replace."""

    unit: VectorUnit
    mask: np.ndarray
    """(n,) bool over the unit's rows"""


@dataclass(frozen=True)
class RowChanges:
    """Changes that make a table equal to a release."""

    store: Store
    """store of all releases"""
    before: tuple[ReleaseManifest, ...]
    """releases from which the table's rows may come; each row comes from one of them, or is missing"""
    is_partial: bool
    """whether the table may lack rows of the releases in `before`"""
    after: ReleaseManifest
    """the release that the table shall equal"""

    @cached_property
    def units(self) -> list[UnitUpserts]:
        """The units of `after` with rows that the table may lack or hold in another version."""
        dead = DeadRows(self.store, self.after.dead)
        earlier = [_Rows(self.store, manifest) for manifest in self.before]
        changed = []
        for unit in units_by_ordinal(self.after):
            mask = is_live(unit, dead)
            if not self.is_partial and earlier:
                mask &= ~np.logical_and.reduce([rows.hold(unit) for rows in earlier])
            if mask.any():
                changed.append(UnitUpserts(unit, mask))
        return changed

    def upserts(self, upserts: UnitUpserts) -> Iterator[pa.Table]:
        """Yield tables of id, vector (float32) and kept columns of the rows of one unit.

        Raises:
            DataError: the unit is missing or damaged.
        """
        file = LiveRows(self.store, self.after.space_id, "id", self.after.dead).open(upserts.unit)
        names = [name for name in file.schema_arrow.names if name not in ("text_key", "vector")]
        start = 0
        for batch in file.iter_batches(_BATCH_ROWS, columns=[*names, "vector"]):
            mask = upserts.mask[start : start + len(batch)]
            start += len(batch)
            if mask.any():
                rows = pa.Table.from_batches([batch]).filter(pa.array(mask)).combine_chunks()
                yield _export_columns(rows, names)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the tables of `upserts`."""
        unit = units_by_ordinal(self.after)[0]
        file = LiveRows(self.store, self.after.space_id, "id").open(unit)
        names = [name for name in file.schema_arrow.names if name not in ("text_key", "vector")]
        return _export_columns(empty_table(file.schema_arrow), names).schema

    def ids(self) -> Iterator[pa.Array]:
        """Yield the ids of all rows of `after`.

        Raises:
            DataError: a key table is missing or damaged.
        """
        dropped = _dropped_addresses(self.after)
        for (rows,) in live_rows_by_bucket(self.store, (self.after,), ("id", "address")):
            yield _ids_with_vectors(rows, dropped)

    def deletes(self, first: int) -> Iterator[pa.Array]:
        """Yield, for each bucket of the key tables, the ids of rows of `before` that `after` does not have.

        Args:
            first: number of buckets to skip at the beginning.

        Raises:
            DataError: a key table is missing or damaged.
        """
        if not self.before:
            return
        manifests = (self.after, *self.before)
        dropped = [_dropped_addresses(manifest) for manifest in manifests]
        for tables in live_rows_by_bucket(self.store, manifests, ("id", "address"), first):
            ids = [_ids_with_vectors(*each) for each in zip(tables, dropped, strict=True)]
            earlier = pc.unique(pa.concat_arrays(ids[1:]))
            yield earlier.filter(pc.invert(pc.is_in(earlier, value_set=ids[0])))


class _Rows:
    """The live rows of an earlier release."""

    def __init__(self, store: Store, manifest: ReleaseManifest) -> None:
        self._dead = DeadRows(store, manifest.dead)
        self._units = {unit.ordinal: unit for unit in units_by_ordinal(manifest)}

    def hold(self, unit: VectorUnit) -> np.ndarray:
        """Return a mask (n,) over the rows of a later release's unit: True for rows that this release has."""
        own = self._units.get(unit.ordinal)
        if own is None or own.sha256 != unit.sha256:
            return np.zeros(unit.rows, dtype=bool)
        return is_live(own, self._dead)


def _dropped_addresses(manifest: ReleaseManifest) -> np.ndarray:
    """Return the addresses (n,) of the rows of the corpus that have no vector."""
    units = [unit for unit in manifest.units if unit.dropped]
    return np.concatenate(
        [np.zeros(0, dtype=np.int64), *(to_addresses(unit.ordinal, np.array(unit.dropped)) for unit in units)]
    )


def _ids_with_vectors(rows: pa.Table, dropped: np.ndarray) -> pa.Array:
    has_vector = ~np.isin(rows["address"].to_numpy(), dropped)
    return one_chunk(rows.filter(pa.array(has_vector))["id"])


def _export_columns(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the columns id, vector (float32) and the kept columns of a unit's rows."""
    id_name, *kept = names
    vectors = one_chunk(rows["vector"])
    element = pa.field("element", pa.float32(), nullable=False)
    vector_type = pa.list_(element, vectors.type.list_size)
    fields = [
        rows.schema.field(id_name).with_name("id"),
        pa.field("vector", vector_type, nullable=False),
        *map(rows.schema.field, kept),
    ]
    columns = [rows[id_name], vectors.cast(vector_type), *map(rows.column, kept)]
    return pa.table(columns, schema=pa.schema(fields))
