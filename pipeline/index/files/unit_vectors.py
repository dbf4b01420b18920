"""Read the raw vectors of rows by address, from the units of a release."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.store.files.base import Store, in_threads
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.rows.address import ordinal_of, row_of
from pipeline.store.rows.schema import check_space, vectors_at

# Largest number of bytes of units that are read for the exact search of one filter: 2.7 s at 100 MB/s.
MAX_READ_BYTES = 256 << 20


class UnitVectors:
    """A table from addresses to raw vectors. Threads may share an object."""

    def __init__(self, store: Store, units: Sequence[VectorUnit], verify: bool = True) -> None:
        self._store, self._units, self._verify = store, units, verify

    @cached_property
    def _by_ordinal(self) -> dict[int, VectorUnit]:
        return {unit.ordinal: unit for unit in self._units}

    def read_bytes(self, addresses: np.ndarray) -> int | None:
        """Return the size of the units that hold `addresses`; None if a unit is not of the release."""
        units = [self._by_ordinal.get(ordinal) for ordinal in np.unique(ordinal_of(addresses)).tolist()]
        return None if None in units else sum(unit.bytes for unit in units if unit is not None)

    def take(self, addresses: np.ndarray) -> np.ndarray:
        """Return the raw vectors (n, d) float32 of `addresses` (n,) int64, ascending.

        Raises:
            DataError: a unit is missing or damaged.
        """
        ordinals, rows = ordinal_of(addresses), row_of(addresses)
        return np.concatenate(
            in_threads(
                lambda ordinal: self._read_unit(self._by_ordinal[ordinal], rows[ordinals == ordinal]),
                np.unique(ordinals).tolist(),
            )
        )

    def _read_unit(self, unit: VectorUnit, rows: np.ndarray) -> np.ndarray:
        where, remedy = self._store.uri_of(unit.path), "restore the unit, or roll back"
        try:
            file = pq.ParquetFile(
                self._store.local(unit.path, unit.sha256 if self._verify else None), memory_map=True
            )
            check_space(file, where, unit.space_id)
            # rows are numbered as in the corpus unit; rows without a vector are not in this unit
            return vectors_at(file, rows - np.searchsorted(np.asarray(unit.dropped, dtype=np.int64), rows))
        except FileNotFoundError:
            raise DataError(where, "a unit of the release", "no such file", remedy) from None
        except (pa.ArrowException, KeyError, IndexError, ValueError) as error:
            found = " ".join(str(error).split())
            raise DataError(where, "a Parquet file with a column vector", found, remedy) from None
