"""The task of hard negative mining, which workers unpickle: find each anchor's negatives among positives."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.flows.index.records import BuiltIndex
from pipeline.flows.rows import LiveRows, row_addresses
from pipeline.flows.train.equal_texts import KNOWN_SCHEMA
from pipeline.flows.workers.tasks import progress
from pipeline.settings.training import MineSettings
from pipeline.store.files.base import sha256_of
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.units import CorpusUnit, UnitRecord
from pipeline.store.records.write_once import load_or_make
from pipeline.store.rows.address import row_of
from pipeline.store.rows.arrays import one_chunk
from pipeline.store.rows.schema import vector_matrix
from pipeline.text.key_tables.partitions import read_from_all

if TYPE_CHECKING:
    from pipeline.index.files.ids import Ids
    from pipeline.index.files.parts import Parts

ROW_GROUP = 8_192  # rows; small, because a training shuffles whole row groups
_ANCHORS_PER_SEARCH = 1_024
_SCHEMA = pa.schema([("anchor", pa.string()), ("positive", pa.string()), ("negative", pa.string())])


class PairUnits(Stored):
    """Consecutive pairs: one unit of anchors and one of positives, row for row, with their vectors."""

    number: int
    """index among all such units"""
    first: int
    """number of the first pair among all pairs"""
    anchors: CorpusUnit
    positives: CorpusUnit
    anchor_vectors: VectorUnit
    positive_vectors: VectorUnit


@dataclass(frozen=True)
class MineUnit:
    """Find hard negatives for the pairs of one unit.

    The rows of anchor, positive and negative are stored in a file below `folder`. A unit that has a record is
    done already, and is not repeated.
    """

    source: LiveRows
    """reads the vectors of the texts"""
    built: BuiltIndex
    """index of the distinct positives"""
    known: tuple[FileRef, ...]
    """texts that cannot be negatives; see `EqualTexts.known`"""
    settings: MineSettings
    """settings of the mining"""
    seed: int
    """seed of the choice among candidates"""
    threads: int
    """number of threads of a search"""
    folder: str
    """folder of the results in the store"""

    def start(self) -> Callable[[PairUnits], UnitRecord]:
        """Open the index, and return the function that mines the pairs of a unit."""
        from pipeline.index.files.ids import Ids
        from pipeline.index.files.parts import load_index

        store = self.source.store
        index = load_index(store, self.built.index_files())
        ids = Ids([reference.local(store) for reference in self.built.ids])
        return lambda units: load_or_make(
            store, self.record(units), UnitRecord, lambda: self._mine(units, index, ids)
        )

    def record(self, units: PairUnits) -> str:
        """Return the path of the unit's record."""
        return f"{self.folder}/part-{units.number:05d}.json"

    def _mine(self, units: PairUnits, index: "Parts", ids: "Ids") -> UnitRecord:
        """Mine the pairs of a unit, store their rows, and return the record."""
        store = self.source.store
        anchors, positives = (
            pq.read_table(unit.file.open(store), columns=["text", "text_key"])
            for unit in (units.anchors, units.positives)
        )
        addresses, usable = self._pick(units, one_chunk(anchors["text_key"]), index)
        rows, columns = np.nonzero(addresses >= 0)
        negatives = ids.take(addresses[rows, columns])["text"]
        texts = (one_chunk(table["text"]).take(rows) for table in (anchors, positives))
        # Not named by content: repeated work must replace the file, because readers take all files.
        name = f"{self.folder}/rows/part-{units.number:05d}.parquet"
        with store.scratch() as scratch:
            table = pa.table([*texts, negatives], names=_SCHEMA.names).cast(_SCHEMA)
            pq.write_table(table, file := scratch / "rows", row_group_size=ROW_GROUP, compression="zstd")
            record = UnitRecord(
                name=name,
                path=name,
                rows=len(rows),
                bytes=file.stat().st_size,
                sha256=sha256_of(file),
                counts={
                    "pairs": len(addresses),
                    "rows": len(rows),
                    "mined": len(np.unique(rows)),
                    "unusable": int((~usable).sum()),
                },
                space_id=self.source.space_id,
            )
            store.put(file, name)
        return record

    def _pick(self, units: PairUnits, keys: pa.Array, index: "Parts") -> tuple[np.ndarray, np.ndarray]:
        """Pick the negatives of each of the n pairs of a unit. Equal anchors are searched for once.

        Args:
            units: the pairs.
            keys: (n,) keys of the anchors' texts.
            index: index of the distinct positives.

        Returns:
            (n, negatives) addresses, NO_NEIGHBOUR where there are fewer; and an (n,) mask of the pairs whose
            texts both have a vector.
        """
        from pipeline.index.library import faiss_threads
        from pipeline.index.measure.truth import NO_NEIGHBOUR, Neighbours
        from pipeline.index.search.negatives import pick_negatives, without_positives

        anchors = self._vectors(units.anchor_vectors)
        positives = self._vectors(units.positive_vectors)
        usable = np.asarray(anchors.any(axis=1) & positives.any(axis=1))
        cosines = np.einsum("nd,nd->n", anchors, positives)
        # Distinct anchors are numbered by codes; first_rows has the first pair of each anchor.
        encoded_keys = keys.dictionary_encode()
        codes = encoded_keys.indices.to_numpy().astype(np.int64)
        known = self._known_texts(units.number, encoded_keys.dictionary)
        _, first_rows = np.unique(codes, return_index=True)
        picked, done = np.full((len(codes), self.settings.negatives), NO_NEIGHBOUR, np.int64), 0
        searchable = np.flatnonzero(anchors[first_rows].any(axis=1))  # codes of anchors with a vector
        for batch in _batches(searchable, np.array([len(texts) for texts in known])):
            depth = self.settings.neighbours + max(len(known[code]) for code in batch)
            with faiss_threads(self.threads):
                scores, addresses = index.search(anchors[first_rows[batch]], depth)
            found = without_positives(Neighbours(addresses, scores), [known[code] for code in batch])
            query_of_code = np.full(len(first_rows), -1)  # index in the batch; -1 for other anchors
            query_of_code[batch] = np.arange(len(batch))
            rows = np.flatnonzero((query_of_code[codes] >= 0) & usable)
            queries = query_of_code[codes[rows]]
            picked[rows] = pick_negatives(
                Neighbours(found.addresses[queries], found.scores[queries]),
                cosines[rows],
                units.first + rows,
                self.settings,
                self.seed,
            )
            done += len(rows)
            progress(done)
        progress(done, last=True)
        return picked, usable

    def _known_texts(self, unit: int, anchors: pa.Array) -> list[np.ndarray]:
        """Return, for each of a unit's anchor keys, the addresses of texts that cannot be its negatives."""
        known = read_from_all(self.source.store, self.known, KNOWN_SCHEMA, unit, unit + 1)
        codes = pc.index_in(one_chunk(known["anchor"]), value_set=anchors).to_numpy().astype(np.int64)
        addresses = known["address"].to_numpy()
        order = np.argsort(codes, kind="stable")
        return np.split(addresses[order], np.searchsorted(codes[order], np.arange(1, len(anchors))))

    def _vectors(self, unit: VectorUnit) -> np.ndarray:
        """Return (n, d) float32 vectors of length one, row for row; zero for a text without a vector."""
        from pipeline.index.measure.truth import to_index_space

        column = self.source.open(unit).read(columns=["vector"])["vector"]
        vectors = np.zeros((unit.rows + len(unit.dropped), column.type.list_size), np.float32)
        vectors[row_of(row_addresses(unit))] = vector_matrix(column)
        return to_index_space(vectors, None)


def _batches(codes: np.ndarray, sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Yield batches of anchors, sorted by their number of known texts.

    A search must be deep enough for the anchor of its batch with the most known texts, so only the last
    batches are searched deeply.
    """
    ordered = codes[np.argsort(sizes[codes], kind="stable")]
    for start in range(0, len(ordered), _ANCHORS_PER_SEARCH):
        yield ordered[start : start + _ANCHORS_PER_SEARCH]
