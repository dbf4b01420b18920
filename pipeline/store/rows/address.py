"""Row addresses: 64-bit integers, each of which identifies one row and is never reused.

The upper half is the ordinal of the unit, the lower half the row's number in the corpus unit.
"""

from typing import TypeVar

import numpy as np

Integers = TypeVar("Integers", int, np.ndarray)

_ROW_BITS = 32
_ROW_MASK = (1 << _ROW_BITS) - 1


def address_of(ordinal: int, row: int) -> int:
    """Return the address of one row."""
    return ordinal << _ROW_BITS | row


def to_addresses(ordinals: int | np.ndarray, rows: int | np.ndarray) -> np.ndarray:
    """Return the addresses of rows, (n,) int64. Either argument may be one number for all rows."""
    return np.asarray(ordinals, dtype=np.int64) << _ROW_BITS | np.asarray(rows, dtype=np.int64)


def ordinal_of(addresses: Integers) -> Integers:
    """Return the ordinal of the unit, for one address or for an array of addresses."""
    return addresses >> _ROW_BITS


def row_of(addresses: Integers) -> Integers:
    """Return the row's number in the corpus unit, for one address or for an array of addresses."""
    return addresses & _ROW_MASK


def describe(address: int) -> str:
    """Return the text of an address for messages: unit 3, row 17."""
    return f"unit {ordinal_of(address)}, row {row_of(address)}"
