"""The tables of a corpus, in buckets of bounded size: its rows by id, and the rows of its units by text."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.store.arrays import one_chunk
from pipeline.store.base import Store
from pipeline.store.schema import KEY
from pipeline.store.stored import FileRef
from pipeline.text.corpus.normalize import blake2b_digests

BUCKET_ROWS = 1 << 18  # average rows of a bucket at most: some 25 MB with short string ids

_TEXT_KEY = pa.field("text_key", KEY, nullable=False)
TEXTS = pa.schema([_TEXT_KEY, pa.field("address", pa.int64(), nullable=False)])
"""rows of units by text"""
COPIES = pa.schema(
    [pa.field("row", pa.int32(), nullable=False), pa.field("source", pa.int64(), nullable=False)]
)
"""rows of a new unit whose text has been encoded before, with the address of that earlier row"""

Hashes = Callable[[pa.Table], np.ndarray]


def keys_schema(id_type: pa.DataType) -> pa.Schema:
    """Schema of the rows by id, sorted by (id, file, row) within a bucket.

    carried: digest of the kept columns; address: of the row in its unit, null for a row that lost to an
    earlier row with its id.
    """
    return pa.schema(
        [
            pa.field("id", id_type, nullable=False),
            _TEXT_KEY,
            pa.field("carried", KEY),
            pa.field("file", pa.string(), nullable=False),
            pa.field("row", pa.int64(), nullable=False),
            pa.field("address", pa.int64()),
        ]
    )


def id_hashes(lines: pa.Table) -> np.ndarray:
    """(n,) uint64: blake2b-64 of each id as text."""
    digests = blake2b_digests(one_chunk(lines["id"]).cast(pa.string()), 8)
    return np.frombuffer(digests.buffers()[1], dtype=">u8", count=len(digests)).astype(np.uint64)


def text_hashes(lines: pa.Table) -> np.ndarray:
    """(n,) uint64: the first half of each text key, which is a hash already."""
    keys = one_chunk(lines["text_key"])
    words = np.frombuffer(keys.buffers()[1], dtype=">u8", count=2 * len(keys), offset=16 * keys.offset)
    return words[::2].astype(np.uint64)


def carried_keys(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """blake2b-128 over the kept columns of each row; null if there are no kept columns.

    It shows whether the kept columns of a row with the same text have changed.
    """
    if not names:
        return pa.nulls(rows.num_rows, KEY)
    parts: list[pa.ChunkedArray] = []
    for name in names:  # each value after its length, so that rows that differ never give equal strings
        value = _as_text(rows[name])
        length = pc.binary_length(value).cast(pa.large_string())
        parts += [pc.fill_null(length, "null"), pc.fill_null(value, "")]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(":", pa.large_string()))
    return blake2b_digests(one_chunk(joined), 16)


def bucket_count(rows: int) -> int:
    """Number of buckets for `rows` rows, so that a bucket has at most BUCKET_ROWS rows on average.

    A power of two, so that the buckets of two nights nest.
    """
    return 1 << max(0, (max(rows, 1) - 1) // BUCKET_ROWS).bit_length()


def read_bucket(
    store: Store, buckets: Sequence[FileRef], part: int, parts: int, hashes: Hashes
) -> pa.Table | None:
    """Read one bucket of a table that is stored in as many or fewer buckets (both powers of two).

    Args:
        store: the corpus's store.
        buckets: the stored buckets.
        part: index of the bucket wanted.
        parts: number of buckets that the table is divided into now.
        hashes: hash of each row, by which the table was divided.

    Returns:
        The rows of the bucket; None for a table without buckets.
    """
    if not buckets:
        return None
    table = pq.read_table(buckets[part * len(buckets) // parts].open(store)).combine_chunks()
    if len(buckets) == parts or not table.num_rows:
        return table
    bits = np.uint64(parts.bit_length() - 1)
    return table.filter(pa.array((hashes(table) >> (np.uint64(64) - bits)) == part))


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(pa.large_string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # nested values, and bytes that are not UTF-8
        texts = [None if value is None else repr(value) for value in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.large_string())])
