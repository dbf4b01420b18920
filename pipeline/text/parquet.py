"""Rows of a Parquet file, streamed: only the columns asked for, in batches of bounded size."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.settings import CorpusSettings
from pipeline.store.schema import carried_name
from pipeline.text.columns import Columns, Seen, cast_column, decoded, id_type, missing, mistyped
from pipeline.text.rows import RawBatch
from pipeline.text.sources import SourceFile, explained, open_file

_MOST_ROWS, _MOST_BYTES = 16_384, 32 << 20      # of one batch, by the file's own account of its sizes
_BUFFER = 1 << 20                               # bytes read ahead per column


def inspect(file: SourceFile, corpus: CorpusSettings) -> Seen:
    """Types and rows by the file's footer; DataError when it cannot be read, or a column is missing or of a wrong type."""
    with explained(file.uri), open_file(file) as stream:
        opened = pq.ParquetFile(stream)
        schema, rows = opened.schema_arrow, opened.metadata.num_rows
    types = {name: kind for name, kind in zip(schema.names, schema.types, strict=True) if schema.names.count(name) == 1}
    types = {**dict.fromkeys(file.partitions, pa.string()), **types}
    for setting, names in (("corpus.id", (corpus.id,)), ("corpus.text", (corpus.text,)), ("corpus.keep", corpus.keep)):
        for name in names:
            if name not in types:
                raise missing(file, setting, name, types)
    found = id_type(types[corpus.id])
    if found is None:
        raise mistyped(file, "corpus.id", corpus.id, "string or integer", types[corpus.id])
    if not _can_be_text(decoded(types[corpus.text])):
        raise mistyped(file, "corpus.text", corpus.text, "string (or binary holding UTF-8)", types[corpus.text])
    return Seen(file, {name: types[name] for name in corpus.keep} | {corpus.id: found}, rows, _may_be_negative(opened.metadata, corpus.id, types[corpus.id]))


def _may_be_negative(metadata: pq.FileMetaData, name: str, kind: pa.DataType) -> bool:
    """Whether a column of integers may hold one below 0, by the footer's statistics."""
    if pa.types.is_unsigned_integer(kind):
        return False
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = [chunk for group in groups for place in range(group.num_columns) if (chunk := group.column(place)).path_in_schema == name]
    known = [chunk.statistics for chunk in chunks if chunk.statistics is not None and chunk.statistics.has_min_max]
    return len(known) < len(chunks) or any(pa.types.is_integer(kind) and statistics.min < 0 for statistics in known)


def read(file: SourceFile, corpus: CorpusSettings, columns: Columns) -> Iterator[RawBatch]:
    """All rows in the file's order."""
    with explained(file.uri), open_file(file) as stream:
        opened = pq.ParquetFile(stream, buffer_size=_BUFFER, pre_buffer=False)
        wanted = [name for name in dict.fromkeys((corpus.id, corpus.text, *corpus.keep)) if name in opened.schema_arrow.names]
        total, start = opened.metadata.num_rows, 0
        for batch in opened.iter_batches(batch_size=_batch_rows(opened, wanted), columns=wanted):
            table = pa.Table.from_batches([batch])
            yield RawBatch(_raw(table, start, file, corpus, columns), file.size * (start + len(batch)) // max(total, 1))
            start += len(batch)
    if start != total:
        raise file.error(f"{total} rows, as its footer says", f"{start}", "the file is damaged: write it again")


def _raw(table: pa.Table, start: int, file: SourceFile, corpus: CorpusSettings, columns: Columns) -> pa.Table:
    count = table.num_rows

    def column(name: str) -> pa.ChunkedArray:
        if name in table.column_names:
            found = table[name]
            return found if (plain := decoded(found.type)) == found.type else found.cast(plain)
        return pa.chunked_array([pa.repeat(pa.scalar(file.partitions[name], pa.string()), count)])

    kept = {carried_name(field.name): cast_column(column(field.name), field.type, file, "corpus.keep", field.name) for field in columns.kept}
    ids = cast_column(column(corpus.id), columns.id, file, "corpus.id", corpus.id)
    return pa.table({"id": ids, "text": column(corpus.text), **kept, "row": pa.array(np.arange(start, start + count, dtype=np.int64))})


def _batch_rows(opened: pq.ParquetFile, wanted: list[str]) -> int:
    """Rows of one batch: by the most bytes that a row of any row group takes on average."""
    metadata = opened.metadata
    widest = 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = (group.column(place) for place in range(group.num_columns))
        taken = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in wanted or chunk.path_in_schema in wanted)
        widest = max(widest, taken // max(group.num_rows, 1))
    return max(1, min(_MOST_ROWS, _MOST_BYTES // widest))


def _can_be_text(kind: pa.DataType) -> bool:
    types = pa.types
    return any(check(kind) for check in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary,
                                         types.is_fixed_size_binary, types.is_null))
