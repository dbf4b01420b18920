"""Line numbers of a key table: the number of a row in its file; for a chunk, row and chunk combined.

The number of a chunk has bit 62 set, which no number of a row has, then 38 bits for the row and 24 for the
chunk. So the line numbers of a file ascend with its rows, and with the chunks of each row.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_IS_CHUNK = np.int64(1) << np.int64(62)
_CHUNK_BITS = 24
MAX_CHUNKS = 1 << _CHUNK_BITS
"""Chunks that a row may have."""


def chunk_lines(rows: np.ndarray, chunks: np.ndarray) -> np.ndarray:
    """Return (n,) int64: the line number of each chunk, from its row's number and its own number in the row.

    >>> lines = chunk_lines(np.array([7, 7]), np.array([0, 1]))
    >>> rows_of_lines(lines).tolist(), are_first(lines).tolist(), are_chunks(lines)
    ([7, 7], [True, False], True)
    """
    return _IS_CHUNK | rows.astype(np.int64) << _CHUNK_BITS | chunks


def are_chunks(lines: np.ndarray) -> bool:
    """Return whether these are line numbers (n,) of chunks; a table has lines of one kind only."""
    return bool(len(lines)) and bool(lines[0] & _IS_CHUNK)


def rows_of_lines(lines: np.ndarray) -> np.ndarray:
    """Return (n,) int64: the number of each line's row; for a chunk, the row that it was cut from."""
    return (lines ^ _IS_CHUNK) >> _CHUNK_BITS if are_chunks(lines) else lines


def are_first(lines: np.ndarray) -> np.ndarray:
    """Return (n,) bool: True for the first chunk of each row, and for rows that are not cut."""
    if not are_chunks(lines):
        return np.ones(len(lines), dtype=bool)
    return (lines & (MAX_CHUNKS - 1)) == 0


def parents_of(ids: pa.ChunkedArray, lines: np.ndarray) -> pa.ChunkedArray:
    """Return the id of each line's row: a chunk's id without its ending #<number>."""
    return pc.replace_substring_regex(ids, "#[0-9]+$", "") if are_chunks(lines) else ids


def dense_numbers(*numbers: np.ndarray) -> list[np.ndarray]:
    """Renumber the lines of chunks by small numbers, equal lines equally; leave other numbers unchanged.

    `line_identities` has no room for the numbers of chunks.
    """
    if not any(map(are_chunks, numbers)):
        return list(numbers)
    _, dense = np.unique(np.concatenate(numbers), return_inverse=True)
    return np.split(dense.astype(np.int64), np.cumsum([len(each) for each in numbers])[:-1])
