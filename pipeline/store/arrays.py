"""Arrow arrays from numpy arrays, from texts and back, without pandas.

`pa.array` and `to_numpy` import pandas first where it is installed: a tenth of the time of `manta search`.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def arrow_of(values: np.ndarray) -> pa.Array:
    """(n,) numbers as an Arrow array over the same memory, without nulls."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def numpy_of(numbers: pa.Array) -> np.ndarray:
    """Arrow numbers without nulls as a read-only numpy array over the same memory."""
    return np.from_dlpack(numbers)


def strings_of(texts: Sequence[str]) -> pa.Array:
    """Texts without lone surrogates as large_string."""
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(one) for one in encoded], out=offsets[1:])
    data = pa.py_buffer(b"".join(encoded))
    return pa.LargeStringArray.from_buffers(len(encoded), pa.py_buffer(offsets), data)
