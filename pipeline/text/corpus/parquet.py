"""Read the rows of a Parquet file: only the columns wanted, in batches of bounded size."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.settings import CorpusSettings
from pipeline.store.schema import carried_name
from pipeline.text.corpus.columns import (
    Columns,
    FileColumns,
    cast_column,
    id_type,
    missing_column,
    plain_type,
    wrong_column_type,
)
from pipeline.text.corpus.sift import RawBatch
from pipeline.text.corpus.sources import SourceFile, open_file
from pipeline.text.corpus.storage_errors import storage_errors

_MAX_ROWS, _MAX_BYTES = 16_384, 32 << 20  # of one batch that is returned
_FIRST_ROWS = 16  # read first: a footer does not show the size of values that a dictionary stores once
_MAX_STEP_ROWS = 1_024  # read at once later: the size of rows is checked after each step
_TOO_HEAVY = 2  # times _MAX_BYTES in one step: the following steps read fewer rows
_BUFFER = 1 << 20  # bytes read ahead per column


def inspect(file: SourceFile, corpus: CorpusSettings) -> FileColumns:
    """Find types and number of rows from the file's footer.

    Raises:
        DataError: the file cannot be read, or a column is missing or has a wrong type.
    """
    with storage_errors(file.uri), open_file(file) as stream:
        opened = pq.ParquetFile(stream)
        schema, rows = opened.schema_arrow, opened.metadata.num_rows
    repeats = Counter(schema.names)
    types = {name: kind for name, kind in zip(schema.names, schema.types, strict=True) if repeats[name] == 1}
    types = {**dict.fromkeys(file.partitions, pa.string()), **types}
    kept = (("corpus.keep", name) for name in corpus.keep)
    for setting, name in (("corpus.id", corpus.id), ("corpus.text", corpus.text), *kept):
        if name not in types:
            raise missing_column(file, setting, name, types)
    found = id_type(types[corpus.id])
    if found is None:
        raise wrong_column_type(file, "corpus.id", corpus.id, "string or integer", types[corpus.id])
    text = plain_type(types[corpus.text])
    if not (_has_offsets(text) or pa.types.is_fixed_size_binary(text) or pa.types.is_null(text)):
        raise wrong_column_type(
            file, "corpus.text", corpus.text, "string (or binary holding UTF-8)", types[corpus.text]
        )
    wanted = {name: types[name] for name in corpus.keep} | {corpus.id: found}
    return FileColumns(file, wanted, rows, _may_be_negative(opened.metadata, corpus.id, types[corpus.id]))


def _may_be_negative(metadata: pq.FileMetaData, name: str, kind: pa.DataType) -> bool:
    """Return whether a column of integers may hold a negative value, by the footer's statistics."""
    if pa.types.is_unsigned_integer(kind):
        return False
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(index) for index in _column_indices(metadata, [name]) for group in groups]
    known = [chunk.statistics for chunk in chunks if chunk.is_stats_set and chunk.statistics.has_min_max]
    if len(known) < len(chunks):
        return True
    return pa.types.is_integer(kind) and any(statistics.min < 0 for statistics in known)


def read(file: SourceFile, corpus: CorpusSettings, columns: Columns) -> Iterator[RawBatch]:
    """Yield all rows in the order of the file."""
    with storage_errors(file.uri), open_file(file) as stream:
        opened = pq.ParquetFile(stream, buffer_size=_BUFFER, pre_buffer=False)
        dictionary_reader = pq.ParquetFile(
            stream, metadata=opened.metadata, buffer_size=_BUFFER, pre_buffer=False
        )
        names = dict.fromkeys((corpus.id, corpus.text, *corpus.keep))
        wanted = [name for name in names if name in opened.schema_arrow.names]
        total, start = opened.metadata.num_rows, 0
        for table in _tables(opened, dictionary_reader, wanted):
            position = file.size * (start + len(table)) // max(total, 1)
            yield RawBatch(_raw_table(table, start, file, corpus, columns), position)
            start += len(table)
    if start != total:
        raise file.error(
            f"{total} rows, as its footer says", f"{start}", "the file is damaged: write it again"
        )


def _raw_table(
    table: pa.Table, start: int, file: SourceFile, corpus: CorpusSettings, columns: Columns
) -> pa.Table:
    """The rows in the form of `RawBatch`; `start` is the number of the first one."""
    count = table.num_rows

    def column(name: str) -> pa.ChunkedArray:
        if name in table.column_names:
            return table[name].cast(plain_type(table[name].type))
        return pa.chunked_array([pa.repeat(pa.scalar(file.partitions[name], pa.string()), count)])

    kept = {
        carried_name(field.name): cast_column(column(field.name), field.type, file, "corpus.keep", field.name)
        for field in columns.kept
    }
    ids = cast_column(column(corpus.id), columns.id, file, "corpus.id", corpus.id)
    rows = pa.array(np.arange(start, start + count, dtype=np.int64))
    return pa.table({"id": ids, "text": column(corpus.text), **kept, "row": rows})


