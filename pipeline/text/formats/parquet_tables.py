"""Read row groups of a Parquet file in batches that fit in memory, however large the rows are."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_MAX_ROWS, _MAX_BYTES = 16_384, 32 << 20  # limits of one table that `read_tables` yields
_FIRST_ROWS = 16  # in the first step: the footer does not show how large decoded dictionary values are
_MAX_STEP_ROWS = 1_024  # in later steps; the size of the rows is checked after each step
_SHRINK_FACTOR = 2  # a step of more than this many times _MAX_BYTES makes the following steps smaller


def read_tables(
    reader: pq.ParquetFile, dictionary_reader: pq.ParquetFile, wanted: list[str], groups: range
) -> Iterator[pa.Table]:
    """Yield all rows in order, in tables of at most _MAX_ROWS rows and about _MAX_BYTES bytes."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for step in _read_steps(reader, dictionary_reader, wanted, groups):
        for batch, batch_size in _split_by_bytes(step):
            if pending and (rows + len(batch) > _MAX_ROWS or size + batch_size > _MAX_BYTES):
                yield pa.Table.from_batches(pending)
                pending, rows, size = [], 0, 0
            pending.append(batch)
            rows, size = rows + len(batch), size + batch_size
    if pending:
        yield pa.Table.from_batches(pending)


def _split_by_bytes(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows in parts of about _MAX_BYTES, each with its size in bytes when it is decoded.

    A decoded part holds a dictionary's value once for every row that has it.
    """
    coded = [column for column in batch.columns if pa.types.is_dictionary(column.type)]
    if not coded:
        yield batch, batch.nbytes
        return
    without_values = sum(column.indices.nbytes for column in coded)
    without_values += sum(
        column.nbytes for column in batch.columns if not pa.types.is_dictionary(column.type)
    )
    row_sizes = without_values // len(batch) + sum(map(_value_lengths, coded))
    ends, start = np.cumsum(row_sizes), 0
    while start < len(batch):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _MAX_BYTES, side="right")))
        yield batch.slice(start, stop - start), int(ends[stop - 1]) - before
        start = stop


def _value_lengths(column: pa.DictionaryArray) -> np.ndarray:
    """Return (n,) int64: the size in bytes of each row's value; 0 for null and for values of fixed width.

    The time depends on the number of rows, not on the size of the dictionary.
    """
    values, indices = column.dictionary, column.indices
    if not len(values) or not has_offsets(values.type):
        return np.zeros(len(column), np.int64)
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    offsets = np.frombuffer(values.buffers()[1], np.int64 if wide else np.int32)[values.offset :]
    filled = pc.fill_null(indices.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    lengths = offsets[filled + 1].astype(np.int64) - offsets[filled]
    return np.where(indices.is_valid().to_numpy(zero_copy_only=False), lengths, 0)


def has_offsets(kind: pa.DataType) -> bool:
    """Return whether a type is string or binary with values of variable length."""
    types = pa.types
    checks = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(check(kind) for check in checks)


def _read_steps(
    reader: pq.ParquetFile, dictionary_reader: pq.ParquetFile, wanted: list[str], groups: range
) -> Iterator[pa.RecordBatch]:
    """Yield all rows in order, in batches that are expected to fit in memory.

    Arrow copies the dictionary of a dictionary column into every batch. Therefore these columns have their
    own reader, which reads large batches even if the other columns allow small ones only.
    """
    types = dict(zip(reader.schema_arrow.names, reader.schema_arrow.types, strict=True))
    coded = [name for name in wanted if pa.types.is_dictionary(types[name])]
    plain = [name for name in wanted if name not in coded]
    plain_steps = _plain_steps(reader, plain, groups)
    dictionary_steps = _dictionary_steps(dictionary_reader, coded, groups)
    if coded and plain:
        yield from _join(plain_steps, dictionary_steps)
    else:
        yield from plain_steps if plain else dictionary_steps


def _join(left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join the columns of two streams of batches, up to the last row that both have.

    A batch ends where a batch of either stream ends.
    """
    a, b = next(left, None), next(right, None)
    while a is not None and b is not None:
        rows = min(len(a), len(b))
        columns = [*a.slice(0, rows).columns, *b.slice(0, rows).columns]
        yield pa.RecordBatch.from_arrays(columns, names=[*a.schema.names, *b.schema.names])
        a = a.slice(rows) if rows < len(a) else next(left, None)
        b = b.slice(rows) if rows < len(b) else next(right, None)


def _dictionary_steps(reader: pq.ParquetFile, wanted: list[str], groups: range) -> Iterator[pa.RecordBatch]:
    """Yield all rows in order, as many at once as should fit by the average size of a row."""
    indices = column_indices(reader.metadata, wanted)
    for group in groups:
        size = _batch_rows(reader.metadata.row_group(group), indices)
        batches = reader.iter_batches(batch_size=size, row_groups=[group], columns=wanted)
        yield from (batch for batch in batches if len(batch))


def _plain_steps(reader: pq.ParquetFile, wanted: list[str], groups: range) -> Iterator[pa.RecordBatch]:
    """Yield all rows in order: a few first, then as many at once as should fit, fewer if rows become larger.

    Arrow reads a row group in batches of one size. For another size the row group is read again from its
    start, and the rows that were already yielded are skipped. After the first step the size only falls within
    a row group, by half or more each time, so that this happens a dozen times at most.
    """
    fitting_rows, is_first, indices = _FIRST_ROWS, True, column_indices(reader.metadata, wanted)
    for group in groups:
        metadata = reader.metadata.row_group(group)
        max_rows = min(_MAX_STEP_ROWS, _batch_rows(metadata, indices))
        step_rows = min(fitting_rows, max_rows)
        done = 0
        while done < metadata.num_rows:
            skip = done
            for batch in reader.iter_batches(batch_size=step_rows, row_groups=[group], columns=wanted):
                new = batch.slice(min(skip, len(batch)))
                skip -= len(batch) - len(new)
                if not len(new):
                    continue
                yield new
                done += len(new)
                fitting_rows = max(1, min(_MAX_STEP_ROWS, _MAX_BYTES * len(batch) // max(batch.nbytes, 1)))
                is_too_large = fitting_rows < step_rows and batch.nbytes > _SHRINK_FACTOR * _MAX_BYTES
                if is_first or is_too_large:
                    step_rows, is_first = min(fitting_rows, max_rows), False
                    break
            else:
                break  # the end of the row group; `read` reports rows that are missing


def _batch_rows(group: pq.RowGroupMetaData, indices: list[int]) -> int:
    """Return the number of rows that fill _MAX_BYTES, by the average size of a row in the footer."""
    size = sum(group.column(index).total_uncompressed_size for index in indices)
    return max(1, min(_MAX_ROWS, _MAX_BYTES * max(group.num_rows, 1) // max(size, 1)))


def column_indices(metadata: pq.FileMetaData, wanted: list[str]) -> list[int]:
    """Return the indices of the wanted columns in a row group, including those inside nested columns."""
    paths = (metadata.schema.column(index).path for index in range(metadata.num_columns))
    return [index for index, path in enumerate(paths) if path in wanted or path.split(".")[0] in wanted]
