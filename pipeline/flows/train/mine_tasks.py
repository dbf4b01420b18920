"""Tasks of hard negative mining: find repeated positives and known answers, then search for every pair."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.flows.index.records import BuiltIndex
from pipeline.flows.rows import LiveRows, PlacedUnit, row_addresses
from pipeline.flows.workers.tasks import PlainTask, progress
from pipeline.settings.training import MineSettings
from pipeline.store.address import row_of, to_addresses
from pipeline.store.arrays import one_chunk
from pipeline.store.base import Store, sha256_of
from pipeline.store.dead import Dead
from pipeline.store.once import put_by_content, remembered
from pipeline.store.schema import KEY, vector_matrix
from pipeline.store.stored import FileRef, Stored
from pipeline.store.units import CorpusUnit, UnitRecord
from pipeline.text.rows.triples import SCHEMA

ROW_GROUP = 8_192  # rows; small, since the training order shuffles whole row groups
_LINES = 1 << 22  # pairs whose keys are held at once: about 300 MB
_QUERIES = 1_024  # anchors per search
_KNOWN = pa.schema([pa.field("anchor", KEY, nullable=False), pa.field("address", pa.int64(), nullable=False)])


class PairUnits(Stored):
    """Consecutive pairs: one unit of anchors and one of positives, row for row, with their vectors."""

    number: int
    first: int
    """number of its first pair"""
    anchors: CorpusUnit
    positives: CorpusUnit
    anchor_vectors: UnitRecord
    positive_vectors: UnitRecord


class Related(Stored):
    """Equal texts among the pairs.

    Attributes:
        repeats: addresses of positives that equal an earlier one; None without any.
        known: for each anchor the addresses of all texts that cannot be its negatives.
    """

    repeats: FileRef | None
    known: FileRef


@dataclass(frozen=True)
class Relate(PlainTask[Sequence[tuple[CorpusUnit, CorpusUnit]], Related]):
    """Compare the texts of all pairs by their keys, one part of the keys at a time."""

    store: Store

    def work(self, units: Sequence[tuple[CorpusUnit, CorpusUnit]]) -> Related:
        """Return the equal texts among units of anchors and of positives."""
        parts = -(-sum(unit.rows for _, unit in units) // _LINES)
        repeats = []
        with self.store.scratch() as scratch:
            file = scratch / "known.parquet"
            with pq.ParquetWriter(file, _KNOWN, compression="NONE", use_dictionary=False) as writer:
                for part in range(parts):
                    again, known = _related(*self._lines(units, part, parts))
                    repeats.append(again)
                    writer.write_table(known)
            return Related(
                repeats=Dead(np.sort(np.concatenate(repeats))).store_in(self.store, "pairs/repeats"),
                known=put_by_content(self.store, file, "pairs/known", 0),
            )

    def _lines(
        self, units: Sequence[tuple[CorpusUnit, CorpusUnit]], part: int, parts: int
    ) -> tuple[pa.Table, pa.Array]:
        """Return (key, address, anchor) of the positives and the keys of the anchors that are in the part."""
        lines, asked = [], []
        for anchors, positives in units:
            own, other = _keys(self.store, positives), _keys(self.store, anchors)
            table = pa.table(
                {"key": own, "address": to_addresses(positives.ordinal, np.arange(len(own))), "anchor": other}
            )
            lines.append(table if parts == 1 else table.filter(_in_part(own, part, parts)))
            asked.append(pc.unique(other if parts == 1 else other.filter(_in_part(other, part, parts))))
        return pa.concat_tables(lines).combine_chunks(), pc.unique(pa.concat_arrays(asked))


def _related(lines: pa.Table, anchors: pa.Array) -> tuple[np.ndarray, pa.Table]:
    """Find the equal texts of one part.

    Returns:
        Addresses of positives that equal an earlier one, and (anchor, address) of the first positive of each
        text that is right for the anchor, or equal to it.
    """
    first = lines.group_by("key", use_threads=False).aggregate([("address", "min")])
    keys = first["key"].combine_chunks()
    canonical = first["address_min"].take(pc.index_in(lines["key"].combine_chunks(), value_set=keys))
    found = pc.index_in(anchors, value_set=keys)
    equal_to_anchor = [anchors.filter(pc.is_valid(found)), first["address_min"].take(pc.drop_null(found))]
    pairs = [
        pa.table({"anchor": lines["anchor"], "address": canonical}),
        pa.table(equal_to_anchor, names=["anchor", "address"]),
    ]
    known = pa.concat_tables(pairs).group_by(["anchor", "address"], use_threads=False).aggregate([])
    addresses = lines["address"].to_numpy()
    return addresses[addresses != canonical.to_numpy()], known.select(_KNOWN.names).cast(_KNOWN)


def _keys(store: Store, unit: CorpusUnit) -> pa.Array:
    return one_chunk(pq.read_table(unit.file.open(store), columns=["text_key"])["text_key"])


def _in_part(keys: pa.Array, part: int, parts: int) -> pa.Array:
    """Return a mask of the keys in the part. Keys are hashes, so their first bytes are evenly distributed."""
    words = np.frombuffer(keys.buffers()[1], "<u8")[2 * keys.offset :][: 2 * len(keys) : 2]
    return pa.array(words % np.uint64(parts) == part)


@dataclass(frozen=True)
class MineUnit:
    """Find hard negatives for the pairs of one unit.

    They are stored as rows of anchor, positive and negative, in a file below `folder`. A unit that has a
    record is not repeated.
    """

    source: LiveRows
    built: BuiltIndex
    known: FileRef
    settings: MineSettings
    seed: int
    threads: int
    folder: str

    def start(self) -> Callable[[PairUnits], UnitRecord]:
        """Open the index, and return the work: pairs to the record of their negatives."""
        from pipeline.index.ids import Ids
        from pipeline.index.parts import load_parts

        store = self.source.store
        index = load_parts(store, self.built.files)
        ids = Ids([reference.local(store) for reference in self.built.ids])
        return lambda units: remembered(
            store, self.record(units), UnitRecord, lambda: self._mined(units, index, ids)
        )

    def record(self, units: PairUnits) -> str:
        """Return the path of the unit's record."""
        return f"{self.folder}/part-{units.number:05d}.json"

    def _mined(self, units: PairUnits, index: Any, ids: Any) -> UnitRecord:
        store = self.source.store
        anchors, positives = (
            pq.read_table(unit.file.open(store), columns=["text", "text_key"])
            for unit in (units.anchors, units.positives)
        )
        picked, usable = self._picked(units, one_chunk(anchors["text_key"]), index)
        rows, ranks = np.nonzero(picked >= 0)
        negatives = ids.take(picked[rows, ranks])["text"]
        texts = (one_chunk(table["text"]).take(rows) for table in (anchors, positives))
        # the name does not depend on the content, since readers take all files of the folder
        name = f"{self.folder}/rows/part-{units.number:05d}.parquet"
        with store.scratch() as scratch:
            table = pa.table([*texts, negatives], names=SCHEMA.names).cast(SCHEMA)
            pq.write_table(table, file := scratch / "rows", row_group_size=ROW_GROUP, compression="zstd")
            record = UnitRecord(
                name=name,
                path=name,
                rows=len(rows),
                bytes=file.stat().st_size,
                sha256=sha256_of(file),
                counts={
                    "pairs": len(picked),
                    "rows": len(rows),
                    "mined": len(np.unique(rows)),
                    "unusable": int((~usable).sum()),
                },
                space_id=self.source.space_id,
            )
            store.put(file, name)
        return record

    def _picked(self, units: PairUnits, keys: pa.Array, index: Any) -> tuple[np.ndarray, np.ndarray]:
        """Pick the negatives of each pair; `keys` are those of the anchors' texts.

        Returns:
            (n, negatives) addresses, and an (n,) mask of the pairs whose texts both have a vector.
        """
        from pipeline.index.build import threads
        from pipeline.index.negatives import pick, without_positives
        from pipeline.index.truth import NO_NEIGHBOUR, Neighbours

        anchors = self._vectors(units.anchors, units.anchor_vectors)
        positives = self._vectors(units.positives, units.positive_vectors)
        usable = np.asarray(anchors.any(axis=1) & positives.any(axis=1))
        cosines = np.einsum("nd,nd->n", anchors, positives)
        coded = keys.dictionary_encode()
        codes, known = coded.indices.to_numpy().astype(np.int64), self._known(coded.dictionary)
        _, first = np.unique(codes, return_index=True)
        picked, done = np.full((len(codes), self.settings.negatives), NO_NEIGHBOUR, np.int64), 0
        searchable = np.flatnonzero(anchors[first].any(axis=1))
        for batch in _batches(searchable, np.array([len(each) for each in known])):
            depth = self.settings.neighbours + max(len(known[code]) for code in batch)
            with threads(self.threads):
                scores, addresses = index.search(anchors[first[batch]], depth)
            found = without_positives(Neighbours(addresses, scores), [known[code] for code in batch])
            position = np.full(len(first), NO_NEIGHBOUR)
            position[batch] = np.arange(len(batch))
            rows = np.flatnonzero((position[codes] >= 0) & usable)
            mine = position[codes[rows]]
            picked[rows] = pick(
                Neighbours(found.addresses[mine], found.scores[mine]),
                cosines[rows],
                units.first + rows,
                self.settings,
                self.seed,
            )
            progress(done := done + len(rows))
        progress(done, last=True)
        return picked, usable

    def _known(self, anchors: pa.Array) -> list[np.ndarray]:
        """Return, for each anchor, the addresses of the texts that cannot be its negatives."""
        found = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        for batch in pq.ParquetFile(self.known.open(self.source.store)).iter_batches():
            positions = pc.index_in(batch["anchor"], value_set=anchors)
            ours = pc.is_valid(positions)
            found.append(
                (positions.filter(ours).to_numpy().astype(np.int64), batch["address"].filter(ours).to_numpy())
            )
        positions, addresses = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(positions, kind="stable")
        return np.split(addresses[order], np.searchsorted(positions[order], np.arange(1, len(anchors))))

    def _vectors(self, unit: CorpusUnit, record: UnitRecord) -> np.ndarray:
        """Return (n, d) float32 vectors of length one, row for row; zero for a text without a vector."""
        from pipeline.index.truth import indexed

        placed = PlacedUnit(ordinal=unit.ordinal, unit=record)
        column = self.source.open(placed).read(columns=["vector"])["vector"]
        vectors = np.zeros((unit.rows, column.type.list_size), np.float32)
        vectors[row_of(row_addresses(placed))] = vector_matrix(column)
        return indexed(vectors, None)


def _batches(codes: np.ndarray, sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Yield batches of anchors, sorted by their number of known texts: only the last searches are deep."""
    ordered = codes[np.argsort(sizes[codes], kind="stable")]
    yield from (ordered[start : start + _QUERIES] for start in range(0, len(ordered), _QUERIES))
