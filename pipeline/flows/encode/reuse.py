"""Vectors of texts that were encoded on an earlier night are copied: under one encoder a text has one vector,
whatever its id and neighbours.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.flows.rows import Placed, vectors_at
from pipeline.store.base import Store
from pipeline.store.schema import checked_space
from pipeline.store.units import CorpusUnit, UnitRecord


@dataclass(frozen=True, eq=False)
class KnownVectors:
    """Vectors (n, d) float32 of rows (n,) int64, ascending, of one unit. numerics: how many of them each
    arithmetic made.
    """

    rows: np.ndarray
    vectors: np.ndarray
    numerics: Mapping[str, int]

    @classmethod
    def none(cls, dim: int) -> "KnownVectors":
        return cls(np.zeros(0, np.int64), np.zeros((0, dim), np.float32), {})

    def within(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """(rows counted from `start`, their vectors) of those in [start, stop)."""
        low, high = np.searchsorted(self.rows, [start, stop])
        return self.rows[low:high] - start, self.vectors[low:high]


def find_known(
    store: Store, unit: CorpusUnit, sources: Mapping[int, Placed], space_id: str, dim: int
) -> KnownVectors:
    """What the unit can copy out of `sources` (units of vectors in this space, by ordinal).

    A row that is in none of them is left to be encoded.
    """
    if unit.copies is None or not sources:
        return KnownVectors.none(dim)
    table = pq.read_table(unit.copies.open(store))
    rows, addresses = table["row"].to_numpy().astype(np.int64), table["source"].to_numpy()
    found: list[tuple[np.ndarray, np.ndarray]] = []
    numerics: dict[str, int] = {}
    for ordinal in np.unique(addresses >> 32).tolist():
        if (placed := sources.get(ordinal)) is None:
            continue
        mine = addresses >> 32 == ordinal
        wanted, at = rows[mine], addresses[mine] & 0xFFFFFFFF
        usable = ~np.isin(at, placed.unit.dropped)
        if usable.any():
            found.append((wanted[usable], _read(store, placed.unit, at[usable], space_id)))
            name = placed.unit.numerics_id or ""
            numerics[name] = numerics.get(name, 0) + int(usable.sum())
    if not found:
        return KnownVectors.none(dim)
    rows, vectors = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(rows)
    return KnownVectors(rows[order], vectors[order], numerics)


def _read(store: Store, unit: UnitRecord, rows: np.ndarray, space_id: str) -> np.ndarray:
    """The vectors of those rows of the corpus unit behind `unit`, in the order given."""
    places = rows - np.searchsorted(np.asarray(unit.dropped, dtype=np.int64), rows)
    source = checked_space(pq.ParquetFile(unit.file.open(store)), unit.path, space_id)
    asked, back = np.unique(places, return_inverse=True)
    return vectors_at(source, asked)[back]


@dataclass
class Knowing:
    """Stands in for an encoder's `encode_stream`: what is known is copied, the rest encoded."""

    encoder: Any
    known: KnownVectors

    def encode_stream(self, batches: Iterable[pa.Array], tell: Callable[[int], None]) -> Iterator[Any]:
        """One Encoded per batch, in order.

        Copied texts are tokenized all the same, so that every count is that of an encoded unit.
        """
        waiting: deque[tuple[pa.Array, np.ndarray, np.ndarray]] = deque()
        copied = 0

        def unknown() -> Iterator[pa.Array]:
            start = 0
            for texts in batches:
                places, vectors = self.known.within(start, start + len(texts))
                start += len(texts)
                waiting.append((texts, places, vectors))
                rest = np.ones(len(texts), dtype=bool)
                rest[places] = False
                yield texts.filter(pa.array(rest))

        def both(rows: int) -> None:
            tell(rows + copied)

        for encoded in self.encoder.encode_stream(unknown(), both):
            copied += len(waiting[0][1])
            yield self._joined(encoded, *waiting.popleft())

    def _joined(self, encoded: Any, texts: pa.Array, places: np.ndarray, vectors: np.ndarray) -> Any:
        if not len(places):
            return encoded
        rest = np.ones(len(texts), dtype=bool)
        rest[places] = False
        known = self.encoder.count_tokens(pc.take(texts, pa.array(places)).to_pylist())
        counts = type(known)(
            *(_merged(one, rest, other) for one, other in zip(encoded.counts, known, strict=True))
        )
        return type(encoded)(
            _merged(encoded.vectors, rest, vectors),
            _merged(encoded.bad, rest, np.zeros(len(places), dtype=bool)),
            counts,
        )


def _merged(encoded: np.ndarray, rest: np.ndarray, known: np.ndarray) -> np.ndarray:
    merged = np.empty((len(rest), *encoded.shape[1:]), encoded.dtype)
    merged[rest], merged[~rest] = encoded, known
    return merged
