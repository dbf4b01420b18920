"""Read the rows of a Parquet file: only the columns that the settings name, in batches of bounded size."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.settings import CorpusSettings
from pipeline.settings.text_template import parse_template
from pipeline.store.rows.arrays import one_chunk, plain_table, plain_type
from pipeline.store.rows.schema import stored_name
from pipeline.text.formats.columns import (
    Columns,
    FileColumns,
    RowGroups,
    cast_column,
    id_type,
    missing_column,
    wrong_column_type,
)
from pipeline.text.formats.kept_values import check_values
from pipeline.text.formats.reject_rows import RawBatch
from pipeline.text.formats.row_filter import FilteredRows, filter_table, parse_for
from pipeline.text.normalize import valid_utf8
from pipeline.text.sources.file_view import FileView, other_fields, view_of
from pipeline.text.sources.sources import (
    LARGE_BYTES,
    SourceFile,
    columns_read,
    composed_columns,
    filter_columns,
    open_file,
    open_ranges,
    reading,
)

_MAX_ROWS, _MAX_BYTES = 16_384, 32 << 20  # limits of one table that `read_tables` yields
# rows of the first step; few, because the footer does not show how large decoded dictionary values are
_FIRST_ROWS = 16
_MAX_STEP_ROWS = 1_024  # rows of later steps; the size of the rows is checked after each step
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
    """Yield the rows in parts of about _MAX_BYTES, each with its decoded size in bytes.

    Decoded rows hold a dictionary's value once for every row that has it.
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


_FIRST, _LAST = -(2**63) // 1000 + 1, 2**63 // 1000 - 1  # microseconds from 1677 to 2262


def int96_columns(metadata: pq.FileMetaData, names: Sequence[str]) -> list[str]:
    """Return the paths of the INT96 columns among the columns `names` and inside of them."""
    columns = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    return [
        column.path
        for column in columns
        if column.physical_type == "INT96" and {column.path, column.path.split(".")[0]} & set(names)
    ]


def check_int96(
    file: SourceFile,
    stream: pa.NativeFile,
    metadata: pq.FileMetaData,
    names: Sequence[str],
    groups: Iterable[int],
) -> None:
    """Check that INT96 times fit in nanoseconds since 1970; if they do not, Arrow returns wrong times.

    Args:
        file: the file.
        stream: its content.
        metadata: its footer.
        names: the columns to check.
        groups: the row groups to check.

    Raises:
        DataError: a time is before 1677 or after 2262.
    """
    if not (paths := int96_columns(metadata, names)):
        return
    reader = pq.ParquetFile(stream, metadata=metadata, coerce_int96_timestamp_unit="us")
    for group in groups:
        table = reader.read_row_group(group, columns=paths)
        for name, column in zip(table.column_names, table.columns, strict=True):
            for times in _times(column.combine_chunks()):
                if (year := _odd_year(times)) is not None:
                    raise file.error(
                        f"corpus.keep, corpus.where: times of column {name} from 1677 to 2262, since "
                        "INT96 has nanoseconds",
                        f"one of the year {year}",
                        "write the file with times in microseconds (in Spark, "
                        "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS), or do not name the column",
                    )


def _odd_year(times: pa.Array) -> int | None:
    """Return the year of a time that cannot be counted in nanoseconds since 1970; None if there is none."""
    bounds = pc.min_max(times.cast(pa.int64())).as_py()
    odd = [value for value in bounds.values() if value is not None and not _FIRST <= value <= _LAST]
    return int(pc.year(pa.scalar(odd[0], pa.timestamp("us"))).as_py()) if odd else None


