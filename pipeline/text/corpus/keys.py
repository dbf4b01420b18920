"""The two tables of a corpus, in buckets of bounded size: its rows by id, and the rows of its units by text."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.store.base import Store
from pipeline.store.schema import KEY
from pipeline.store.units import FileRef
from pipeline.text.corpus.normalize import digests

BUCKET_ROWS = 1 << 18  # of one bucket at most, on average: some 25 MB with short string ids

TEXTS = pa.schema(
    [pa.field("text_key", KEY, nullable=False), pa.field("address", pa.int64(), nullable=False)]
)
COPIES = pa.schema(
    [pa.field("row", pa.int32(), nullable=False), pa.field("source", pa.int64(), nullable=False)]
)

Hashes = Callable[[pa.Table], np.ndarray]


def keys_schema(id_type: pa.DataType) -> pa.Schema:
    """Lines of a bucket, sorted by (id, file, row). carried: digest of the kept columns; address: of the row in its unit, null for a loser of a duplicate id."""
    return pa.schema(
        [
            pa.field("id", id_type, nullable=False),
            pa.field("text_key", KEY, nullable=False),
            pa.field("carried", KEY),
            pa.field("file", pa.string(), nullable=False),
            pa.field("row", pa.int64(), nullable=False),
            pa.field("address", pa.int64()),
        ]
    )


def by_id(lines: pa.Table) -> np.ndarray:
    """(n,) uint64: blake2b-64 of the id as text."""
    ids = _whole(lines["id"])
    text = ids if pa.types.is_string(ids.type) else ids.cast(pa.string())
    return np.frombuffer(digests(text, 8).buffers()[1], dtype=">u8", count=len(ids)).astype(np.uint64)


def by_text(lines: pa.Table) -> np.ndarray:
    """(n,) uint64: the first half of the text key, which is a hash already."""
    keys = _whole(lines["text_key"])
    words = np.frombuffer(keys.buffers()[1], dtype=">u8", count=2 * len(keys), offset=16 * keys.offset)
    return words[::2].astype(np.uint64)


def carried_keys(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """blake2b-128 over the kept columns of each row, by which a row whose text stayed is known to be changed; null without such columns."""
    if not names:
        return pa.nulls(rows.num_rows, KEY)
    parts: list[pa.ChunkedArray] = []
    for name in names:  # each value with its length before it: two rows that differ never read alike
        value = _as_text(rows[name])
        parts += [
            pc.fill_null(pc.binary_length(value).cast(pa.large_string()), "null"),
            pc.fill_null(value, ""),
        ]
    return digests(_whole(pc.binary_join_element_wise(*parts, pa.scalar(":", pa.large_string()))), 16)


def bucket_count(rows: int) -> int:
    """A power of two, so that buckets of two nights nest: at most BUCKET_ROWS rows in a bucket on average."""
    return 1 << max(0, (max(rows, 1) - 1) // BUCKET_ROWS).bit_length()


def read_part(
    store: Store, buckets: Sequence[FileRef], part: int, parts: int, hashes: Hashes
) -> pa.Table | None:
    """The `part`-th of `parts` buckets of a table that lies in as many or fewer (both powers of two); None for a table without buckets."""
    if not buckets:
        return None
    bucket = buckets[part * len(buckets) // parts]
    table = pq.read_table(store.open(bucket.path, bucket.sha256)).combine_chunks()
    if len(buckets) == parts or not table.num_rows:
        return table
    bits = np.uint64(parts.bit_length() - 1)
    return table.filter(pa.array((hashes(table) >> (np.uint64(64) - bits)) == part))


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(pa.large_string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # nested values, and bytes that are no text
        return pa.chunked_array(
            [
                pa.array(
                    [None if value is None else repr(value) for value in column.to_pylist()],
                    pa.large_string(),
                )
            ]
        )


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else pa.array([], column.type)
    )
