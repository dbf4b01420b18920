"""Read JSON lines, plain or gzip, block by block.

Arrow parses a block in which every line is one object; any other block is parsed line by line.
"""

import gzip
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.settings import CorpusSettings
from pipeline.store.schema import stored_name
from pipeline.text.corpus.columns import Columns, FileColumns, RowGroups
from pipeline.text.corpus.json_rows import LineParser, keys_by_column, partition_values
from pipeline.text.corpus.json_types import TypeInspection
from pipeline.text.corpus.json_values import JsonBlock, parse_block
from pipeline.text.corpus.normalize import is_utf8
from pipeline.text.corpus.sift import RawBatch
from pipeline.text.corpus.sources import SourceFile, open_file
from pipeline.text.corpus.storage_errors import storage_errors

_BLOCK_BYTES = 1 << 20  # parsed at once: small, because one line that Arrow rejects makes its block slow
_MAX_LINE_BYTES = 256 << 20  # a longer line means that the file is not JSON lines
_BOM = b"\xef\xbb\xbf"


def inspect(file: SourceFile, corpus: CorpusSettings) -> FileColumns:
    """Find the types of a file's columns.

    Without kept columns, the first block is enough. Types of kept columns depend on all rows that may be
    read, because a number with a decimal point may occur late.

    Raises:
        DataError: the file is a JSON array, or a column is missing from all objects or has no valid value.
    """
    inspection = TypeInspection(file, corpus)
    for block in read_blocks(file):
        inspection.add(block)
        lines = block.first + block.lines.count(b"\n")
        if not corpus.keep or (corpus.max_rows is not None and lines >= corpus.max_rows):
            break
    return inspection.columns()


def read(
    file: SourceFile, corpus: CorpusSettings, columns: Columns, groups: RowGroups | None = None
) -> Iterator[RawBatch]:
    """Yield all lines in order except blank ones. A row's number is that of its line, from 0."""
    kept = [(stored_name(field.name), field.type) for field in columns.kept]
    schema = pa.schema([("id", columns.id), ("text", pa.string()), *kept])
    for block in read_blocks(file):
        # Arrow drops nested keys that the type lacks; LineParser makes the value null, and counts it.
        table = None if columns.leaves_out_keys else _parse_by_arrow(block, schema, file, corpus)
        if table is not None:
            yield RawBatch(table, block.position)
        else:
            parser = LineParser(file, corpus, schema)
            for number, line in enumerate(block.lines.split(b"\n"), start=block.first):
                if line.strip():
                    parser.add(number, line)
            yield RawBatch(parser.table(), block.position, parser.rejected, parser.surrogates, parser.nulled)


def read_blocks(file: SourceFile) -> Iterator[JsonBlock]:
    """Yield the file's lines in blocks of about _BLOCK_BYTES bytes."""
    pending, lines = b"", 0  # bytes that no block has yet, and the number of lines before them
    with storage_errors(file.uri), open_file(file) as stream:
        is_gzip = file.name.lower().endswith(".gz")
        if is_gzip and not file.size:  # for gzip.GzipFile it would be a file without rows
            raise file.error("a gzip file", "0 bytes", "it is damaged or truncated: write it again")
        source: Any = gzip.GzipFile(fileobj=stream) if is_gzip else stream
        while piece := _read_piece(source, file):
            pending = pending + piece if pending or lines else piece.removeprefix(_BOM)
            end = pending.rfind(b"\n") + 1
            if end:
                yield JsonBlock(pending[:end], lines, stream.tell())
                lines, pending = lines + pending.count(b"\n", 0, end), pending[end:]
            elif len(pending) > _MAX_LINE_BYTES:
                raise file.error(
                    f"lines of at most {_MAX_LINE_BYTES >> 20} MiB",
                    "a longer line",
                    "the file is probably not JSON lines: remove the file, or set corpus.format",
                )
        if pending:
            yield JsonBlock(pending, lines, file.size)


def _read_piece(source: Any, file: SourceFile) -> bytes:
    """Read up to _BLOCK_BYTES bytes; raise DataError if the gzip file is corrupt."""
    try:
        return bytes(source.read(_BLOCK_BYTES))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise file.error(
            "a complete gzip file",
            f"{type(error).__name__}: {error}",
            "it is damaged or truncated: write it again",
        ) from None


def _parse_by_arrow(
    block: JsonBlock, schema: pa.Schema, file: SourceFile, corpus: CorpusSettings
) -> pa.Table | None:
    """Parse a block by Arrow; None unless every line is valid UTF-8 and one object that fits the schema."""
    rows, keys = _count_object_lines(block.lines), keys_by_column(schema, corpus)
    types = {key: schema.field(column).type for column, key in keys.items()}
    if rows is None or any(schema.field(column).type != types[key] for column, key in keys.items()):
        return None  # other lines than objects, or one key for two columns of different types
    try:
        table = parse_block(block.lines, types)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if table.num_rows != rows:
        return None
    columns = {column: table[key] for column, key in keys.items()}
    for column, value in partition_values(schema, file, corpus).items():
        columns[column] = pc.fill_null(columns[column], value)
    number = pa.array(np.arange(block.first, block.first + rows, dtype=np.int64))
    return pa.table({**columns, "row": number}).combine_chunks()


def _count_object_lines(lines: bytes) -> int | None:
    """Count the lines; None unless all are valid UTF-8, begin with { and end with }.

    Otherwise row i of Arrow's table need not be line i: Arrow skips blank lines and reads objects that span
    several lines.
    """
    if not is_utf8(lines):
        return None
    content = np.frombuffer(lines, dtype=np.uint8)
    ends = np.flatnonzero(content == ord("\n"))
    ends = ends if lines.endswith(b"\n") else np.append(ends, len(lines))
    starts = np.concatenate([[0], ends[:-1] + 1])
    is_object = (ends - starts >= 2) & (content[starts] == ord("{")) & (content[ends - 1] == ord("}"))
    return len(ends) if is_object.all() else None
