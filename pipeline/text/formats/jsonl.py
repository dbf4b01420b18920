"""Read JSON lines, plain or gzip, block by block.

Arrow parses a block in which every line is one object; any other block is parsed line by line.
"""

import contextlib
import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.settings import CorpusSettings
from pipeline.settings.text_template import TextTemplate, parse_template
from pipeline.store.rows.arrays import array_of, is_text
from pipeline.store.rows.nested import leaf_types, leaves
from pipeline.store.rows.schema import stored_name
from pipeline.text.formats.columns import Columns, FileColumns, RowGroups
from pipeline.text.formats.json_values import (
    JsonBlock,
    TypeInspection,
    convert_value,
    integer_bits,
    is_id,
    is_integer,
    parse_block,
    parse_line,
    show_value,
)
from pipeline.text.formats.quarantine import RejectedRow
from pipeline.text.formats.reject_rows import RawBatch
from pipeline.text.formats.row_filter import filter_objects, filter_table, parse_for, type_of_value
from pipeline.text.normalize import has_surrogates, is_utf8, replace_surrogates
from pipeline.text.sources.sources import (
    SourceFile,
    columns_read,
    composed_columns,
    filter_columns,
    open_file,
)
from pipeline.text.sources.storage_errors import storage_errors


def keys_by_column(schema: pa.Schema, corpus: CorpusSettings) -> dict[str, str]:
    """Map each column of the batch to the key of its value in a JSON object."""
    return dict(zip(schema.names, (corpus.id, corpus.text, *corpus.keep), strict=True))


def partition_values(schema: pa.Schema, file: SourceFile, corpus: CorpusSettings) -> dict[str, pa.Scalar]:
    """Map columns of the batch to their values in the file's hive partition, for rows without a value.

    Columns whose type cannot hold the partition's value are left out.
    """
    values = {}
    for column, name in keys_by_column(schema, corpus).items():
        with contextlib.suppress(pa.ArrowException):
            values[column] = pa.scalar(file.partitions.get(name), pa.string()).cast(schema.field(column).type)
    return {column: value for column, value in values.items() if value.is_valid}


