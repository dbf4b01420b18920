"""Rows of JSON lines, plain or gzip, streamed block by block: Arrow's parser where a block is in order, line by line where it is not."""

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pipeline.settings import CorpusSettings
from pipeline.store.schema import carried_name
from pipeline.text.corpus.columns import Columns, Seen, missing, mistyped
from pipeline.text.corpus.normalize import has_surrogates, replace_surrogates
from pipeline.text.corpus.quarantine import Rejected
from pipeline.text.corpus.sift import RawBatch
from pipeline.text.corpus.sources import SourceFile, explained, open_file
from pipeline.text.corpus.values import fitted, widened

_BLOCK = 1 << 20  # bytes parsed at once: small, since one odd line sends its block down the slow road
_LONGEST_LINE = 256 << 20  # bytes: a longer one means that the file is not JSON lines
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
        if not corpus.keep or (
            corpus.max_rows is not None and block.first + block.lines.count(b"\n") >= corpus.max_rows
        ):
            break
    return look.seen()


def read(file: SourceFile, corpus: CorpusSettings, columns: Columns) -> Iterator[RawBatch]:
    """All lines in order but blank ones, which are no rows; a row's number is its line's, from 0."""
    schema = pa.schema(
        [
            ("id", columns.id),
            ("text", pa.string()),
            *((carried_name(field.name), field.type) for field in columns.kept),
        ]
    )
    for block in _blocks(file):
        table = None if columns.partly else _parsed_by_arrow(block, schema, file, corpus)
        if table is not None:
            yield RawBatch(table, block.position)
        else:
            lines = _Lines(file, corpus, schema)
            for number, line in enumerate(block.lines.split(b"\n"), start=block.first):
                if line.strip():
                    lines.add(number, line)
            yield RawBatch(
                lines.table(),
                block.position,
                tuple(lines.rejected),
                tuple(lines.surrogates),
                tuple(lines.dropped),
            )


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
                raise file.error(
                    f"lines of at most {_LONGEST_LINE >> 20} MiB",
                    "a longer one",
                    "the file is probably not JSON lines: set corpus.format, or remove it",
                )
        if held:
            yield _Block(held, lines, file.size)


def _next(source: Any, file: SourceFile) -> bytes:
    try:
        return bytes(source.read(_BLOCK))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise file.error(
            "a whole gzip file",
            f"{type(error).__name__}: {error}",
            "it is damaged or cut short: write it again",
        ) from None


def _parsed_by_arrow(
    block: _Block, schema: pa.Schema, file: SourceFile, corpus: CorpusSettings
) -> pa.Table | None:
    """The block's rows; None when not every line is plainly one object that fits, or not all is UTF-8."""
    rows = _plain_lines(block.lines)
    if rows is None:
        return None
    sources = _sources(schema, corpus)
    wanted = {name: schema.field(column).type for column, name in sources.items()}
    if any(schema.field(column).type != wanted[name] for column, name in sources.items()):
        return None  # one key for two columns of different types
    table = _table(block.lines, wanted)
    if table is None or table.num_rows != rows:
        return None
    columns = {column: table[name] for column, name in sources.items()}
    columns |= {
        column: pc.fill_null(columns[column], value)
        for column, value in _partition_values(schema, file, corpus).items()
    }
    number = pa.array(np.arange(block.first, block.first + rows, dtype=np.int64))
    return pa.table({**columns, "row": number}).combine_chunks()


