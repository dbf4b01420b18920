"""Conversions between Arrow arrays, numpy arrays and texts that do not import pandas.

`pa.array` and `to_numpy` import pandas if it is installed, which takes a tenth of the time of `manta search`.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def arrow_of(values: np.ndarray) -> pa.Array:
    """Return (n,) numbers as an Arrow array without nulls that shares their memory."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def numpy_of(numbers: pa.Array) -> np.ndarray:
    """Return Arrow numbers without nulls as a read-only numpy array that shares their memory."""
    return np.from_dlpack(numbers)


def strings_of(texts: Sequence[str]) -> pa.Array:
    """Return texts as a large_string array. They must not contain lone surrogates."""
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    data = pa.py_buffer(b"".join(encoded))
    return pa.LargeStringArray.from_buffers(len(encoded), pa.py_buffer(offsets), data)
