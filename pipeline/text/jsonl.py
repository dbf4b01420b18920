"""Rows of JSON lines, plain or gzip, streamed block by block: Arrow's parser where a block is in order, line by line where it is not."""

import contextlib
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pipeline.settings import CorpusSettings
from pipeline.store.schema import carried_name
from pipeline.text.columns import Columns, Seen, missing, mistyped, widest
from pipeline.text.normalize import has_surrogates, replace_surrogates
from pipeline.text.quarantine import Rejected
from pipeline.text.rows import RawBatch
from pipeline.text.sources import SourceFile, explained, open_file

_BLOCK = 1 << 20                # bytes parsed at once: small, since one odd line sends its block down the slow road
_LONGEST_LINE = 256 << 20       # bytes: a longer one means that the file is not JSON lines
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class _Block:
    """Whole lines. first: number of the first one in the file, from 0; position: bytes of the file read so far."""

    lines: bytes
    first: int
    position: int


def inspect(file: SourceFile, corpus: CorpusSettings) -> Seen:
    """Types by the first block, with kept columns by all rows that may be read: a number with a point may come late.

    DataError when the file is an array, or no object has a column, or one of the right type.
    """
    look = _Look(file, corpus)
    for block in _blocks(file):
        look.add(block)
        if not corpus.keep or (corpus.max_rows is not None and block.first + block.lines.count(b"\n") >= corpus.max_rows):
            break
    return look.seen()


def read(file: SourceFile, corpus: CorpusSettings, columns: Columns) -> Iterator[RawBatch]:
    """All lines in order but blank ones, which are no rows; a row's number is its line's, from 0."""
    schema = pa.schema([("id", columns.id), ("text", pa.string()), *((carried_name(field.name), field.type) for field in columns.kept)])
    for block in _blocks(file):
        table = _parsed_by_arrow(block, schema, file, corpus)
        if table is not None:
            yield RawBatch(table, block.position)
        else:
            lines = _Lines(file, corpus, schema)
            for number, line in enumerate(block.lines.split(b"\n"), start=block.first):
                if line.strip():
                    lines.add(number, line)
            yield RawBatch(lines.table(), block.position, tuple(lines.rejected), tuple(lines.surrogates), tuple(lines.dropped))


def _blocks(file: SourceFile) -> Iterator[_Block]:
    """The file's lines in blocks of about _BLOCK bytes."""
    held, lines = b"", 0
    with explained(file.uri), open_file(file) as stream:
        source: Any = gzip.GzipFile(fileobj=stream) if file.name.lower().endswith(".gz") else stream
        while piece := _next(source, file):
            held = held + piece if held or lines else piece.removeprefix(_BOM)
            end = held.rfind(b"\n") + 1
            if end:
                yield _Block(held[:end], lines, stream.tell())
                lines, held = lines + held.count(b"\n", 0, end), held[end:]
            elif len(held) > _LONGEST_LINE:
                raise file.error(f"lines of at most {_LONGEST_LINE >> 20} MiB", "a longer one", "the file is probably not JSON lines: set corpus.format, or remove it")
        if held:
            yield _Block(held, lines, file.size)


def _next(source: Any, file: SourceFile) -> bytes:
    try:
        return bytes(source.read(_BLOCK))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise file.error("a whole gzip file", f"{type(error).__name__}: {error}", "it is damaged or cut short: write it again") from None


def _parsed_by_arrow(block: _Block, schema: pa.Schema, file: SourceFile, corpus: CorpusSettings) -> pa.Table | None:
    """The block's rows; None when not every line is plainly one object that fits, or not all is UTF-8."""
    rows = _plain_lines(block.lines)
    if rows is None:
        return None
    sources = _sources(schema, corpus)
    wanted = {name: schema.field(column).type for column, name in sources.items()}
    if any(schema.field(column).type != wanted[name] for column, name in sources.items()):
        return None                                     # one key for two columns of different types
    table = _table(block.lines, wanted)
    if table is None or table.num_rows != rows:
        return None
    columns = {column: table[name] for column, name in sources.items()}
    columns |= {column: pc.fill_null(columns[column], value) for column, value in _partition_values(schema, file, corpus).items()}
    number = pa.array(np.arange(block.first, block.first + rows, dtype=np.int64))
    return pa.table({**columns, "row": number}).combine_chunks()