def _table(lines: bytes, types: dict[str, pa.DataType]) -> pa.Table | None:
    """The objects' values under those keys; None when one is of another type, or not all is JSON."""
    parse = pj.ParseOptions(
        explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore"
    )
    try:
        return pj.read_json(
            pa.BufferReader(lines), pj.ReadOptions(use_threads=False, block_size=len(lines) + 1), parse
        )
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
    if (
        (ends - starts < 2).any()
        or (content[starts] != ord("{")).any()
        or (content[ends - 1] != ord("}")).any()
    ):
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
    example: dict[str, Any] | None = None  # the first object
    wrong_id: Any = None  # one that is neither a string nor an integer
    present: set[str] = field(default_factory=set)
    partly: set[str] = field(default_factory=set)  # nested columns with values that their types do not hold
    negative: bool = False
    large: bool = False  # an id of 2^63 or above

    def __post_init__(self) -> None:
        self.types = dict.fromkeys((self.corpus.id, *self.corpus.keep), pa.null())

    def add(self, block: _Block) -> None:
        if block.first == 0 and block.lines.lstrip().startswith(b"["):
            raise self.file.error(
                "JSON lines (one object per line)",
                "a JSON array",
                "write one object per line, for instance with jq -c '.[]'",
            )
        if self.example is not None and self._as_known(block):
            return
        objects = [
            one for line in block.lines.split(b"\n") if line.strip() and (one := _parse(line)[0]) is not None
        ]
        if objects and self.example is None:
            self.example = objects[0]
            self._check_text(objects)
        self._add_ids(objects)
        for one in objects:
            self.present |= self.types.keys() & one.keys()
            for name in self._carried():
                self.types[name], held = widened(self.types[name], one.get(name))
                if not held and pa.types.is_nested(self.types[name]):
                    self.partly.add(name)

    def seen(self) -> Seen:
        example = self.example or {}
        absent = (
            frozenset(self.types) - self.present - self.file.partitions.keys() if example else frozenset()
        )
        if self.corpus.id in absent:
            raise missing(self.file, "corpus.id", self.corpus.id, [*self.file.partitions, *example])
        if self.wrong_id is not None and pa.types.is_null(self.types[self.corpus.id]):
            raise mistyped(
                self.file,
                "corpus.id",
                self.corpus.id,
                "string or integer",
                f"{_shown(self.wrong_id)} ({type(self.wrong_id).__name__})",
            )
        types = {
            name: pa.string() if pa.types.is_null(kind) and name in self.file.partitions else kind
            for name, kind in self.types.items()
        }
        if pa.types.is_integer(types[self.corpus.id]):
            types[self.corpus.id] = pa.uint64() if self.large and not self.negative else pa.int64()
        return Seen(
            self.file,
            types,
            negative_ids=self.negative,
            known=(*self.file.partitions, *example),
            absent=absent,
            partly=frozenset(self.partly),
        )

    def _as_known(self, block: _Block) -> bool:
        """Whether Arrow can read the block by the types found so far: it has nothing to add then. It passes
        over keys of nested values that a type lacks.
        """
        if any(pa.types.is_nested(kind) for kind in self.types.values()):
            return False
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

    def _add_ids(self, objects: list[dict[str, Any]]) -> None:
        """The first block with ids decides between strings and integers, by most of them. Integers are taken
        as uint64 until one is negative.
        """
        name = self.corpus.id
        values = [one[name] for one in objects if one.get(name) is not None]
        strings, integers = sum(map(_is_string, values)), sum(map(_is_integer, values))
        if pa.types.is_null(self.types[name]) and (strings or integers):
            self.types[name] = pa.string() if strings >= integers else pa.uint64()
        elif values and self.wrong_id is None:
            self.wrong_id = values[0]
        if not pa.types.is_integer(self.types[name]):
            return
        numbers = list(filter(_is_integer, values))
        self.negative |= any(-(2**63) <= number < 0 for number in numbers)
        self.large |= any(2**63 <= number < 2**64 for number in numbers)
        self.types[name] = pa.int64() if self.negative else pa.uint64()

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
        self.partition = {
            column: value.as_py()
            for column, value in _partition_values(self.schema, self.file, self.corpus).items()
        }

    def add(self, number: int, line: bytes) -> None:
        value, reason, detail = _parse(line)
        if value is None:
            self.rejected.append(Rejected(number, reason, detail, text=line.decode(errors="replace")))
            return
        row_id, text, *others = (
            self._value(value.get(name), column)
            for column, name in _sources(self.schema, self.corpus).items()
        )
        wrong = [] if isinstance(text, str | None) else [(self.corpus.text, text, "a string")]
        if row_id is not None and not _is_id(row_id, self.schema.field("id").type):
            wrong.append((self.corpus.id, row_id, f"an id of type {self.schema.field('id').type}"))
        if wrong:
            detail = ", ".join(
                f"{name} is {_shown(found)}, not {expected}" for name, found, expected in wrong
            )
            shown_id = None if row_id is None else row_id if isinstance(row_id, str) else _shown(row_id)
            self.rejected.append(
                Rejected(number, "wrong_type", detail, shown_id, text if isinstance(text, str) else None)
            )
            return
        if isinstance(row_id, str):
            row_id = replace_surrogates(row_id)
        kept = [fitted(one, kind) for one, kind in zip(others, self.schema.types[2:], strict=True)]
        self.dropped += [number for _, fits in kept if not fits]
        if isinstance(text, str) and has_surrogates(text):
            self.surrogates.append(number)
            text = replace_surrogates(text)
        self.rows.append((row_id, text, *(one for one, _ in kept), number))

    def table(self) -> pa.Table:
        schema = self.schema.append(pa.field("row", pa.int64()))
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(schema)
        return pa.table(
            [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)],
            schema=schema,
        )

    def _value(self, own: Any, column: str) -> Any:
        return self.partition.get(column) if own is None else own


def _is_id(value: Any, kind: pa.DataType) -> bool:
    """Whether a value can be an id of that type."""
    return _is_string(value) if pa.types.is_string(kind) else _is_integer(value) and _in_range(value, kind)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """The beginning of a value, as JSON."""
    return json.dumps(value)[:60]


def _in_range(value: int, kind: pa.DataType) -> bool:
    return 0 <= value < 2**64 if pa.types.is_uint64(kind) else -(2**63) <= value < 2**63
