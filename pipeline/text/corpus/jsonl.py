"""Read JSON lines, plain or gzip, block by block.

Arrow parses a block whose lines are all plain; any other block is parsed line by line.
"""

import gzip
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.settings import CorpusSettings
from pipeline.store.schema import carried_name
from pipeline.text.corpus.columns import Columns, FileColumns
from pipeline.text.corpus.json_rows import LineParser, keys_by_column, partition_values
from pipeline.text.corpus.json_types import TypeInspection
from pipeline.text.corpus.json_values import JsonBlock, parse_block
from pipeline.text.corpus.normalize import is_utf8
from pipeline.text.corpus.sift import RawBatch
from pipeline.text.corpus.sources import SourceFile, open_file
from pipeline.text.corpus.storage_errors import storage_errors

_BLOCK_BYTES = 1 << 20  # parsed at once: small, because one odd line makes its whole block slow
_MAX_LINE_BYTES = 256 << 20  # a longer line means that the file is not JSON lines
_BOM = b"\xef\xbb\xbf"


def inspect(file: SourceFile, corpus: CorpusSettings) -> FileColumns:
    """Find the types of a file's columns.

    They show in the first block; those of kept columns need all rows that may be read, because a number with
    a decimal point may occur late.

    Raises:
        DataError: the file is a JSON array, or no object has one of the columns, or one of a valid type.
    """
    found = TypeInspection(file, corpus)
    for block in read_blocks(file):
        found.add(block)
        lines = block.first + block.lines.count(b"\n")
        if not corpus.keep or (corpus.max_rows is not None and lines >= corpus.max_rows):
            break
    return found.columns()


def read(file: SourceFile, corpus: CorpusSettings, columns: Columns) -> Iterator[RawBatch]:
    """Yield all lines in order except blank ones. The number of a row is that of its line, from 0."""
    kept = [(carried_name(field.name), field.type) for field in columns.kept]
    schema = pa.schema([("id", columns.id), ("text", pa.string()), *kept])
    for block in read_blocks(file):
        table = None if columns.partly else _parse_by_arrow(block, schema, file, corpus)
        if table is not None:
            yield RawBatch(table, block.position)
        else:
            lines = LineParser(file, corpus, schema)
            for number, line in enumerate(block.lines.split(b"\n"), start=block.first):
                if line.strip():
                    lines.add(number, line)
            yield RawBatch(lines.table(), block.position, lines.rejected, lines.surrogates, lines.dropped)


def read_blocks(file: SourceFile) -> Iterator[JsonBlock]:
    """Yield the file's lines in blocks of about _BLOCK_BYTES bytes."""
    held, lines = b"", 0
    with storage_errors(file.uri), open_file(file) as stream:
        source: Any = gzip.GzipFile(fileobj=stream) if file.name.lower().endswith(".gz") else stream
        while piece := _read_piece(source, file):
            held = held + piece if held or lines else piece.removeprefix(_BOM)
            end = held.rfind(b"\n") + 1
            if end:
                yield JsonBlock(held[:end], lines, stream.tell())
                lines, held = lines + held.count(b"\n", 0, end), held[end:]
            elif len(held) > _MAX_LINE_BYTES:
                raise file.error(
                    f"lines of at most {_MAX_LINE_BYTES >> 20} MiB",
                    "a longer line",
                    "the file is probably not JSON lines: set corpus.format, or remove it",
                )
        if held:
            yield JsonBlock(held, lines, file.size)


def _read_piece(source: Any, file: SourceFile) -> bytes:
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
    """Parse a block by Arrow; None unless all lines are valid UTF-8 and one object that fits the schema."""
    rows, keys = _count_plain_lines(block.lines), keys_by_column(schema, corpus)
    types = {key: schema.field(column).type for column, key in keys.items()}
    if rows is None or any(schema.field(column).type != types[key] for column, key in keys.items()):
        return None  # not plain, or one key for two columns of different types
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


def _count_plain_lines(lines: bytes) -> int | None:
    """Number of lines if each begins with { and ends with } and all are valid UTF-8, else None.

    Only then are Arrow's rows the lines.
    """
    if not is_utf8(lines):
        return None
    content = np.frombuffer(lines, dtype=np.uint8)
    ends = np.flatnonzero(content == ord("\n"))
    ends = ends if lines.endswith(b"\n") else np.append(ends, len(lines))
    starts = np.concatenate([[0], ends[:-1] + 1])
    plain = (ends - starts >= 2) & (content[starts] == ord("{")) & (content[ends - 1] == ord("}"))
    return len(ends) if plain.all() else None
