"""Dead rows: rows that units still hold although they are no longer live.

Their addresses are stored ascending in one Parquet file and take eight bytes each in memory.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.address import row_of, to_addresses
from pipeline.store.base import Store
from pipeline.store.once import table_by_content
from pipeline.store.stored import FileRef

_SCHEMA = pa.schema([pa.field("address", pa.int64(), nullable=False)])


@dataclass(frozen=True, eq=False)
class Dead:
    """The addresses of dead rows."""

    addresses: np.ndarray
    """(n,) int64, ascending, unique"""

    @classmethod
    def none(cls) -> "Dead":
        """Return an empty set of addresses."""
        return cls(np.zeros(0, dtype=np.int64))

    @classmethod
    def load(cls, store: Store, reference: FileRef | None) -> "Dead":
        """Load the addresses that `store_in` wrote; an empty set if `reference` is None."""
        return cls.none() if reference is None else cls(read_addresses(store, reference))

    def __len__(self) -> int:
        return len(self.addresses)

    def rows_of(self, ordinal: int) -> np.ndarray:
        """Return the dead rows of unit `ordinal`, (n,) int64, ascending."""
        low, high = np.searchsorted(self.addresses, to_addresses(np.array([ordinal, ordinal + 1]), 0))
        return row_of(self.addresses[low:high])

    def holds(self, addresses: np.ndarray) -> np.ndarray:
        """Return a mask of `addresses`, in any order: True for dead rows."""
        return np.isin(addresses, self.addresses)

    def store_in(self, store: Store, stem: str) -> FileRef | None:
        """Store the addresses in a file named `stem` and its digest. Returns None without addresses."""
        return write_addresses(store, self.addresses, stem) if len(self) else None


def write_addresses(store: Store, addresses: np.ndarray, stem: str) -> FileRef:
    """Store addresses, (n,) int64, as the only column of a Parquet file named `stem` and its digest."""
    table = pa.table({"address": pa.array(addresses, pa.int64())}, schema=_SCHEMA)
    return table_by_content(store, table, stem, compression="zstd", use_dictionary=False)


def read_addresses(store: Store, reference: FileRef) -> np.ndarray:
    """Read the addresses that `write_addresses` stored, (n,) int64. Raises DataError for a changed file."""
    return pq.read_table(reference.open(store))["address"].to_numpy()