def _table(lines: bytes, types: dict[str, pa.DataType]) -> pa.Table | None:
    """The objects' values under those keys; None when one is of another type, or not all is JSON."""
    parse = pj.ParseOptions(explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore")
    try:
        return pj.read_json(pa.BufferReader(lines), pj.ReadOptions(use_threads=False, block_size=len(lines) + 1), parse)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _plain_lines(lines: bytes) -> int | None:
    """How many lines there are, when each begins with { and ends with } and all is UTF-8: then Arrow's rows are the lines."""
    try:
        lines.decode()
    except UnicodeDecodeError:
        return None
    content = np.frombuffer(lines, dtype=np.uint8)
    ends = np.flatnonzero(content == ord("\n"))
    ends = ends if lines.endswith(b"\n") else np.append(ends, len(lines))
    starts = np.concatenate([[0], ends[:-1] + 1])
    if (ends - starts < 2).any() or (content[starts] != ord("{")).any() or (content[ends - 1] != ord("}")).any():
        return None
    return len(ends)


def _sources(schema: pa.Schema, corpus: CorpusSettings) -> dict[str, str]:
    """Column of the batch -> key of the object."""
    return dict(zip(schema.names, (corpus.id, corpus.text, *corpus.keep), strict=True))


def _partition_values(schema: pa.Schema, file: SourceFile, corpus: CorpusSettings) -> dict[str, pa.Scalar]:
    """Column of the batch -> what it holds where a row has no value of its own; without columns that cannot hold it."""
    values = {}
    for column, name in _sources(schema, corpus).items():
        with contextlib.suppress(pa.ArrowException):
            values[column] = pa.scalar(file.partitions.get(name), pa.string()).cast(schema.field(column).type)
    return {column: value for column, value in values.items() if value.is_valid}


def _parse(line: bytes) -> tuple[dict[str, Any] | None, str, str]:
    """(object, "", "") or (None, reason, detail)."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return None, "invalid_utf8", f"byte {error.start} of the line"
    except (ValueError, RecursionError) as error:
        return None, "invalid_json", str(error)
    if not isinstance(value, dict):
        return None, "invalid_json", f"{type(value).__name__}, not an object"
    return value, "", ""


@dataclass
class _Look:
    """What the blocks of a file tell about the types of its id and its kept columns."""

    file: SourceFile
    corpus: CorpusSettings
    types: dict[str, pa.DataType] = field(init=False)
    example: dict[str, Any] | None = None               # the first object
    present: set[str] = field(default_factory=set)
    negative: bool = False
    large: bool = False                                 # an id of 2^63 or above

    def __post_init__(self) -> None:
        self.types = dict.fromkeys((self.corpus.id, *self.corpus.keep), pa.null())

    def add(self, block: _Block) -> None:
        if block.first == 0 and block.lines.lstrip().startswith(b"["):
            raise self.file.error("JSON lines (one object per line)", "a JSON array", "write one object per line, for instance with jq -c '.[]'")
        if self.example is not None and self._as_known(block):
            return
        objects = [one for line in block.lines.split(b"\n") if line.strip() and (one := _parse(line)[0]) is not None]
        if objects and self.example is None:
            self.example = objects[0]
            self._check_text(objects)
        for one in objects:
            self.present |= self.types.keys() & one.keys()
            self._add_id(one.get(self.corpus.id))
            for name in self._carried():
                self.types[name] = _widened(self.types[name], one.get(name))

    def seen(self) -> Seen:
        for setting, names in (("corpus.id", (self.corpus.id,)), ("corpus.keep", self.corpus.keep)):
            for name in names:
                if self.example is not None and name not in self.present and name not in self.file.partitions:
                    raise missing(self.file, setting, name, [*self.file.partitions, *self.example])
        types = {name: pa.string() if pa.types.is_null(kind) and name in self.file.partitions else kind for name, kind in self.types.items()}
        if pa.types.is_integer(types[self.corpus.id]):
            types[self.corpus.id] = pa.uint64() if self.large and not self.negative else pa.int64()
        return Seen(self.file, types, negative_ids=self.negative)

    def _as_known(self, block: _Block) -> bool:
        """Whether Arrow can read the block by the types found so far: it has nothing to add then."""
        table = _table(block.lines, self.types)
        if table is not None and pa.types.is_uint64(self.types[self.corpus.id]):
            self.large |= (pc.max(table[self.corpus.id]).as_py() or 0) >= 2**63
        return table is not None

    def _check_text(self, objects: list[dict[str, Any]]) -> None:
        name = self.corpus.text
        if name not in self.file.partitions and not any(name in one for one in objects):
            raise missing(self.file, "corpus.text", name, [*self.file.partitions, *objects[0]])
        texts = [one[name] for one in objects if one.get(name) is not None]
        if texts and not any(isinstance(text, str) for text in texts):
            raise mistyped(self.file, "corpus.text", name, "string", type(texts[0]).__name__)

    def _add_id(self, value: Any) -> None:
        """Integers are taken as uint64 until one is negative."""
        agreed = _agreed_id(self.types[self.corpus.id], value, self.file, self.corpus)
        if isinstance(value, int):
            self.negative |= -(2**63) <= value < 0
            self.large |= 2**63 <= value < 2**64
            agreed = pa.int64() if self.negative else pa.uint64()
        self.types[self.corpus.id] = agreed

    def _carried(self) -> list[str]:
        return [name for name in self.corpus.keep if name != self.corpus.id]


@dataclass
class _Lines:
    """Takes a block line by line and finds a place for each: a row, or what is wrong with it."""

    file: SourceFile
    corpus: CorpusSettings
    schema: pa.Schema
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    surrogates: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    partition: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.partition = {column: value.as_py() for column, value in _partition_values(self.schema, self.file, self.corpus).items()}

    def add(self, number: int, line: bytes) -> None:
        value, reason, detail = _parse(line)
        if value is None:
            self.rejected.append(Rejected(number, reason, detail, text=line.decode(errors="replace")))
            return
        row_id, text, *others = (self._value(value.get(name), column) for column, name in _sources(self.schema, self.corpus).items())
        row_id = self._id(row_id)
        wrong = [] if isinstance(text, str | None) else [(self.corpus.text, text)]
        if isinstance(row_id, int) and not _in_range(row_id, self.schema.field("id").type):
            wrong.append((self.corpus.id, row_id))
        if wrong:
            detail = ", ".join(f"{name} is {json.dumps(found)[:60]}" for name, found in wrong)
            self.rejected.append(Rejected(number, "wrong_type", detail, None if row_id is None else str(row_id), text if isinstance(text, str) else None))
            return
        kept = [_fitted(one, kind) for one, kind in zip(others, self.schema.types[2:], strict=True)]
        self.dropped += [number for _, fits in kept if not fits]
        if isinstance(text, str) and has_surrogates(text):
            self.surrogates.append(number)
            text = replace_surrogates(text)
        self.rows.append((row_id, text, *(one for one, _ in kept), number))

    def table(self) -> pa.Table:
        schema = self.schema.append(pa.field("row", pa.int64()))
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(schema)
        return pa.table([pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)], schema=schema)

    def _value(self, own: Any, column: str) -> Any:
        return self.partition.get(column) if own is None else own

    def _id(self, value: Any) -> int | str | None:
        found = _agreed_id(self.schema.field("id").type, value, self.file, self.corpus)
        assert found == self.schema.field("id").type
        return replace_surrogates(value) if isinstance(value, str) else value


def _agreed_id(agreed: pa.DataType, value: Any, file: SourceFile, corpus: CorpusSettings) -> pa.DataType:
    """`agreed` itself, or what the first value says. DataError when `value` is of another type than the ids before it."""
    if value is None:
        return agreed
    found = pa.string() if isinstance(value, str) else pa.int64() if isinstance(value, int) and not isinstance(value, bool) else None
    if found is None:
        raise mistyped(file, "corpus.id", corpus.id, "string or integer", f"{json.dumps(value)[:60]} ({type(value).__name__})")
    if not pa.types.is_null(agreed) and pa.types.is_string(found) != pa.types.is_string(agreed):
        kinds = ("string", "integer") if pa.types.is_string(agreed) else ("integer", "string")
        raise mistyped(file, "corpus.id", corpus.id, f"{kinds[0]}, as before", f"{json.dumps(value)[:60]} ({kinds[1]})")
    return found if pa.types.is_null(agreed) else agreed


def _in_range(value: int, kind: pa.DataType) -> bool:
    return 0 <= value < 2**64 if pa.types.is_uint64(kind) else -(2**63) <= value < 2**63


def _fitted(value: Any, kind: pa.DataType) -> tuple[Any, bool]:
    """(the value as that type holds it, whether it does), by the same rules as Arrow's parser: 3 is a double, 3.0 is no integer, true is neither."""
    types, number = pa.types, isinstance(value, int | float) and not isinstance(value, bool)
    if value is None:
        return None, True
    if types.is_string(kind) or types.is_large_string(kind):
        return (replace_surrogates(value), True) if isinstance(value, str) else (None, False)
    if types.is_boolean(kind):
        return value, isinstance(value, bool)
    if types.is_floating(kind) and number:
        return _converted(float, value)
    if types.is_integer(kind) and number and isinstance(value, int):
        return _converted(lambda: pa.scalar(value, kind).as_py())
    return _converted(lambda: _by_arrow(value, kind))


def _converted(convert: Callable[..., Any], *values: Any) -> tuple[Any, bool]:
    try:
        return convert(*values), True
    except (pa.ArrowException, OverflowError):
        return None, False


def _by_arrow(value: Any, kind: pa.DataType) -> Any:
    """A nested value or a date: the one block of this one value is Arrow's to read."""
    parse = pj.ParseOptions(explicit_schema=pa.schema([("value", kind)]), unexpected_field_behavior="ignore")
    content = json.dumps({"value": value}).encode()
    return pj.read_json(pa.BufferReader(content), pj.ReadOptions(use_threads=False, block_size=len(content) + 1), parse)["value"][0].as_py()


def _widened(kind: pa.DataType, value: Any) -> pa.DataType:
    """The type that holds values of `kind` and this one (null gives way to any, an integer to a double); `kind` itself where none does."""
    if value is None:
        return kind
    with contextlib.suppress(pa.ArrowException, OverflowError):
        found = pa.infer_type([value])
        return kind if found == kind else widest(kind, found)
    return kind
