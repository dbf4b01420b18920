"""Copy the vectors of texts that were encoded on an earlier night.

That is possible because a text's vector depends only on the encoder and the text, not on its id or other
texts.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.units import CorpusUnit
from pipeline.store.rows.address import ordinal_of, row_of
from pipeline.store.rows.schema import check_space, vectors_at
from pipeline.text.tokens.tokens import TokenCounts

if TYPE_CHECKING:
    from pipeline.models.inference.windows import EncodedBatch


# Texts that an encoder of typical size encodes per second, by kind of device.
_TEXTS_PER_S = {"cpu": 300.0, "cuda": 30_000.0}


@dataclass(frozen=True, eq=False)
class KnownVectors:
    """Vectors that are already known for some rows of a unit."""

    rows: np.ndarray
    """(n,) int64, ascending"""
    vectors: np.ndarray
    """(n, d) float32"""
    numerics: Mapping[str, int]
    """number of vectors by numerics_id, "" if it is unknown"""

    def within(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows in [start, stop), counted from `start`, and their vectors."""
        low, high = np.searchsorted(self.rows, [start, stop])
        return self.rows[low:high] - start, self.vectors[low:high]


def is_copying_faster(store: Store, unit: VectorUnit, rows: int, device: str) -> bool:
    """Return whether reading the unit to copy `rows` vectors takes less time than encoding their texts.

    Args:
        device: kind of the encoder's device.
    """
    # `typical_read_s` counts the whole file, since its sha256 is checked
    return rows > store.typical_read_s(unit.bytes) * _TEXTS_PER_S[device]


class _Copy(NamedTuple):
    """Rows of a unit whose vectors are copied from one earlier unit."""

    source: VectorUnit
    source_rows: np.ndarray
    """(n,) int64: rows of the corpus unit from which `source` was encoded"""
    rows: np.ndarray
    """(n,) int64: rows of the unit that needs the vectors"""


def find_known(
    store: Store, unit: CorpusUnit, sources: Sequence[VectorUnit], space_id: str, device: str
) -> KnownVectors | None:
    """Read the vectors that the unit can copy from units of an earlier release; None if it can copy none.

    Args:
        sources: units of vectors in the space `space_id`; rows that are in none of them are left out.
        device: kind of the encoder's device. A unit is not opened if it has so few of the rows that encoding
            them takes less time than reading the unit (`is_copying_faster`).
    """
    if unit.copies is None or not sources:
        return None
    by_ordinal = {unit.ordinal: unit for unit in sources}
    table = pq.read_table(unit.copies.open(store))
    rows, addresses = table["row"].to_numpy().astype(np.int64), table["source"].to_numpy()
    ordinals, source_rows = ordinal_of(addresses), row_of(addresses)
    copies: list[_Copy] = []
    for ordinal in np.unique(ordinals).tolist():
        if source := by_ordinal.get(ordinal):
            usable = (ordinals == ordinal) & ~np.isin(source_rows, source.dropped)
            if usable.any() and is_copying_faster(store, source, int(usable.sum()), device):
                copies.append(_Copy(source, source_rows[usable], rows[usable]))
    if not copies:
        return None
    vectors = in_threads(lambda copy: _read_vectors(store, copy.source, copy.source_rows, space_id), copies)
    numerics: Counter[str] = Counter()
    for copy in copies:
        numerics[copy.source.numerics_id] += len(copy.rows)
    known_rows = np.concatenate([copy.rows for copy in copies])
    order = np.argsort(known_rows)
    return KnownVectors(known_rows[order], np.concatenate(vectors)[order], numerics)


def _read_vectors(store: Store, unit: VectorUnit, rows: np.ndarray, space_id: str) -> np.ndarray:
    """Read the vectors (n, d) of rows (n,) of the corpus unit from which `unit` was encoded."""
    # the unit has no vector for dropped rows
    positions = rows - np.searchsorted(np.asarray(unit.dropped, dtype=np.int64), rows)
    wanted, back = np.unique(positions, return_inverse=True)
    return vectors_at(check_space(pq.ParquetFile(unit.file.open(store)), unit.path, space_id), wanted)[back]


class _PendingBatch(NamedTuple):
    """A batch whose texts were handed to the encoder, and whose vectors have not come back yet."""

    texts: pa.Array
    is_encoded: np.ndarray
    """(texts,) bool: True for texts to encode, False for texts with a known vector"""
    known: np.ndarray
    """vectors of the texts that are not encoded, in their order"""


@dataclass
class ReusingEncoder:
    """Encoder that copies known vectors and encodes the other texts."""

    encoder: Any
    known: KnownVectors

    def encode_stream(
        self, batches: Iterable[pa.Array], on_rows: Callable[[int], None]
    ) -> Iterator["EncodedBatch"]:
        """Yield the vectors of each batch, in order.

        Copied texts are tokenized too, so that token counts do not depend on whether texts are copied.

        Args:
            batches: batches of texts.
            on_rows: called with the number of rows done so far, encoded or copied.
        """
        pending: deque[_PendingBatch] = deque()
        copied = 0

        def texts_to_encode() -> Iterator[pa.Array]:
            start = 0
            for texts in batches:
                rows, vectors = self.known.within(start, start + len(texts))
                start += len(texts)
                is_encoded = np.ones(len(texts), dtype=bool)
                is_encoded[rows] = False
                pending.append(_PendingBatch(texts, is_encoded, vectors))
                yield texts.filter(pa.array(is_encoded))

        def report_rows(rows: int) -> None:
            on_rows(rows + copied)

        for encoded in self.encoder.encode_stream(texts_to_encode(), report_rows):
            batch = pending.popleft()
            copied += len(batch.known)
            yield self._merge_known(encoded, batch) if len(batch.known) else encoded

    def _merge_known(self, encoded: "EncodedBatch", batch: _PendingBatch) -> "EncodedBatch":
        """Return the vectors of all texts of a batch; `encoded` has no vectors of the copied texts."""
        is_encoded = batch.is_encoded
        known_counts = self.encoder.count_tokens(batch.texts.filter(pa.array(~is_encoded)).to_pylist())
        counts = TokenCounts(
            *(
                _merge_rows(of_encoded, is_encoded, of_known)
                for of_encoded, of_known in zip(encoded.counts, known_counts, strict=True)
            )
        )
        return replace(
            encoded,
            vectors=_merge_rows(encoded.vectors, is_encoded, batch.known),
            bad=_merge_rows(encoded.bad, is_encoded, np.zeros(len(batch.known), dtype=bool)),
            counts=counts,
        )


def _merge_rows(encoded: np.ndarray, is_encoded: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Merge the values of encoded and copied rows; is_encoded (n,) is True for encoded rows."""
    merged = np.empty((len(is_encoded), *encoded.shape[1:]), encoded.dtype)
    merged[is_encoded], merged[~is_encoded] = encoded, known
    return merged
