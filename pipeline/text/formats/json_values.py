"""Parse JSON: whole blocks of lines by Arrow, single lines by Python, and convert values to column types."""

import contextlib
import functools
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pipeline.settings import CorpusSettings
from pipeline.settings.text_template import parse_template
from pipeline.store.rows.arrays import is_text
from pipeline.store.rows.nested import map_type
from pipeline.text.formats.columns import (
    MAX_LEAVES,
    FileColumns,
    common_type,
    count_leaves,
    missing_column,
    wrong_column_type,
)
from pipeline.text.normalize import has_surrogates, replace_surrogates
from pipeline.text.sources.sources import SourceFile, columns_read, composed_columns

MAX_DEPTH = 32  # levels of a nested value: Arrow and Parquet recurse at each level


@dataclass(frozen=True)
class JsonBlock:
    """Consecutive, complete lines of a file."""

    lines: bytes
    first: int
    """number of the first line, from 0"""
    position: int
    """bytes of the file read so far"""


def parse_block(lines: bytes, types: dict[str, pa.DataType]) -> pa.Table:
    """Parse lines of JSON objects into a table with a column for each key of `types`; other keys are ignored.

    Raises:
        pa.ArrowInvalid, pa.ArrowNotImplementedError: a value has another type, or a line is not valid JSON.
    """
    return pj.read_json(
        pa.BufferReader(lines),
        pj.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        pj.ParseOptions(explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore"),
    )


class ParsedLine(NamedTuple):
    """The JSON object on a line, or the reason why there is none."""

    value: dict[str, Any] | None
    """None for a line to reject"""
    reason: str = ""
    """as in `RejectedRow`"""
    detail: str = ""
    """as in `RejectedRow`"""


class _RepeatedKey(Exception):
    """Raised for an object that has a key more than once."""


class _Repeating(dict[str, Any]):
    """An object with repeated keys and the last value of each."""

    repeated: tuple[str, ...]


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise _RepeatedKey
    return value


def _last_values_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = _Repeating(pairs)
    if len(value) == len(pairs):
        return dict(value)
    keys = [key for key, _ in pairs]
    value.repeated = tuple(key for key in value if keys.count(key) > 1)
    return value


_decode = json.JSONDecoder(object_pairs_hook=_object_of).decode


def parse_line(line: bytes, read: Collection[str]) -> ParsedLine:
    """Parse one line.

    Args:
        read: keys whose values are used. If one of them, or a key inside of its value, is repeated, it is
            unknown which value was meant: such a line is rejected, as by Arrow.
    """
    try:
        text = line.decode()
        value = parse_object(text, read)
    except UnicodeDecodeError as error:
        return ParsedLine(None, "invalid_utf8", f"byte {error.start} of the line")
    except ValueError as error:
        return ParsedLine(None, "invalid_json", str(error))
    except RecursionError:
        return ParsedLine(None, "invalid_json", "nested too deep to be parsed")
    if not isinstance(value, dict):
        return ParsedLine(None, "invalid_json", f"{type(value).__name__}, not an object")
    return ParsedLine(value)


def parse_object(text: str, read: Collection[str]) -> Any:
    """Parse a JSON value. Of keys that are not in `read`, the last value counts if they are repeated.

    Raises:
        ValueError: the text is not JSON, or a key in `read`, or inside of its value, is repeated.
        RecursionError: it is nested too deep.
    """
    try:
        return _decode(text)
    except _RepeatedKey:
        value = json.loads(text, object_pairs_hook=_last_values_of)
    if isinstance(value, dict) and (key := _repeated_key(value, read)) is not None:
        raise ValueError(f"the key {show_value(key)} is there more than once")
    return value


def _repeated_key(value: dict[str, Any], read: Collection[str]) -> str | None:
    """Return a repeated key that is in `read` or inside of such a key's value; None if there is none."""
    remaining: list[Any] = [value[name] for name in read if name in value]
    if isinstance(value, _Repeating) and (keys := [key for key in value.repeated if key in read]):
        return keys[0]
    while remaining:
        node = remaining.pop()
        if isinstance(node, _Repeating):
            return node.repeated[0]
        remaining += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return None


def is_id(value: Any, kind: pa.DataType) -> bool:
    """Return whether a value can be an id of that type."""
    if pa.types.is_string(kind):
        return isinstance(value, str)
    low, high = (0, 2**64) if pa.types.is_uint64(kind) else (-(2**63), 2**63)
    return is_integer(value) and low <= value < high


def is_integer(value: Any) -> bool:
    """Return whether a value of JSON is an integer; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def show_value(value: Any) -> str:
    """Return the first 60 characters of a value as JSON, for messages."""
    return json.dumps(value)[:60]


def convert_value(value: Any, kind: pa.DataType) -> tuple[Any, bool]:
    """Convert a value to a type by the rules of Arrow's parser.

    3 is a valid double, but 3.0 is not a valid integer, and true is neither. Integers that a floating-point
    number would round do not fit.

    Returns:
        (converted value, True), or (None, False) if the value does not fit. If it is nested, objects without
        keys and integers that would be rounded do not make it unfit as a whole: they become null, and the
        result is (converted rest, False).
    """
    if value is None:
        return None, True
    if is_text(kind):
        return (replace_surrogates(value), True) if isinstance(value, str) else (None, False)
    if pa.types.is_boolean(kind):
        return (value, True) if isinstance(value, bool) else (None, False)
    if pa.types.is_floating(kind) and (is_integer(value) or isinstance(value, float)):
        return _try_convert(lambda: float(value)) if _keeps_number(kind, value) else (None, False)
    if pa.types.is_integer(kind) and is_integer(value):
        return _try_convert(lambda: pa.scalar(value, kind).as_py())
    if not is_bounded(value) or not _has_fields(kind, value):
        return None, False
    fitting = _without_misfits(kind, value)
    line = json.dumps({"value": fitting}).encode()  # Arrow parses nested values and dates
    converted, fits = _try_convert(lambda: parse_block(line, {"value": kind})["value"][0].as_py())
    return converted, fits and fitting == value


def _keeps_number(kind: pa.DataType, value: Any) -> bool:
    """Return whether a floating-point type keeps a number: an integer must not be rounded, a fraction may.

    An integer is also kept if it is the printed form of the type's nearest number: JavaScript prints the
    double 2^64 as 18446744073709552000.
    """
    if isinstance(value, float) or abs(value) < 2 ** integer_bits(kind):
        return True
    with np.errstate(over="ignore"), contextlib.suppress(OverflowError):
        number = kind.to_pandas_dtype()(value)
        return value in (int(number), int(np.format_float_positional(number, trim="-")))
    return False


def integer_bits(kind: pa.DataType) -> int:
    """Return the number of bits up to which a floating-point type represents every integer exactly."""
    return int(np.finfo(kind.to_pandas_dtype()).nmant) + 1


def _try_convert(convert: Callable[[], Any]) -> tuple[Any, bool]:
    """Return (result, True), or (None, False) if Arrow cannot convert the value."""
    try:
        return convert(), True
    except (pa.ArrowException, OverflowError, ValueError):
        return None, False


def widen_type(kind: pa.DataType, value: Any) -> tuple[pa.DataType, bool]:
    """Widen a type so that it also holds a value: null becomes any type, an integer becomes a double.

    Returns:
        (wider type, True), or (the type itself, False) if no type with at most MAX_LEAVES leaves holds both.
    """
    if value is None:
        return kind, True
    is_full = pa.types.is_nested(kind) and count_leaves(kind) >= MAX_LEAVES
    if is_bounded(value) and (not is_full or _has_fields(kind, value)):
        with contextlib.suppress(pa.ArrowException, OverflowError):
            if (value_type := pa.infer_type([value])) == kind:
                return kind, True
            wider = _wider(kind, value_type)
            if count_leaves(wider) <= MAX_LEAVES:
                return wider, True
    return kind, False


@functools.lru_cache  # cached, because the values of a column have few types
def _wider(kind: pa.DataType, value_type: pa.DataType) -> pa.DataType:
    return common_type(kind, map_type(value_type, _null_for_empty))


def _null_for_empty(leaf: pa.DataType) -> pa.DataType:
    """Return the type of null for objects without keys, for which Parquet has no type."""
    return pa.null() if pa.types.is_struct(leaf) else leaf


def is_bounded(value: Any) -> bool:
    """Return whether a JSON value has at most MAX_LEAVES paths to leaves, none longer than MAX_DEPTH.

    No key of a path may have a lone surrogate, which Arrow cannot store.
    """
    paths: set[tuple[str | None, ...]] = set()
    remaining: list[tuple[Any, tuple[str | None, ...]]] = [(value, ())]
    while remaining:
        node, path = remaining.pop()
        if len(path) > MAX_DEPTH or len(paths) > MAX_LEAVES:
            return False
        if isinstance(node, dict) and node:
            if has_surrogates("".join(node)):
                return False
            remaining += [(child, (*path, key)) for key, child in node.items()]
        elif isinstance(node, list) and node:
            remaining += [(child, (*path, None)) for child in node]
        else:
            paths.add(path)
    return len(paths) <= MAX_LEAVES


def _has_fields(kind: pa.DataType, value: Any) -> bool:
    """Return whether the type has a field for every key of the value, at all levels."""
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return all(
            (index := kind.get_field_index(key)) >= 0 and _has_fields(kind.field(index).type, child)
            for key, child in value.items()
        )
    if isinstance(value, list) and _is_list(kind):
        return all(_has_fields(kind.value_type, child) for child in value)
    return True


def _without_misfits(kind: pa.DataType, value: Any) -> Any:
    """Set to null integers that would be rounded, and objects without keys where the type has no struct.

    The type has a field for every key of the value.
    """
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {key: _without_misfits(kind.field(key).type, child) for key, child in value.items()}
    if isinstance(value, list) and _is_list(kind):
        return [_without_misfits(kind.value_type, child) for child in value]
    if pa.types.is_floating(kind) and is_integer(value):
        return value if _keeps_number(kind, value) else None
    return None if value == {} else value


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return any(check(kind) for check in (types.is_list, types.is_large_list, types.is_fixed_size_list))


@dataclass
class TypeInspection:
    """Types of a file's id and kept columns; `add` widens them by the values of one more block."""

    file: SourceFile
    corpus: CorpusSettings
    types: dict[str, pa.DataType] = field(init=False)
    example: dict[str, Any] | None = None
    """the first object"""
    wrong_id: Any = None
    """an id that is neither a string nor an integer"""
    present: set[str] = field(default_factory=set)
    """columns that at least one object has"""
    incomplete: set[str] = field(default_factory=set)
    """columns with an object or list that does not fit their type"""
    has_mixed_ids: bool = False
    """whether some ids are strings and others integers"""
    has_negative_id: bool = False
    has_large_id: bool = False
    """whether an id is 2^63 or above, so that it needs uint64"""
    composed: tuple[str, ...] = ()
    """columns that corpus.where, or corpus.text as a template, names"""
    read: tuple[str, ...] = ()
    """all columns whose values are read"""

    def __post_init__(self) -> None:
        self.types = dict.fromkeys((self.corpus.id, *self.corpus.keep), pa.null())
        self.composed = tuple(composed_columns(self.corpus))
        self.read = columns_read(self.corpus)

    def add(self, block: JsonBlock) -> None:
        """Widen the types by the objects of a block.

        Raises:
            DataError: the file is a JSON array, or a column is missing or has a wrong type.
        """
        refuse_array(self.file, block)
        if self.example is not None and not self._lacks_composed and self._has_known_types(block):
            return
        parsed = (parse_line(line, self.read).value for line in block.lines.split(b"\n") if line.strip())
        objects = [value for value in parsed if value is not None]
        if objects and self.example is None:
            self.example = objects[0]
            self._check_text(objects)
        self._add_ids(objects)
        for value in objects:
            self.present |= {*self.types, *self.composed} & value.keys()
            for name in self.types.keys() - {self.corpus.id}:
                self.types[name], fits = widen_type(self.types[name], value.get(name))
                if not fits and isinstance(value[name], dict | list):
                    self.incomplete.add(name)

    def columns(self) -> FileColumns:
        """Return the columns found so far.

        Raises:
            DataError: no object has an id, or none has an id of a valid type.
        """
        example = self.example or {}
        absent = (
            frozenset({*self.types, *self.composed}) - self.present - self.file.partitions.keys()
            if example
            else frozenset()
        )
        if self.corpus.id in absent:
            raise missing_column(self.file, "corpus.id", self.corpus.id, [*self.file.partitions, *example])
        if self.wrong_id is not None and pa.types.is_null(self.types[self.corpus.id]):
            raise wrong_column_type(
                self.file,
                "corpus.id",
                self.corpus.id,
                "string or integer",
                f"{show_value(self.wrong_id)} ({type(self.wrong_id).__name__})",
            )
        types = {
            name: pa.string() if pa.types.is_null(kind) and name in self.file.partitions else kind
            for name, kind in self.types.items()
        }
        if pa.types.is_integer(types[self.corpus.id]):
            types[self.corpus.id] = (
                pa.uint64() if self.has_large_id and not self.has_negative_id else pa.int64()
            )
        return FileColumns(
            self.file,
            types,
            negative_ids=self.has_negative_id,
            mixed_ids=self.has_mixed_ids,
            names=(*self.file.partitions, *example),
            absent=absent,
            incomplete=frozenset(self.incomplete),
        )

    @property
    def is_final(self) -> bool:
        """True if further blocks cannot change the columns."""
        return not self.corpus.keep and not self._lacks_composed

    @property
    def _lacks_composed(self) -> bool:
        """True if no object so far has one of the composed columns."""
        return not self.present.union(self.file.partitions).issuperset(self.composed)

    def _has_known_types(self, block: JsonBlock) -> bool:
        """Return whether Arrow can parse the block with the types found so far, so that none is widened.

        Always False for nested types: Arrow ignores keys that a type lacks, so that it would miss new keys.
        """
        if any(pa.types.is_nested(kind) for kind in self.types.values()):
            return False
        try:
            table = parse_block(block.lines, self.types)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return False
        if pa.types.is_uint64(self.types[self.corpus.id]):
            self.has_large_id |= (pc.max(table[self.corpus.id]).as_py() or 0) >= 2**63
        return True

    def _check_text(self, objects: list[dict[str, Any]]) -> None:
        """Raise DataError if no object of the first block has the text column, or none has a string in it.

        The columns of a template may occur later.
        """
        name = self.corpus.text
        if not parse_template(name).is_column:
            return
        if name not in self.file.partitions and not any(name in json_object for json_object in objects):
            raise missing_column(self.file, "corpus.text", name, [*self.file.partitions, *objects[0]])
        texts = [json_object[name] for json_object in objects if json_object.get(name) is not None]
        if texts and not any(isinstance(text, str) for text in texts):
            raise wrong_column_type(self.file, "corpus.text", name, "string", type(texts[0]).__name__)

    def _add_ids(self, objects: list[dict[str, Any]]) -> None:
        """Find the type of the ids, strings or integers, by the majority in the first block with ids.

        Integers are uint64 until one is negative.
        """
        name = self.corpus.id
        values = [json_object[name] for json_object in objects if json_object.get(name) is not None]
        strings = [value for value in values if isinstance(value, str)]
        numbers = [value for value in values if is_integer(value)]
        if pa.types.is_null(self.types[name]) and (strings or numbers):
            self.types[name] = pa.string() if len(strings) >= len(numbers) else pa.uint64()
        elif values and self.wrong_id is None:
            self.wrong_id = values[0]
        self.has_mixed_ids |= bool(strings and numbers)
        self.has_negative_id |= any(-(2**63) <= number < 0 for number in numbers)
        self.has_large_id |= any(2**63 <= number < 2**64 for number in numbers)
        if pa.types.is_integer(self.types[name]):
            self.types[name] = pa.int64() if self.has_negative_id else pa.uint64()


def refuse_array(file: SourceFile, block: JsonBlock) -> None:
    """Raise DataError if the first block of a file begins with an array."""
    if block.first == 0 and block.lines.lstrip().startswith(b"["):
        raise file.error(
            "JSON lines (one object per line)",
            "a JSON array",
            "write one object per line, for instance with jq -c '.[]'",
        )
