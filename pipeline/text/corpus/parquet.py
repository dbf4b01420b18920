"""Rows of a Parquet file, streamed: only the columns asked for, in batches of bounded size."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.settings import CorpusSettings
from pipeline.store.schema import carried_name
from pipeline.text.corpus.columns import Columns, Seen, cast_column, decoded, id_type, missing, mistyped
from pipeline.text.corpus.sift import RawBatch
from pipeline.text.corpus.sources import SourceFile, explained, open_file

_MOST_ROWS, _MOST_BYTES = 16_384, 32 << 20  # of one batch that is handed on
_FIRST_ROWS = 16  # read at first: a footer says nothing of values that a dictionary holds once
_STEP_ROWS = 1_024  # read at once later, at most: between two looks at what rows weigh
_TOO_HEAVY = 2  # times _MOST_BYTES: from this weight of one step on fewer rows are read at once
_BUFFER = 1 << 20  # bytes read ahead per column


def inspect(file: SourceFile, corpus: CorpusSettings) -> Seen:
    """Types and rows by the file's footer; DataError when it cannot be read, or a column is missing or of a wrong type."""
    with explained(file.uri), open_file(file) as stream:
        opened = pq.ParquetFile(stream)
        schema, rows = opened.schema_arrow, opened.metadata.num_rows
    repeats = Counter(schema.names)
    types = {name: kind for name, kind in zip(schema.names, schema.types, strict=True) if repeats[name] == 1}
    types = {**dict.fromkeys(file.partitions, pa.string()), **types}
    for setting, names in (
        ("corpus.id", (corpus.id,)),
        ("corpus.text", (corpus.text,)),
        ("corpus.keep", corpus.keep),
    ):
        for name in names:
            if name not in types:
                raise missing(file, setting, name, types)
    found = id_type(types[corpus.id])
    if found is None:
        raise mistyped(file, "corpus.id", corpus.id, "string or integer", types[corpus.id])
    if not _can_be_text(decoded(types[corpus.text])):
        raise mistyped(
            file, "corpus.text", corpus.text, "string (or binary holding UTF-8)", types[corpus.text]
        )
    return Seen(
        file,
        {name: types[name] for name in corpus.keep} | {corpus.id: found},
        rows,
        _may_be_negative(opened.metadata, corpus.id, types[corpus.id]),
    )


def _may_be_negative(metadata: pq.FileMetaData, name: str, kind: pa.DataType) -> bool:
    """Whether a column of integers may hold one below 0, by the footer's statistics."""
    if pa.types.is_unsigned_integer(kind):
        return False
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(place) for place in _leaves(metadata, [name]) for group in groups]
    known = [
        chunk.statistics for chunk in chunks if chunk.statistics is not None and chunk.statistics.has_min_max
    ]
    return len(known) < len(chunks) or any(
        pa.types.is_integer(kind) and statistics.min < 0 for statistics in known
    )


def read(file: SourceFile, corpus: CorpusSettings, columns: Columns) -> Iterator[RawBatch]:
    """All rows in the file's order."""
    with explained(file.uri), open_file(file) as stream:
        opened = pq.ParquetFile(stream, buffer_size=_BUFFER, pre_buffer=False)
        beside = pq.ParquetFile(stream, metadata=opened.metadata, buffer_size=_BUFFER, pre_buffer=False)
        there = set(opened.schema_arrow.names)
        wanted = [name for name in dict.fromkeys((corpus.id, corpus.text, *corpus.keep)) if name in there]
        total, start = opened.metadata.num_rows, 0
        for table in _tables(opened, beside, wanted):
            yield RawBatch(
                _raw(table, start, file, corpus, columns), file.size * (start + len(table)) // max(total, 1)
            )
            start += len(table)
    if start != total:
        raise file.error(
            f"{total} rows, as its footer says", f"{start}", "the file is damaged: write it again"
        )


def _raw(table: pa.Table, start: int, file: SourceFile, corpus: CorpusSettings, columns: Columns) -> pa.Table:
    count = table.num_rows

    def column(name: str) -> pa.ChunkedArray:
        if name in table.column_names:
            found = table[name]
            return found if (plain := decoded(found.type)) == found.type else found.cast(plain)
        return pa.chunked_array([pa.repeat(pa.scalar(file.partitions[name], pa.string()), count)])

    kept = {
        carried_name(field.name): cast_column(column(field.name), field.type, file, "corpus.keep", field.name)
        for field in columns.kept
    }
    ids = cast_column(column(corpus.id), columns.id, file, "corpus.id", corpus.id)
    return pa.table(
        {
            "id": ids,
            "text": column(corpus.text),
            **kept,
            "row": pa.array(np.arange(start, start + count, dtype=np.int64)),
        }
    )


def _tables(opened: pq.ParquetFile, beside: pq.ParquetFile, wanted: list[str]) -> Iterator[pa.Table]:
    """All rows in order, in tables of up to _MOST_ROWS rows and about _MOST_BYTES bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = weight = 0
    for step in _steps(opened, beside, wanted):
        for batch, added in _weighed(step):
            if waiting and (rows + len(batch) > _MOST_ROWS or weight + added > _MOST_BYTES):
                yield pa.Table.from_batches(waiting)
                waiting, rows, weight = [], 0, 0
            waiting.append(batch)
            rows, weight = rows + len(batch), weight + added
    if waiting:
        yield pa.Table.from_batches(waiting)


def _weighed(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows in parts of about _MOST_BYTES, each with its bytes once every row has its own copy of a value
    that a dictionary holds.
    """
    coded = [column for column in batch.columns if pa.types.is_dictionary(column.type)]
    if not coded:
        yield batch, batch.nbytes
        return
    fixed = sum(column.indices.nbytes for column in coded)
    fixed += sum(column.nbytes for column in batch.columns if not pa.types.is_dictionary(column.type))
    each = np.full(len(batch), fixed // len(batch), np.int64)
    for column in coded:
        each += _value_lengths(column)
    ends = np.cumsum(each)
    start = 0
    while start < len(batch):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _MOST_BYTES, side="right")))
        yield batch.slice(start, stop - start), int(ends[stop - 1]) - before
        start = stop


