"""Look up the texts of rows by address, in the corpus units of a release."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.rows.address import ordinal_of, row_of
from pipeline.store.rows.arrays import arrow_of, strings_of

_BATCH_ROWS = 4_096  # rows decoded at once: few, because reading stops after the last wanted row
_REMEDY = "search without texts (--no-texts), restore the units, or roll back"


class MissingTexts(DataError):
    """The corpus unit of a row is missing or damaged."""


class Texts:
    """A table from addresses to texts.

    A remote unit is copied to this machine once, checked, and cached. Threads may share an object.
    """

    def __init__(self, store: Store, units: Sequence[VectorUnit], verify: bool = True) -> None:
        self._store, self._units, self._verify = store, units, verify

    @cached_property
    def _by_ordinal(self) -> dict[int, VectorUnit]:
        return {unit.ordinal: unit for unit in self._units}

    def take(self, addresses: np.ndarray) -> pa.Array:
        """Return the texts of `addresses` (n,) int64, in their order, as (n,) large_string.

        Raises:
            MissingTexts: a unit is missing from the release or the store, or it is damaged.
        """
        if not len(addresses):
            return strings_of([])
        ordinals, rows = ordinal_of(addresses), row_of(addresses)
        positions = {int(ordinal): np.flatnonzero(ordinals == ordinal) for ordinal in np.unique(ordinals)}
        texts = in_threads(lambda ordinal: self._read_unit(ordinal, rows[positions[ordinal]]), positions)
        return pa.concat_arrays(texts).take(arrow_of(np.argsort(np.concatenate([*positions.values()]))))

    def _read_unit(self, ordinal: int, rows: np.ndarray) -> pa.Array:
        """Return the texts of `rows` of one unit, in their order."""
        if (unit := self._by_ordinal.get(ordinal)) is None:
            raise MissingTexts(
                "release", f"corpus unit {ordinal}, which an answer is from", "no such unit", _REMEDY
            )
        where = self._store.uri_of(unit.corpus.path)
        try:
            file = self._store.local(unit.corpus.path, unit.corpus.sha256 if self._verify else None)
            wanted, order = np.unique(rows, return_inverse=True)
            texts = _read_texts(pq.ParquetFile(file), wanted)
        except FileNotFoundError:
            raise MissingTexts(where, "a corpus unit of the release", "no such file", _REMEDY) from None
        except (pa.ArrowException, KeyError) as error:
            raise MissingTexts(
                where, "a Parquet file with a column text", " ".join(str(error).split()), _REMEDY
            ) from None
        if len(texts) != len(wanted):
            raise MissingTexts(where, f"a row with number {wanted[-1]:,}", "fewer rows", _REMEDY)
        return texts.take(arrow_of(order))


def _read_texts(file: pq.ParquetFile, wanted: np.ndarray) -> pa.Array:
    """Read the texts of the rows `wanted` (n,), which must be ascending and unique."""
    texts, start = [], 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=["text"]):
        low, high = np.searchsorted(wanted, [start, start + len(batch)])
        if low < high:
            texts.append(pc.take(batch["text"], arrow_of(wanted[low:high] - start)).cast(pa.large_string()))
        if high == len(wanted):
            break
        start += len(batch)
    return pa.concat_arrays(texts) if texts else strings_of([])