@dataclass
class LineParser:
    """Rows and rejected lines of one block; `add` parses a line."""

    file: SourceFile
    corpus: CorpusSettings
    schema: pa.Schema
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    """(id, text, kept values, row number) of each row"""
    rejected: list[RejectedRow] = field(default_factory=list)
    surrogates: list[int] = field(default_factory=list)
    """numbers of the rows whose text had lone surrogates"""
    nulled: list[int] = field(default_factory=list)
    """numbers of the rows with a kept value that did not fit and became null, once for each such value"""
    compared: list[tuple[int, list[Any]]] = field(default_factory=list)
    """number of each object's row, and its values of the columns that corpus.where names"""
    partition: dict[str, Any] = field(init=False)
    """values of rows that lack them; see `partition_values`"""
    filter_columns: tuple[str, ...] = field(init=False)
    read: tuple[str, ...] = field(init=False)
    """all columns whose values are read"""
    template: TextTemplate = field(init=False)

    def __post_init__(self) -> None:
        self.partition = {
            column: value.as_py()
            for column, value in partition_values(self.schema, self.file, self.corpus).items()
        }
        self.filter_columns = filter_columns(self.corpus)
        self.read = columns_read(self.corpus)
        self.template = parse_template(self.corpus.text)

    def add(self, number: int, line: bytes) -> None:
        """Parse a line and add it to the rows or to the rejected lines."""
        value, reason, detail = parse_line(line, self.read)
        if value is None:
            self.rejected.append(RejectedRow(number, reason, detail, text=line.decode(errors="replace")))
            return
        if self.filter_columns:
            self.compared.append((number, self._values(value, self.filter_columns)))
        row_id, text, *kept_values = (
            self.partition.get(column) if value.get(key) is None else value[key]
            for column, key in keys_by_column(self.schema, self.corpus).items()
        )
        type_errors = list[str]()
        if not self.template.is_column:
            text = self._render(value, type_errors)
        if not isinstance(text, str | None):
            type_errors.append(f"{self.corpus.text} is {show_value(text)}, not a string")
        id_type = self.schema.field("id").type
        if row_id is not None and not is_id(row_id, id_type):
            type_errors.append(f"{self.corpus.id} is {show_value(row_id)}, not an id of type {id_type}")
        if type_errors:
            self.rejected.append(
                RejectedRow(
                    number,
                    "wrong_type",
                    ", ".join(type_errors),
                    id=row_id if isinstance(row_id, str | None) else show_value(row_id),
                    text=text if isinstance(text, str) else None,
                )
            )
        else:
            self.rows.append(self._to_row(number, row_id, text, kept_values))

    def _values(self, value: dict[str, Any], names: Sequence[str]) -> list[Any]:
        """Return an object's values of some columns; those of the file's hive partition where it has none."""
        of_file = self.file.partitions
        return [of_file.get(name) if value.get(name) is None else value[name] for name in names]

    def _render(self, value: dict[str, Any], type_errors: list[str]) -> str | None:
        """Return the text of an object by the template; append to `type_errors` for values of other types."""
        names, texts = self.template.columns, list[str | None]()
        for name, each in zip(names, self._values(value, names), strict=True):
            if not isinstance(each, str | None) and not is_integer(each):
                type_errors.append(f"{name} is {show_value(each)}, not a string or an integer")
            texts.append(None if each is None else str(each))
        return self.template.render(texts)

    def _to_row(
        self, number: int, row_id: Any, text: str | None, kept_values: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Convert values to a row. Lone surrogates become U+FFFD, kept values that do not fit become None."""
        if isinstance(row_id, str):
            row_id = replace_surrogates(row_id)
        kept_types = self.schema.types[2:]  # after the id and the text
        kept = [convert_value(value, kind) for value, kind in zip(kept_values, kept_types, strict=True)]
        self.nulled += [number for _, fits in kept if not fits]
        if isinstance(text, str) and has_surrogates(text):
            self.surrogates.append(number)
            text = replace_surrogates(text)
        return row_id, text, *(value for value, _ in kept), number

    def batch(self, position: int) -> RawBatch:
        """Return the rows added so far; `position` is the number of bytes of the file that were read."""
        where, filtered = self.corpus.where, None
        if where is not None:
            filtered = filter_objects(where, self.filter_columns, self.compared)
        return RawBatch(
            self._table(), position, self.rejected, self.surrogates, self.nulled, filtered=filtered
        )

    def _table(self) -> pa.Table:
        schema = self.schema.append(pa.field("row", pa.int64()))
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(schema)
        return pa.table(
            [array_of(values, kind) for values, kind in zip(columns, schema.types, strict=True)],
            schema=schema,
        )


_BLOCK_BYTES = 1 << 20  # bytes parsed at once: few, because one line that Arrow rejects makes its block slow
_MAX_LINE_BYTES = 256 << 20  # a file with a longer line is not JSON lines
_TYPED_LINES = 16  # lines of a block that are searched for the type of a compared column
_BOM = b"\xef\xbb\xbf"


def inspect(file: SourceFile, corpus: CorpusSettings) -> FileColumns:
    """Find the types of a file's columns.

    Without kept columns, the blocks up to the last new column of corpus.where and of a template are enough.
    Types of kept columns depend on all rows that may be read, because a number with a decimal point may occur
    late.

    Raises:
        DataError: the file is a JSON array, or a column is missing from all objects or has no valid value.
    """
    inspection = TypeInspection(file, corpus)
    for block in read_blocks(file):
        inspection.add(block)
        lines = block.first + block.lines.count(b"\n")
        if inspection.is_final or (corpus.max_rows is not None and lines >= corpus.max_rows):
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
        batch = None if columns.leaves_out_keys else _parse_by_arrow(block, schema, file, corpus)
        if batch is not None:
            yield batch
        else:
            parser = LineParser(file, corpus, schema)
            for number, line in enumerate(block.lines.split(b"\n"), start=block.first):
                if line.strip():
                    parser.add(number, line)
            yield parser.batch(block.position)


def read_blocks(file: SourceFile) -> Iterator[JsonBlock]:
    """Yield the file's lines in blocks of about _BLOCK_BYTES bytes."""
    pending, lines = b"", 0  # bytes that are in no block yet, and the number of lines before them
    with storage_errors(file.uri), open_file(file) as stream:
        is_gzip = file.name.lower().endswith(".gz")
        if is_gzip and not file.size:  # gzip.GzipFile would take it for a file without rows
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
) -> RawBatch | None:
    """Parse a block by Arrow; None unless every line is valid UTF-8 and one object that fits the schema.

    None, too, unless `LineParser` would give the same for the columns that a filter or a template names.
    """
    rows, keys, template = _count_object_lines(block.lines), keys_by_column(schema, corpus), None
    if not parse_template(corpus.text).is_column:
        del keys["text"]
        template = parse_template(corpus.text)
    types = {key: schema.field(column).type for column, key in keys.items()}
    if rows is None or any(schema.field(column).type != types[key] for column, key in keys.items()):
        return None  # lines that are not objects, or one key for two columns of different types
    if (composed := _composed_types(block, types, file, corpus)) is None:
        return None
    try:
        table = parse_block(block.lines, composed | types)
        texts = [table[name].cast(pa.string()) for name in template.columns] if template else []
        compared = [table[name].cast(composed[name]) for name in filter_columns(corpus)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if table.num_rows != rows or any(map(_may_be_rounded, (*table.columns, *compared))):
        return None
    columns = {column: table[key] for column, key in keys.items()}
    if template:
        values = zip(*(each.to_pylist() for each in texts), strict=True)
        columns["text"] = pa.chunked_array([pa.array(map(template.render, values), pa.string())])
    for column, value in partition_values(schema, file, corpus).items():
        columns[column] = pc.fill_null(columns[column], value)
    numbers, filtered = np.arange(block.first, block.first + rows, dtype=np.int64), None
    if corpus.where is not None:
        named = pa.table(compared, names=list(filter_columns(corpus)))
        if isinstance(parse_for(corpus.where, named.schema), str):
            return None
        filtered = filter_table(corpus.where, named, numbers)
    in_order = {name: columns[name] for name in schema.names}
    batch = pa.table({**in_order, "row": pa.array(numbers)}).combine_chunks()
    return RawBatch(batch, block.position, filtered=filtered)


def _composed_types(
    block: JsonBlock, known: Mapping[str, pa.DataType], file: SourceFile, corpus: CorpusSettings
) -> dict[str, pa.DataType] | None:
    """Return types in which Arrow may take values of the columns that a filter or a template names.

    The type of a compared column is that of its first value. An integer that is kept as such is compared as
    a double, like every number of JSON, and put into a text as it is.

    Args:
        known: types of the id, the text and the kept columns.

    Returns:
        The types, or None if the block has to be parsed line by line.
    """
    names, template = composed_columns(corpus), parse_template(corpus.text)
    if file.partitions.keys() & names.keys():
        return None
    types = {} if template.is_column else dict.fromkeys(template.columns, pa.string())
    if any(name in known and not is_text(known[name]) and not _is_integer(known[name]) for name in types):
        return None
    first = block.lines.split(b"\n", _TYPED_LINES)[:_TYPED_LINES] if filter_columns(corpus) else []
    objects = [parse_line(line, ()).value or {} for line in first]
    for name in filter_columns(corpus):
        kind = type_of_value(next((each[name] for each in objects if each.get(name) is not None), None))
        if kind not in (pa.string(), pa.bool_(), pa.float64()) or types.setdefault(name, kind) != kind:
            return None
        if name in known and known[name] != kind and not (_is_integer(known[name]) and kind == pa.float64()):
            return None
    return types


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def _may_be_rounded(column: pa.ChunkedArray) -> bool:
    """Return whether a column has floating-point numbers so large that they may be rounded integers."""
    if not any(map(pa.types.is_floating, leaf_types(column.type))):
        return False
    for leaf in (leaf for chunk in column.chunks for leaf in leaves(chunk)):
        if pa.types.is_floating(leaf.type):
            bounds = pc.min_max(leaf).as_py().values()
            if any(abs(bound or 0) >= 2 ** integer_bits(leaf.type) for bound in bounds):
                return True
    return False


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
