"""Read live rows and their addresses from units of vectors.

An address consists of a unit's ordinal, which all releases of a root share, and a row number in its corpus
unit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError, SpaceMismatch
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.dead import DeadRows
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.unit_sample import UnitSample
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.rows.address import ordinal_of, row_of, to_addresses
from pipeline.store.rows.schema import check_space, vector_matrix, vectors_at

_BATCH = 8_192  # rows read at once: 12 MB of float32 at d = 384
_SAMPLES_READ = 64  # stored samples of units read together: 110 MB at d = 384


def row_addresses(unit: VectorUnit) -> np.ndarray:
    """Return the addresses (n,) int64 of all vectors of the unit, including vectors of dead rows."""
    # rows are numbered as in the corpus unit, so rows without a vector leave gaps
    dropped = np.asarray(unit.dropped, dtype=np.int64)
    rows = np.delete(np.arange(unit.rows + len(dropped), dtype=np.int64), dropped)
    return to_addresses(unit.ordinal, rows)


def units_by_ordinal(manifest: ReleaseManifest) -> tuple[VectorUnit, ...]:
    """Return the units of a release, by ordinal, without their counts, which no task needs."""
    units = sorted(manifest.units, key=lambda unit: unit.ordinal)
    return tuple(unit.model_copy(update={"counts": {}}) for unit in units)


def space_of(units: Sequence[VectorUnit]) -> str:
    """Return the space that all units share.

    Raises:
        DataError: there are no units.
        SpaceMismatch: units belong to two spaces.
    """
    if not units:
        raise DataError(
            "index", "at least one unit of vectors", "none", "check the corpus and its quarantine"
        )
    first = units[0]
    for unit in units:
        if unit.space_id != first.space_id:
            raise SpaceMismatch(
                unit.path,
                f"vectors of one space, as {first.path} in space {first.space_id}",
                f"space {unit.space_id}",
                "vectors of two spaces cannot be compared: encode one of the two units again",
            )
    return first.space_id


@dataclass(frozen=True)
class LiveRows:
    """Reader of the live rows of units.

    Each file is checked before it is read, by its sha256 and the space of its vectors.
    """

    store: Store
    """store of the units"""
    space_id: str
    """space of all vectors"""
    id_name: str
    """column of the ids"""
    dead: FileRef | None = None
    """file of the dead rows; None if there are none"""

    def counts(self, units: Sequence[VectorUnit]) -> tuple[int, ...]:
        """Count the live rows of each unit."""
        dead = DeadRows(self.store, self.dead)
        return tuple(_count_live(unit, dead) for unit in units)

    def batches(self, units: Sequence[VectorUnit]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (addresses, raw float32 vectors) of all live rows, in the order of the units, in batches."""
        dead = DeadRows(self.store, self.dead)
        for unit in units:
            addresses, live, start = row_addresses(unit), is_live(unit, dead), 0
            for batch in self.open(unit).iter_batches(_BATCH, columns=["vector"]):
                vectors = vector_matrix(batch["vector"]).astype(np.float32, copy=False)
                rows = slice(start, start + len(vectors))
                start += len(vectors)
                if live[rows].all():
                    yield addresses[rows], vectors
                elif live[rows].any():
                    yield addresses[rows][live[rows]], vectors[live[rows]]

    def sample(
        self, units: Sequence[VectorUnit], count: int, salt: str, *, dead: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sample (addresses, raw vectors) of `count` rows by hash of id, in proportion to the units' rows.

        The rows come from the units' stored samples. If a sample has too few rows, or there is none, the unit
        itself is read; the rows are the same.

        Args:
            salt: part of the hash; different salts give independent samples.
            dead: sample dead rows instead of live rows. As queries they measure recall near removed rows.

        Returns:
            (n,) int64 and (n, d) float32; n is smaller than `count` if there are fewer rows.
        """
        from pipeline.index.build.sample import apportion

        dead_rows = DeadRows(self.store, self.dead)
        live = (_count_live(unit, dead_rows) for unit in units)
        sizes = [unit.rows - rows if dead else rows for unit, rows in zip(units, live, strict=True)]
        drawn = [
            (unit, int(wanted)) for unit, wanted in zip(units, apportion(sizes, count), strict=True) if wanted
        ]
        if not drawn:
            return np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32)
        found = []
        for start in range(0, len(drawn), _SAMPLES_READ):
            draws = [
                _Draw(unit, wanted, salt, is_live(unit, dead_rows) != dead)
                for unit, wanted in drawn[start : start + _SAMPLES_READ]
            ]
            from_samples = in_threads(self._from_sample, draws)
            found += [rows or self._from_unit(draw) for draw, rows in zip(draws, from_samples, strict=True)]
        addresses, vectors = zip(*found, strict=True)
        return np.concatenate(addresses), np.concatenate(vectors)

    def _from_sample(self, draw: "_Draw") -> tuple[np.ndarray, np.ndarray] | None:
        """Take the rows from the unit's stored sample; None if the sample has too few."""
        from pipeline.index.build.sample import SAMPLE_SIZES, choose_from_sample

        reference = draw.unit.sample
        if reference is None or draw.wanted > SAMPLE_SIZES.get(draw.salt, 0):
            return None
        sample = UnitSample.load(self.store, reference, self.space_id)
        chosen = choose_from_sample(sample, draw.candidates[sample.rows], draw.wanted, draw.salt)
        if chosen is None:
            return None
        return row_addresses(draw.unit)[sample.rows[chosen]], sample.vectors[chosen]

    def _from_unit(self, draw: "_Draw") -> tuple[np.ndarray, np.ndarray]:
        """Take the rows from the unit itself, whose ids are all read."""
        from pipeline.index.build.sample import sample_rows

        source, rows = self.open(draw.unit), np.flatnonzero(draw.candidates)
        ids = source.read(columns=[self.id_name])[self.id_name].take(pa.array(rows))
        chosen = rows[sample_rows(ids, draw.wanted, draw.salt)]
        return row_addresses(draw.unit)[chosen], vectors_at(source, chosen)

    def holds(self, units: Sequence[VectorUnit], addresses: np.ndarray) -> np.ndarray:
        """Return a mask (n,) of the addresses (n,) that are live rows of one of the units."""
        in_units = np.isin(ordinal_of(addresses), [unit.ordinal for unit in units])
        return in_units & ~DeadRows(self.store, self.dead).contains(addresses)

    def ids(self, units: Sequence[VectorUnit]) -> Iterator[pa.Table]:
        """Yield tables of address, id and kept columns of all live rows, one per unit, in order."""
        dead = DeadRows(self.store, self.dead)
        address = pa.field("address", pa.int64(), nullable=False)
        for unit in units:
            source = self.open(unit)
            names = [name for name in source.schema_arrow.names if name not in ("text_key", "vector")]
            rows = source.read(columns=names).rename_columns(["id", *names[1:]])
            table = rows.add_column(0, address, [pa.array(row_addresses(unit))])
            live = is_live(unit, dead)
            yield table if live.all() else table.filter(pa.array(live))

    def open(self, unit: VectorUnit) -> pq.ParquetFile:
        """Open the unit's file after checking it. Raises DataError if it is missing or damaged."""
        try:
            stream = unit.file.open(self.store)
        except FileNotFoundError:
            where, remedy = self.store.uri_of(unit.path), "restore the unit, or roll back"
            raise DataError(where, "a unit of vectors", "no such file", remedy) from None
        return check_space(pq.ParquetFile(stream), unit.path, self.space_id)


def is_live(unit: VectorUnit, dead: DeadRows) -> np.ndarray:
    """Return a mask (n,) of the unit's vectors that are live."""
    return ~np.isin(row_of(row_addresses(unit)), dead.rows_of(unit.ordinal))


def _count_live(unit: VectorUnit, dead: DeadRows) -> int:
    """Count the unit's vectors that are live; dropped rows have no vector, dead or not."""
    dead_rows = dead.rows_of(unit.ordinal)
    return unit.rows - int(np.count_nonzero(~np.isin(dead_rows, unit.dropped)))


class _Draw(NamedTuple):
    """Rows to sample from one unit: `wanted` rows among `candidates`, a mask (n,) over the unit's vectors."""

    unit: VectorUnit
    wanted: int
    salt: str
    candidates: np.ndarray
