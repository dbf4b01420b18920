"""Embedding units with their place in the chain of releases, and the rows of them that are live."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError, SpaceMismatch
from pipeline.store.base import Store
from pipeline.store.dead import Dead
from pipeline.store.manifest import ReleaseManifest, ReleaseUnit
from pipeline.store.schema import checked_space, vector_matrix
from pipeline.store.units import Corpus, FileRef, Manifest, Stored, UnitRecord

_BATCH = 8_192  # rows at once: 12 MB of float32 at d = 384


class Placed(Stored):
    """An embedding unit with its place in the chain of releases."""

    ordinal: int
    unit: UnitRecord


def placed_rows(placed: Placed) -> np.ndarray:
    """Addresses (n,) int64 of the unit's vectors, dead or not, in its order: ordinal << 32 | row of the corpus unit."""
    dropped = np.asarray(placed.unit.dropped, dtype=np.int64)
    rows = np.delete(np.arange(placed.unit.rows + len(dropped), dtype=np.int64), dropped)
    return (np.int64(placed.ordinal) << 32) | rows


def placed_in(manifest: ReleaseManifest) -> tuple[Placed, ...]:
    """The units of a release, by ordinal."""
    return tuple(
        Placed(ordinal=unit.ordinal, unit=_record(unit))
        for unit in sorted(manifest.units, key=lambda unit: unit.ordinal)
    )


def place(corpus: Corpus, vectors: Manifest) -> tuple[Placed, ...]:
    """Return the units of vectors with the ordinals of their corpus units."""
    pairs = zip(corpus.units, vectors.units, strict=True)
    return tuple(Placed(ordinal=unit.ordinal, unit=record) for unit, record in pairs)


def _record(unit: ReleaseUnit) -> UnitRecord:
    return UnitRecord(
        name=unit.record,
        path=unit.path,
        rows=unit.rows,
        bytes=unit.bytes,
        sha256=unit.sha256,
        dropped=unit.dropped,
        space_id=unit.space_id,
        numerics_id=unit.numerics_id,
    )


def space_of(units: Sequence[Placed]) -> str:
    """The one space of all units' vectors. SpaceMismatch that names two where there are two; DataError for no units."""
    if not units:
        raise DataError(
            "index", "at least one unit of vectors", "none", "check the corpus and its quarantine"
        )
    first = units[0].unit
    for placed in units:
        if placed.unit.space_id != first.space_id:
            found, remedy = (
                f"{first.path} in space {first.space_id}",
                "vectors of two spaces cannot be compared: encode one of the two units again",
            )
            raise SpaceMismatch(
                placed.unit.path, f"vectors of one space, as {found}", f"space {placed.unit.space_id}", remedy
            )
    return first.space_id or ""