def _tables(
    opened: pq.ParquetFile, dictionary_reader: pq.ParquetFile, wanted: list[str]
) -> Iterator[pa.Table]:
    """Yield all rows in order, in tables of at most _MAX_ROWS rows and about _MAX_BYTES bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = weight = 0
    for step in _read_steps(opened, dictionary_reader, wanted):
        for batch, added in _split_by_bytes(step):
            if waiting and (rows + len(batch) > _MAX_ROWS or weight + added > _MAX_BYTES):
                yield pa.Table.from_batches(waiting)
                waiting, rows, weight = [], 0, 0
            waiting.append(batch)
            rows, weight = rows + len(batch), weight + added
    if waiting:
        yield pa.Table.from_batches(waiting)


def _split_by_bytes(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows in parts of about _MAX_BYTES, each with its bytes.

    Values of a dictionary are counted once for every row, as they are when the rows are decoded.
    """
    coded = [column for column in batch.columns if pa.types.is_dictionary(column.type)]
    if not coded:
        yield batch, batch.nbytes
        return
    fixed = sum(column.indices.nbytes for column in coded)
    fixed += sum(column.nbytes for column in batch.columns if not pa.types.is_dictionary(column.type))
    each = fixed // len(batch) + sum(map(_value_lengths, coded))
    ends, start = np.cumsum(each), 0
    while start < len(batch):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _MAX_BYTES, side="right")))
        yield batch.slice(start, stop - start), int(ends[stop - 1]) - before
        start = stop


def _value_lengths(column: pa.DictionaryArray) -> np.ndarray:
    """(n,) int64: bytes of each row's value; 0 for null and for values of fixed width.

    The time depends on the number of rows, not on the size of the dictionary.
    """
    values, indices = column.dictionary, column.indices
    if not len(values) or not _has_offsets(values.type):
        return np.zeros(len(column), np.int64)
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    offsets = np.frombuffer(values.buffers()[1], np.int64 if wide else np.int32)[values.offset :]
    filled = pc.fill_null(indices.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    lengths = offsets[filled + 1].astype(np.int64) - offsets[filled]
    return np.where(indices.is_valid().to_numpy(zero_copy_only=False), lengths, 0)


def _has_offsets(kind: pa.DataType) -> bool:
    types = pa.types
    checks = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(check(kind) for check in checks)


def _read_steps(
    opened: pq.ParquetFile, dictionary_reader: pq.ParquetFile, wanted: list[str]
) -> Iterator[pa.RecordBatch]:
    """Yield all rows in order, as many at once as should fit.

    Arrow stores each value of a dictionary column once, but copies the whole dictionary into every batch:
    such columns are read by a reader of their own, in large batches whatever the size of the other columns.
    """
    types = dict(zip(opened.schema_arrow.names, opened.schema_arrow.types, strict=True))
    coded = [name for name in wanted if pa.types.is_dictionary(types[name])]
    plain = [name for name in wanted if name not in coded]
    steps = _plain_steps(opened, plain), _dictionary_steps(dictionary_reader, coded)
    yield from _join(*steps) if coded and plain else steps[0 if plain else 1]


def _join(left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join the columns of two streams of batches, up to the last row that both have.

    A batch ends where a batch of either stream ends.
    """
    one, other = next(left, None), next(right, None)
    while one is not None and other is not None:
        rows = min(len(one), len(other))
        columns = [*one.slice(0, rows).columns, *other.slice(0, rows).columns]
        yield pa.RecordBatch.from_arrays(columns, names=[*one.schema.names, *other.schema.names])
        one = one.slice(rows) if rows < len(one) else next(left, None)
        other = other.slice(rows) if rows < len(other) else next(right, None)


def _dictionary_steps(opened: pq.ParquetFile, wanted: list[str]) -> Iterator[pa.RecordBatch]:
    indices = _column_indices(opened.metadata, wanted)
    for group in range(opened.num_row_groups):
        size = _batch_rows(opened.metadata.row_group(group), indices)
        batches = opened.iter_batches(batch_size=size, row_groups=[group], columns=wanted)
        yield from (batch for batch in batches if len(batch))


def _plain_steps(opened: pq.ParquetFile, wanted: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield all rows in order: a few first, then as many at once as should fit, fewer if rows become larger.

    Arrow reads a row group in batches of one size; for another size it starts again, and the rows already
    read are skipped. After the first step the size only falls within a row group, each time by half or more,
    so that happens a dozen times at most. The next row group begins with the size that the last batch allows.
    """
    fitting, first, indices = _FIRST_ROWS, True, _column_indices(opened.metadata, wanted)
    for group in range(opened.num_row_groups):
        most = min(_MAX_STEP_ROWS, _batch_rows(opened.metadata.row_group(group), indices))
        size = min(fitting, most)
        done, remaining = 0, opened.metadata.row_group(group).num_rows
        while remaining:
            skip = done
            for batch in opened.iter_batches(batch_size=size, row_groups=[group], columns=wanted):
                rest = batch.slice(min(skip, len(batch)))
                skip -= len(batch) - len(rest)
                if not len(rest):
                    continue
                yield rest
                done, remaining = done + len(rest), remaining - len(rest)
                fitting = max(1, min(_MAX_STEP_ROWS, _MAX_BYTES * len(batch) // max(batch.nbytes, 1)))
                if first or (fitting < size and batch.nbytes > _TOO_HEAVY * _MAX_BYTES):
                    size, first = min(fitting, most), False
                    break
            else:
                break


def _batch_rows(group: pq.RowGroupMetaData, indices: list[int]) -> int:
    """Rows that fill _MAX_BYTES, by the average size of a row in the footer."""
    size = sum(group.column(index).total_uncompressed_size for index in indices)
    return max(1, min(_MAX_ROWS, _MAX_BYTES * max(group.num_rows, 1) // max(size, 1)))


def _column_indices(metadata: pq.FileMetaData, wanted: list[str]) -> list[int]:
    """Indices of the wanted columns in a row group, including those inside nested columns."""
    paths = (metadata.schema.column(index).path for index in range(metadata.num_columns))
    return [index for index, path in enumerate(paths) if path in wanted or path.split(".")[0] in wanted]