def _value_lengths(column: pa.DictionaryArray) -> np.ndarray:
    """(n,) int64 bytes of each row's value, 0 for null and for values of fixed width.

    The time depends on the rows, not on the size of the dictionary.
    """
    values, indices = column.dictionary, column.indices
    if not len(values) or not _has_length(values.type):
        return np.zeros(len(column), np.int64)
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    offsets = np.frombuffer(values.buffers()[1], np.int64 if wide else np.int32)[values.offset :]
    places = pc.fill_null(indices.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    lengths = offsets[places + 1].astype(np.int64) - offsets[places]
    return np.where(indices.is_valid().to_numpy(zero_copy_only=False), lengths, 0)


def _has_length(kind: pa.DataType) -> bool:
    return any(
        check(kind)
        for check in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
        )
    )


def _steps(opened: pq.ParquetFile, beside: pq.ParquetFile, wanted: list[str]) -> Iterator[pa.RecordBatch]:
    """All rows in order, as many at once as should fit.

    A column that Arrow keeps as a dictionary never holds a value twice, but every batch has a copy of the whole
    dictionary: such columns are read `beside` the others, in batches that are large whatever the others weigh.
    """
    types = dict(zip(opened.schema_arrow.names, opened.schema_arrow.types, strict=True))
    coded = [name for name in wanted if pa.types.is_dictionary(types[name])]
    plain = [name for name in wanted if name not in coded]
    if coded and plain:
        yield from _joined(_plain_steps(opened, plain), _coded_steps(beside, coded))
    else:
        yield from _plain_steps(opened, plain) if plain else _coded_steps(beside, coded)


def _joined(left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns of both side by side, up to the last row that both have; a batch ends where one of either does."""
    one, other = next(left, None), next(right, None)
    while one is not None and other is not None:
        rows = min(len(one), len(other))
        columns = [*one.slice(0, rows).columns, *other.slice(0, rows).columns]
        yield pa.RecordBatch.from_arrays(columns, names=[*one.schema.names, *other.schema.names])
        one = one.slice(rows) if rows < len(one) else next(left, None)
        other = other.slice(rows) if rows < len(other) else next(right, None)


def _coded_steps(opened: pq.ParquetFile, wanted: list[str]) -> Iterator[pa.RecordBatch]:
    places = _leaves(opened.metadata, wanted)
    for group in range(opened.num_row_groups):
        size = _batch_rows(opened.metadata.row_group(group), places)
        batches = opened.iter_batches(batch_size=size, row_groups=[group], columns=wanted)
        yield from (batch for batch in batches if len(batch))


def _plain_steps(opened: pq.ParquetFile, wanted: list[str]) -> Iterator[pa.RecordBatch]:
    """All rows in order: a few first, then as many at once as should fit by their weight and by the footer, and fewer again where rows become heavy.

    Arrow reads a row group in batches of one size: for another one it starts again, and what was handed on is passed over. After the first step sizes only fall
    within a row group, each time by half or more, so that happens a dozen times at most; the next row group begins with as many rows as the last batch lets fit.
    """
    fitting, first, places = _FIRST_ROWS, True, _leaves(opened.metadata, wanted)
    for group in range(opened.num_row_groups):
        most = min(_STEP_ROWS, _batch_rows(opened.metadata.row_group(group), places))
        size = min(fitting, most)
        done, left = 0, opened.metadata.row_group(group).num_rows
        while left:
            skip = done
            for batch in opened.iter_batches(batch_size=size, row_groups=[group], columns=wanted):
                rest = batch.slice(min(skip, len(batch)))
                skip -= len(batch) - len(rest)
                if not len(rest):
                    continue
                yield rest
                done, left = done + len(rest), left - len(rest)
                fitting = max(1, min(_STEP_ROWS, _MOST_BYTES * len(batch) // max(batch.nbytes, 1)))
                if first or (fitting < size and batch.nbytes > _TOO_HEAVY * _MOST_BYTES):
                    size, first = min(fitting, most), False
                    break
            else:
                break


def _batch_rows(group: pq.RowGroupMetaData, places: list[int]) -> int:
    """Rows that make _MOST_BYTES by what a row of the group takes on average, as the footer has it."""
    taken = sum(group.column(place).total_uncompressed_size for place in places)
    return max(1, min(_MOST_ROWS, _MOST_BYTES * max(group.num_rows, 1) // max(taken, 1)))


def _leaves(metadata: pq.FileMetaData, wanted: list[str]) -> list[int]:
    """Places of the wanted columns, and of those inside nested ones, in every row group."""
    schema = metadata.schema
    paths = (schema.column(place).path for place in range(metadata.num_columns))
    return [place for place, path in enumerate(paths) if path in wanted or path.split(".")[0] in wanted]


def _can_be_text(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        check(kind)
        for check in (
            types.is_string,
            types.is_large_string,
            types.is_binary,
            types.is_large_binary,
            types.is_fixed_size_binary,
            types.is_null,
        )
    )
