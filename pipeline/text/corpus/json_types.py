"""Find the types of a JSON lines file's columns."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.settings import CorpusSettings
from pipeline.text.corpus.columns import FileColumns, missing_column, wrong_column_type
from pipeline.text.corpus.json_values import (
    JsonBlock,
    is_integer,
    parse_block,
    parse_line,
    show_value,
    widen_type,
)
from pipeline.text.corpus.sources import SourceFile


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

    def __post_init__(self) -> None:
        self.types = dict.fromkeys((self.corpus.id, *self.corpus.keep), pa.null())

    def add(self, block: JsonBlock) -> None:
        """Widen the types by the objects of a block.

        Raises:
            DataError: the file is a JSON array, or a column is missing or has a wrong type.
        """
        refuse_array(self.file, block)
        if self.example is not None and self._has_known_types(block):
            return
        parsed = (parse_line(line).value for line in block.lines.split(b"\n") if line.strip())
        objects = [value for value in parsed if value is not None]
        if objects and self.example is None:
            self.example = objects[0]
            self._check_text(objects)
        self._add_ids(objects)
        for value in objects:
            self.present |= self.types.keys() & value.keys()
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
            frozenset(self.types) - self.present - self.file.partitions.keys() if example else frozenset()
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
        """Raise DataError if no object of the first block has the text column, or none has a string in it."""
        name = self.corpus.text
        if name not in self.file.partitions and not any(name in json_object for json_object in objects):
            raise missing_column(self.file, "corpus.text", name, [*self.file.partitions, *objects[0]])
        texts = [json_object[name] for json_object in objects if json_object.get(name) is not None]
        if texts and not any(isinstance(text, str) for text in texts):
            raise wrong_column_type(self.file, "corpus.text", name, "string", type(texts[0]).__name__)

    def _add_ids(self, objects: list[dict[str, Any]]) -> None:
        """Find the type of the ids: strings or integers, by the majority of the first block that has ids.

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
