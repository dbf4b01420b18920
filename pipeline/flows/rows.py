"""Units of vectors with their ordinals in the chain of releases, and their live rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError, SpaceMismatch
from pipeline.store.address import ordinal_of, row_of, to_addresses
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.schema import checked_space, vector_matrix
from pipeline.store.stored import FileRef, Stored
from pipeline.store.units import Corpus, Manifest, UnitRecord

_BATCH = 8_192  # rows at once: 12 MB of float32 at d = 384


class PlacedUnit(Stored):
    """A unit of vectors with its ordinal in the chain of releases."""

    ordinal: int
    unit: UnitRecord


def row_addresses(placed: PlacedUnit) -> np.ndarray:
    """Return addresses (n,) int64 of the unit's vectors, dead or not."""
    dropped = np.asarray(placed.unit.dropped, dtype=np.int64)
    return to_addresses(
        placed.ordinal, np.delete(np.arange(placed.unit.rows + len(dropped), dtype=np.int64), dropped)
    )


def placed_units(manifest: ReleaseManifest) -> tuple[PlacedUnit, ...]:
    """Return the units of a release, by ordinal."""
    return tuple(
        PlacedUnit(
            ordinal=unit.ordinal,
            unit=UnitRecord(
                name=unit.record,
                **dict(unit.file),
                dropped=unit.dropped,
                space_id=unit.space_id,
                numerics_id=unit.numerics_id,
            ),
        )
        for unit in sorted(manifest.units, key=lambda unit: unit.ordinal)
    )


def place_units(corpus: Corpus, vectors: Manifest) -> tuple[PlacedUnit, ...]:
    """Return the units of vectors with the ordinals of their corpus units."""
    return tuple(
        PlacedUnit(ordinal=unit.ordinal, unit=record)
        for unit, record in zip(corpus.units, vectors.units, strict=True)
    )


def space_of(units: Sequence[PlacedUnit]) -> str:
    """Return the space that all units share.

    Raises:
        DataError: there are no units.
        SpaceMismatch: units belong to two spaces.
    """
    if not units:
        raise DataError(
            "index", "at least one unit of vectors", "none", "check the corpus and its quarantine"
        )
    first = units[0].unit
    for unit in (placed.unit for placed in units):
        if unit.space_id != first.space_id:
            raise SpaceMismatch(
                unit.path,
                f"vectors of one space, as {first.path} in space {first.space_id}",
                f"space {unit.space_id}",
                "vectors of two spaces cannot be compared: encode one of the two units again",
            )
    return first.space_id or ""


@dataclass(frozen=True)
class LiveRows:
    """The live rows of units.

    Before a file is read, it is compared with its sha256, and the space of its vectors with `space_id`.
    """

    store: Store
    space_id: str
    id_name: str
    dead: FileRef | None = None

    def counts(self, units: Sequence[PlacedUnit]) -> tuple[int, ...]:
        """Count the live rows of each unit."""
        dead = Dead.load(self.store, self.dead)
        return tuple(
            int(_is_live(placed, dead).sum()) if len(dead.rows_of(placed.ordinal)) else placed.unit.rows
            for placed in units
        )

    def batches(self, units: Sequence[PlacedUnit]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (addresses, raw float32 vectors) of all units, in order, a block at a time."""
        dead = Dead.load(self.store, self.dead)
        for placed in units:
            addresses, live, start = row_addresses(placed), _is_live(placed, dead), 0
            for batch in self.open(placed).iter_batches(_BATCH, columns=["vector"]):
                vectors = vector_matrix(batch["vector"]).astype(np.float32, copy=False)
                rows = slice(start, start + len(vectors))
                start += len(vectors)
                if live[rows].all():
                    yield addresses[rows], vectors
                elif live[rows].any():
                    yield addresses[rows][live[rows]], vectors[live[rows]]

    def sample(
        self, units: Sequence[PlacedUnit], count: int, salt: str, *, dead: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sample (addresses, raw vectors) of `count` rows by hash of id, in proportion to the units' rows.

        Args:
            salt: another one gives an independent sample.
            dead: sample dead rows instead of live ones; as queries they show recall near removed rows.

        Returns:
            (n,) int64 and (n, d) float32; n is smaller than `count` if there are fewer rows.
        """
        from pipeline.index.sample import apportion, sample_rows

        known = Dead.load(self.store, self.dead)
        sampled = [each for each in units if not dead or len(known.rows_of(each.ordinal))]
        candidates = [np.flatnonzero(_is_live(placed, known) != dead) for placed in sampled]
        counts = apportion(list(map(len, candidates)), count)
        addresses, vectors = [np.zeros(0, dtype=np.int64)], list[np.ndarray]()
        for placed, rows, wanted in zip(sampled, candidates, counts, strict=True):
            if wanted:
                source = self.open(placed)
                ids = source.read(columns=[self.id_name])[self.id_name].take(pa.array(rows))
                chosen = rows[sample_rows(ids, int(wanted), salt)]
                addresses.append(row_addresses(placed)[chosen])
                vectors.append(vectors_at(source, chosen))
        empty = np.zeros((0, 0), dtype=np.float32)
        return np.concatenate(addresses), np.concatenate(vectors) if vectors else empty

    def holds(self, units: Sequence[PlacedUnit], addresses: np.ndarray) -> np.ndarray:
        """Return a mask (n,) of the addresses (n,) that are live rows of one of the units."""
        return np.isin(ordinal_of(addresses), [placed.ordinal for placed in units]) & ~Dead.load(
            self.store, self.dead
        ).holds(addresses)

    def ids(self, units: Sequence[PlacedUnit]) -> Iterator[pa.Table]:
        """Yield address, id and kept columns of every live row, a unit at a time, in address order."""
        dead, address = Dead.load(self.store, self.dead), pa.field("address", pa.int64(), nullable=False)
        for placed in units:
            source = self.open(placed)
            names = [name for name in source.schema_arrow.names if name not in ("text_key", "vector")]
            rows = source.read(columns=names).rename_columns(["id", *names[1:]])
            table, live = (
                rows.add_column(0, address, [pa.array(row_addresses(placed))]),
                _is_live(placed, dead),
            )
            yield table if live.all() else table.filter(pa.array(live))

    def open(self, placed: PlacedUnit) -> pq.ParquetFile:
        """Open the unit's file after checking it."""
        return checked_space(
            pq.ParquetFile(placed.unit.file.open(self.store)), placed.unit.path, self.space_id
        )


def _is_live(placed: PlacedUnit, dead: Dead) -> np.ndarray:
    """Return a mask (n,) of the unit's vectors that are live."""
    return ~np.isin(row_of(row_addresses(placed)), dead.rows_of(placed.ordinal))


def vectors_at(source: pq.ParquetFile, rows: np.ndarray) -> np.ndarray:
    """Read vectors (n, d) float32 at ascending rows, with one row group in memory at a time."""
    found, start = [], 0
    for number in range(source.num_row_groups):
        end = start + source.metadata.row_group(number).num_rows
        wanted = rows[(rows >= start) & (rows < end)] - start
        if len(wanted):
            column = source.read_row_group(number, columns=["vector"])["vector"]
            found.append(vector_matrix(column)[wanted].astype(np.float32, copy=False))
        start = end
    return np.concatenate(found)
