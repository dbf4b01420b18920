"""Program that reads the deletion vectors of a Delta table, with limited memory.

The library makes a value for each row up to the last one that a vector lists, and aborts its process if there
is no memory for them.
"""

import json
import sys
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from pipeline.cores import limit_memory

SCHEMA = pa.schema([("path", pa.string()), ("rows", pa.large_list(pa.int64()))])
"""Schema of the output, a stream of Arrow: the URI of each data file with a vector, and its deleted rows."""


def write_rows(uri: str, version: int, options: Mapping[str, str], memory: int) -> None:
    """Write the deleted rows of each data file to the standard output.

    Args:
        uri: root of the table, as the library opens it.
        options: the library's options for the storage.
        memory: bytes that may be allocated from now on.
    """
    from deltalake import DeltaTable

    limit_memory(memory)
    vectors = pa.RecordBatchReader.from_stream(DeltaTable(uri, version, dict(options)).deletion_vectors())
    with pa.ipc.new_stream(sys.stdout.buffer, SCHEMA) as stream:
        for batch in vectors:
            for path, kept in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
                rows = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
                lists = pa.LargeListArray.from_arrays([0, len(rows)], pa.array(rows, pa.int64()))
                stream.write_batch(pa.record_batch([pa.array([path]), lists], schema=SCHEMA))


if __name__ == "__main__":
    write_rows(*json.loads(sys.argv[1]))
