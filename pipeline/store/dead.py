"""Rows that units still hold and that are no longer live: their addresses, ascending, in one Parquet file. Eight bytes a row in memory."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.base import Store
from pipeline.store.units import FileRef, stored_by_content

_SCHEMA = pa.schema([pa.field("address", pa.int64(), nullable=False)])


@dataclass(frozen=True, eq=False)
class Dead:
    """addresses (n,) int64, ascending, each once: ordinal of the unit << 32 | row of the corpus unit."""

    addresses: np.ndarray

    @classmethod
    def none(cls) -> "Dead":
        return cls(np.zeros(0, dtype=np.int64))

    @classmethod
    def load(cls, store: Store, reference: FileRef | None) -> "Dead":
        """What `store_in` wrote; none where there is no file."""
        return cls.none() if reference is None else cls(read_addresses(store, reference))

    def __len__(self) -> int:
        return len(self.addresses)

    def rows_of(self, ordinal: int) -> np.ndarray:
        """Rows (int64, ascending) of that unit that are dead."""
        low, high = np.searchsorted(self.addresses, [np.int64(ordinal) << 32, np.int64(ordinal + 1) << 32])
        return np.asarray(self.addresses[low:high] & 0xFFFFFFFF)

    def holds(self, addresses: np.ndarray) -> np.ndarray:
        """Mask of `addresses` (any order) that are dead."""
        return np.isin(addresses, self.addresses)

    def store_in(self, store: Store, stem: str) -> FileRef | None:
        """The addresses as a file named by its content, `stem` before it; None for none."""
        return write_addresses(store, self.addresses, stem) if len(self) else None


def write_addresses(store: Store, addresses: np.ndarray, stem: str) -> FileRef:
    """A Parquet file with the one column address."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"address": pa.array(addresses, pa.int64())}, schema=_SCHEMA),
        sink,
        compression="zstd",
        use_dictionary=False,
    )
    return stored_by_content(store, sink.getvalue().to_pybytes(), stem, ".parquet", rows=len(addresses))


def read_addresses(store: Store, reference: FileRef) -> np.ndarray:
    """(n,) int64; DataError for a file that is not the one meant."""
    return pq.read_table(store.open(reference.path, reference.sha256))["address"].to_numpy()