def _times(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays of times in an array, including those inside of lists, maps and structs."""
    if pa.types.is_timestamp(array.type):
        yield array
    elif pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from _times(child)
    elif pa.types.is_map(array.type):
        yield from _times(array.keys)
        yield from _times(array.items)
    elif pa.types.is_nested(array.type):
        yield from _times(array.flatten())


_READ_AHEAD_BYTES = 4 << 20  # bytes per column: one request reads this much of a large object
# Limits of the row groups that are read together; a larger row group is read by itself.
_DIVISION_BYTES = 256 << 20
_DIVISION_ROWS = 1 << 22


def inspect(file: SourceFile, corpus: CorpusSettings) -> FileColumns:
    """Find the types of the columns and the number of rows from the file's footer.

    Raises:
        DataError: the file cannot be read, or a column is missing or has a wrong type.
    """
    with reading(file), open_ranges(file) as stream:
        reader = pq.ParquetFile(stream, coerce_int96_timestamp_unit=_int96_unit(file))
    view = view_of(file, reader.schema_arrow, reader.metadata.num_rows)
    types = view.types(reader.schema_arrow)
    composed, template = composed_columns(corpus), parse_template(corpus.text)
    named = [("corpus.id", corpus.id)]
    named += [("corpus.text", corpus.text)] if template.is_column else []
    named += [("corpus.keep", name) for name in corpus.keep]
    named += [(setting, name) for name, setting in composed.items() if name in types]
    for setting, name in named:
        if name not in types:
            raise missing_column(file, setting, name, types)
        if (fields := other_fields(file, name, types[name])) is not None:
            raise wrong_column_type(file, setting, name, f"{fields}, as in the table", types[name])
    type_of_ids = id_type(types[corpus.id])
    if type_of_ids is None:
        raise wrong_column_type(file, "corpus.id", corpus.id, "string or integer", types[corpus.id])
    for name in template.columns:
        if name in types and not _holds_text(types[name], or_integers=not template.is_column):
            expected = "string (or binary holding UTF-8)" + ("" if template.is_column else " or integer")
            raise wrong_column_type(file, "corpus.text", name, expected, types[name])
    wanted = {name: types[name] for name in corpus.keep} | {corpus.id: type_of_ids}
    may_be_negative = _may_be_negative(reader.metadata, view, corpus.id, type_of_ids)
    divisions = _divide(reader.metadata, view, columns_read(corpus))
    rows = view.live_count(0, reader.metadata.num_rows)
    return FileColumns(
        file,
        wanted,
        rows,
        may_be_negative,
        names=tuple(types),
        absent=frozenset(composed) - types.keys(),
        divisions=divisions,
        filter_misfit=_filter_misfit(corpus, types),
    )


def _holds_text(encoded: pa.DataType, *, or_integers: bool) -> bool:
    kind = plain_type(encoded)
    is_text = has_offsets(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_null(kind)
    return bool(is_text or (or_integers and pa.types.is_integer(kind)))


def _filter_misfit(corpus: CorpusSettings, types: Mapping[str, pa.DataType]) -> str:
    """Return why corpus.where does not fit the types of its columns; "" if it does or one is missing."""
    columns = filter_columns(corpus)
    if corpus.where is None or not types.keys() >= set(columns):
        return ""
    parsed = parse_for(corpus.where, pa.schema([(name, plain_type(types[name])) for name in columns]))
    return parsed if isinstance(parsed, str) else ""


def _divide(metadata: pq.FileMetaData, view: FileView, columns: Sequence[str]) -> tuple[RowGroups, ...]:
    """Combine consecutive row groups into divisions, by the bytes of the columns and the live rows alone."""
    indices, divisions = column_indices(metadata, view.stored_names(columns)), list[RowGroups]()
    position = first_row = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size = sum(group.column(index).total_compressed_size for index in indices)
        group_rows = view.live_count(position, position + group.num_rows)
        last = divisions[-1] if divisions else None
        if last and last.size + size <= _DIVISION_BYTES and last.rows + group_rows <= _DIVISION_ROWS:
            rows, size = last.rows + group_rows, last.size + size
            divisions[-1] = RowGroups(last.first, number + 1, last.first_row, rows, size)
        else:
            divisions.append(RowGroups(number, number + 1, first_row, group_rows, size))
        position, first_row = position + group.num_rows, first_row + group_rows
    return tuple(divisions)


def _may_be_negative(metadata: pq.FileMetaData, view: FileView, name: str, kind: pa.DataType) -> bool:
    """Return whether a column may hold a negative integer, by the footer's statistics."""
    if not pa.types.is_signed_integer(kind):
        return False
    if name in view.constants:
        return bool((view.constants[name].as_py() or 0) < 0)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    indices = column_indices(metadata, view.stored_names([name]))
    chunks = [group.column(index) for index in indices for group in groups]
    known = [chunk.statistics for chunk in chunks if chunk.is_stats_set and chunk.statistics.has_min_max]
    return len(known) < len(chunks) or any(statistics.min < 0 for statistics in known)


def read(
    file: SourceFile, corpus: CorpusSettings, columns: Columns, groups: RowGroups | None = None
) -> Iterator[RawBatch]:
    """Yield the rows of some row groups, or of all, in the order of the file."""
    is_large = file.size > LARGE_BYTES
    with reading(file), (open_ranges if is_large else open_file)(file) as stream:
        footer = _footer_of_divided(file.uri, file.size, file.stamp) if groups else None
        reader = _open(stream, file, footer)
        metadata = reader.metadata
        dictionary_reader = _open(stream, file, metadata)
        view = view_of(file, reader.schema_arrow, metadata.num_rows)
        names, types = columns_read(corpus), view.types(reader.schema_arrow)
        wanted = view.stored_names(names)
        if not wanted:
            found, remedy = ", ".join(reader.schema_arrow.names), "write it with the columns of the table"
            raise file.error(f"one of the columns {', '.join(names)}", found, remedy)
        live = view.live_count(0, metadata.num_rows)
        groups = groups or RowGroups(0, metadata.num_row_groups, 0, live, file.size)
        position = sum(metadata.row_group(number).num_rows for number in range(groups.first))
        if file.table is None:
            compared = (*corpus.keep, *filter_columns(corpus))
            check_int96(file, stream, metadata, compared, range(groups.first, groups.stop))
        done = 0
        for encoded in read_tables(reader, dictionary_reader, wanted, range(groups.first, groups.stop)):
            table = plain_table(encoded)
            rows, position = view.live_rows(table, position), position + len(table)
            start, done = groups.first_row + done, done + len(rows)
            if len(rows):
                size = groups.size * done // max(groups.rows, 1)
                raw = _raw_batch(view.select(rows, names), start, file, corpus, columns)
                yield replace(raw, position=size, filtered=_filtered(corpus, rows, start, view, types))
    if done != groups.rows:
        raise file.error(
            f"{groups.rows} rows, as its footer says", f"{done}", "the file is damaged: write it again"
        )


def _open(stream: pa.NativeFile, file: SourceFile, footer: pq.FileMetaData | None) -> pq.ParquetFile:
    return pq.ParquetFile(
        stream,
        metadata=footer,
        buffer_size=_READ_AHEAD_BYTES,
        pre_buffer=False,
        coerce_int96_timestamp_unit=_int96_unit(file),
    )


def _int96_unit(file: SourceFile) -> str | None:
    """Return the unit in which INT96 times are read; None for nanoseconds.

    Data files of tables are read in microseconds. Other files are refused if a time does not fit in
    nanoseconds.
    """
    return "us" if file.table else None


@lru_cache(maxsize=1)
def _footer_of_divided(uri: str, size: int, stamp: str) -> pq.FileMetaData:
    """Read the footer of a file whose row groups are divided, once for all divisions that a process reads.

    The footer of a file with thousands of row groups has megabytes.
    """
    with open_ranges(SourceFile(uri, uri, size, stamp, "parquet")) as stream:
        return pq.read_metadata(stream)


def _raw_batch(
    table: pa.Table, start: int, file: SourceFile, corpus: CorpusSettings, columns: Columns
) -> RawBatch:
    """Return decoded rows as a batch; `start` is the number of the first row."""
    kept, not_utf8, nulled = dict[str, pa.ChunkedArray](), dict[str, np.ndarray](), list[int]()
    for field in columns.kept:
        name, checked = stored_name(field.name), check_values(one_chunk(table[field.name]))
        values = pa.chunked_array([checked.values])
        kept[name] = cast_column(values, field.type, file, "corpus.keep", field.name)
        not_utf8[name] = start + checked.not_utf8
        nulled += (start + checked.nulled).tolist()
    ids = cast_column(table[corpus.id], columns.id, file, "corpus.id", corpus.id)
    numbers = pa.array(np.arange(start, start + len(table), dtype=np.int64))
    texts = _texts(table, start, corpus, not_utf8)
    rows = pa.table({"id": ids, "text": texts, **kept, "row": numbers})
    return RawBatch(rows, 0, nulled=nulled, not_utf8=not_utf8)


def _texts(
    table: pa.Table, start: int, corpus: CorpusSettings, not_utf8: dict[str, np.ndarray]
) -> pa.ChunkedArray | pa.Array:
    """Return the texts; of a template, with the rows that are not UTF-8 added to `not_utf8`."""
    template = parse_template(corpus.text)
    if template.is_column:
        return table[corpus.text]
    columns = dict[str, list[str | None]]()
    for name in dict.fromkeys(template.columns):
        values = one_chunk(table[name])
        if pa.types.is_integer(values.type) or pa.types.is_null(values.type):
            columns[name] = values.cast(pa.string()).to_pylist()
            continue
        is_valid = valid_utf8(values)
        not_utf8[name] = start + np.flatnonzero(~is_valid)
        known = pc.if_else(pa.array(is_valid), values.cast(pa.large_binary()), None)
        columns[name] = known.cast(pa.large_string()).to_pylist()
    rows = zip(*(columns[name] for name in template.columns), strict=True)
    return pa.array([template.render(row) for row in rows], pa.large_string())


def _filtered(
    corpus: CorpusSettings, rows: pa.Table, start: int, view: FileView, types: Mapping[str, pa.DataType]
) -> FilteredRows | None:
    """Evaluate corpus.where on decoded rows, in the types of the file's columns, or of its table's."""
    if corpus.where is None:
        return None
    named = view.select(rows, filter_columns(corpus))
    schema = pa.schema([(name, plain_type(types[name])) for name in named.column_names])
    numbers = np.arange(start, start + len(rows), dtype=np.int64)
    return filter_table(corpus.where, named.cast(schema), numbers)
