"""Copy the vectors of texts that were encoded on an earlier night.

With one encoder a text has one vector, whatever its id and neighbours.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.flows.rows import PlacedUnit, vectors_at
from pipeline.store.address import ordinal_of, row_of
from pipeline.store.base import Store
from pipeline.store.schema import checked_space
from pipeline.store.units import CorpusUnit, UnitRecord


@dataclass(frozen=True, eq=False)
class KnownVectors:
    """Vectors (n, d) float32 of rows (n,) int64, ascending, of one unit.

    numerics: number of these vectors by the numerics that computed them.
    """

    rows: np.ndarray
    vectors: np.ndarray
    numerics: Mapping[str, int]

    def within(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows in [start, stop), counted from `start`, and their vectors."""
        low, high = np.searchsorted(self.rows, [start, stop])
        return self.rows[low:high] - start, self.vectors[low:high]


def find_known(
    store: Store, unit: CorpusUnit, sources: Sequence[PlacedUnit], space_id: str
) -> KnownVectors | None:
    """Read the vectors that the unit can copy from `sources`, units in this space; None without any.

    Rows that no source has are left out.
    """
    if unit.copies is None or not sources:
        return None
    by_ordinal = {placed.ordinal: placed.unit for placed in sources}
    table = pq.read_table(unit.copies.open(store))
    rows, addresses = table["row"].to_numpy().astype(np.int64), table["source"].to_numpy()
    found: list[tuple[np.ndarray, np.ndarray]] = []
    numerics: Counter[str] = Counter()
    for ordinal in by_ordinal.keys() & set(ordinal_of(addresses).tolist()):
        source, source_rows = by_ordinal[ordinal], row_of(addresses)
        usable = (ordinal_of(addresses) == ordinal) & ~np.isin(source_rows, source.dropped)
        if usable.any():
            found.append((rows[usable], _read(store, source, source_rows[usable], space_id)))
            numerics[source.numerics_id or ""] += int(usable.sum())
    if not found:
        return None
    rows, vectors = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(rows)
    return KnownVectors(rows[order], vectors[order], numerics)


def _read(store: Store, unit: UnitRecord, rows: np.ndarray, space_id: str) -> np.ndarray:
    """Return the vectors (n, d) of rows (n,) of the corpus unit that `unit` was made from."""
    positions = rows - np.searchsorted(np.asarray(unit.dropped, dtype=np.int64), rows)
    wanted, back = np.unique(positions, return_inverse=True)
    return vectors_at(checked_space(pq.ParquetFile(unit.file.open(store)), unit.path, space_id), wanted)[back]


@dataclass
class ReusingEncoder:
    """Encoder that copies known vectors and encodes the other texts."""

    encoder: Any
    known: KnownVectors

    def encode_stream(self, batches: Iterable[pa.Array], on_rows: Callable[[int], None]) -> Iterator[Any]:
        """Yield one Encoded per batch, in order.

        Copied texts are tokenized too, so that every count is that of an encoded unit.
        """
        waiting: deque[tuple[pa.Array, np.ndarray, np.ndarray]] = deque()
        copied = 0

        def unknown() -> Iterator[pa.Array]:
            start = 0
            for texts in batches:
                rows, vectors = self.known.within(start, start + len(texts))
                start += len(texts)
                rest = np.ones(len(texts), dtype=bool)
                rest[rows] = False
                waiting.append((texts, rest, vectors))
                yield texts.filter(pa.array(rest))

        def count(rows: int) -> None:
            on_rows(rows + copied)

        for encoded in self.encoder.encode_stream(unknown(), count):
            texts, rest, vectors = waiting.popleft()
            copied += len(vectors)
            yield self._joined(encoded, texts, rest, vectors) if len(vectors) else encoded

    def _joined(self, encoded: Any, texts: pa.Array, rest: np.ndarray, vectors: np.ndarray) -> Any:
        """Return the Encoded of all texts. rest: mask (n,) of the texts of `encoded`."""
        counts = self.encoder.count_tokens(texts.filter(pa.array(~rest)).to_pylist())
        return type(encoded)(
            _merged(encoded.vectors, rest, vectors),
            _merged(encoded.bad, rest, np.zeros(len(vectors), dtype=bool)),
            type(counts)(
                *(_merged(one, rest, other) for one, other in zip(encoded.counts, counts, strict=True))
            ),
        )


def _merged(encoded: np.ndarray, rest: np.ndarray, known: np.ndarray) -> np.ndarray:
    merged = np.empty((len(rest), *encoded.shape[1:]), encoded.dtype)
    merged[rest], merged[~rest] = encoded, known
    return merged