@dataclass(frozen=True)
class LiveRows:
    """What units hold, the dead rows left out. Each file is compared with its sha256, and the space of its vectors with `space_id`, before it is read."""

    store: Store
    space_id: str
    id_name: str
    dead: FileRef | None = None

    def counts(self, units: Sequence[Placed]) -> tuple[int, ...]:
        """Live rows of each unit. Opens none where no row is dead."""
        dead = Dead.load(self.store, self.dead)
        return tuple(
            int(_alive(placed, dead).sum()) if len(dead.rows_of(placed.ordinal)) else placed.unit.rows
            for placed in units
        )

    def batches(self, units: Sequence[Placed]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(addresses, raw vectors float32) of all units, in order, a block at a time."""
        dead = Dead.load(self.store, self.dead)
        for placed in units:
            addresses, live, start = placed_rows(placed), _alive(placed, dead), 0
            for batch in self.open(placed).iter_batches(_BATCH, columns=["vector"]):
                vectors = vector_matrix(batch["vector"]).astype(np.float32, copy=False)
                rows = slice(start, start + len(vectors))
                start += len(vectors)
                if live[rows].all():
                    yield addresses[rows], vectors
                elif live[rows].any():
                    yield addresses[rows][live[rows]], vectors[live[rows]]

    def sample(self, units: Sequence[Placed], count: int, salt: str) -> tuple[np.ndarray, np.ndarray]:
        """(addresses, raw vectors) of `count` rows over all units, each giving its share by hash of id. Another salt is an independent sample."""
        dead = Dead.load(self.store, self.dead)
        return self._sampled(
            [(placed, np.flatnonzero(_alive(placed, dead))) for placed in units], count, salt
        )

    def sample_dead(self, units: Sequence[Placed], count: int, salt: str) -> tuple[np.ndarray, np.ndarray]:
        """The same of dead rows, fewer where there are no more: they show how an index answers where rows were taken out."""
        dead = Dead.load(self.store, self.dead)
        return self._sampled(
            [
                (placed, np.flatnonzero(~_alive(placed, dead)))
                for placed in units
                if len(dead.rows_of(placed.ordinal))
            ],
            count,
            salt,
        )

    def _sampled(
        self, among: Sequence[tuple[Placed, np.ndarray]], count: int, salt: str
    ) -> tuple[np.ndarray, np.ndarray]:
        from pipeline.index.sample import apportion, sample_rows

        addresses, vectors = [np.zeros(0, dtype=np.int64)], list[np.ndarray]()
        for (placed, rows), share in zip(
            among, apportion([len(rows) for _, rows in among], count), strict=True
        ):
            if share:
                source = self.open(placed)
                ids = source.read(columns=[self.id_name])[self.id_name].take(pa.array(rows))
                chosen = rows[sample_rows(ids, int(share), salt)]
                addresses.append(placed_rows(placed)[chosen])
                vectors.append(vectors_at(source, chosen))
        return np.concatenate(addresses), np.concatenate(vectors) if vectors else np.zeros(
            (0, 0), dtype=np.float32
        )

    def holds(self, units: Sequence[Placed], addresses: np.ndarray) -> np.ndarray:
        """Mask (n,) of the addresses (n,) that are live rows of one of the units."""
        there = np.array([placed.ordinal for placed in units], dtype=np.int64)
        return np.isin(addresses >> 32, there) & ~Dead.load(self.store, self.dead).holds(addresses)

    def ids(self, units: Sequence[Placed]) -> Iterator[pa.Table]:
        """Address, id and kept columns of every row, a unit at a time, in address order."""
        dead = Dead.load(self.store, self.dead)
        for placed in units:
            source = self.open(placed)
            names = [name for name in source.schema_arrow.names if name not in ("text_key", "vector")]
            rows = source.read(columns=names).rename_columns(["id", *names[1:]])
            table = rows.add_column(
                0, pa.field("address", pa.int64(), nullable=False), [pa.array(placed_rows(placed))]
            )
            live = _alive(placed, dead)
            yield table if live.all() else table.filter(pa.array(live))

    def open(self, placed: Placed) -> pq.ParquetFile:
        """The unit's file, checked."""
        path = placed.unit.path
        return checked_space(pq.ParquetFile(self.store.open(path, placed.unit.sha256)), path, self.space_id)


def _alive(placed: Placed, dead: Dead) -> np.ndarray:
    """Mask (n,) of the unit's vectors that are live."""
    rows = placed_rows(placed) & 0xFFFFFFFF
    return ~np.isin(rows, dead.rows_of(placed.ordinal))


def vectors_at(source: pq.ParquetFile, rows: np.ndarray) -> np.ndarray:
    """The vectors (n, d) float32 of those rows (ascending), a row group in memory at a time."""
    found, start = [], 0
    for number in range(source.num_row_groups):
        end = start + source.metadata.row_group(number).num_rows
        wanted = rows[(rows >= start) & (rows < end)] - start
        if len(wanted):
            found.append(
                vector_matrix(source.read_row_group(number, columns=["vector"])["vector"])[wanted].astype(
                    np.float32, copy=False
                )
            )
        start = end
    return np.concatenate(found)
