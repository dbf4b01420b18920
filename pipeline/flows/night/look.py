"""A first look at a corpus: guesses at the columns of id and text, the columns to keep, and the language."""

import contextlib
import importlib.util
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.augment.language import languages_of
from pipeline.errors import DataError
from pipeline.settings import RESULT_COLUMNS, CorpusSettings
from pipeline.text.corpus.sources import SourceFile, list_files, open_file
from pipeline.text.corpus.storage_errors import storage_errors
from pipeline.text.tokens.scripts import SCRIPTS, scripts_of

_FILES, _ROWS, _BATCH = 3, 1_000, 64  # the most that are read of a corpus
_BYTES = 1 << 20  # the most that are read of a file of JSON lines
_LONGEST_ID, _LONGEST_KEPT = 200, 200  # characters
_MOST_KEPT = 6
_IDS = ("id", "_id", "doc_id", "docid", "document_id", "uuid", "guid", "key", "uri", "url", "path", "name")
_TEXTS = (
    "text",
    "body",
    "content",
    "passage",
    "document",
    "sentence",
    "abstract",
    "description",
    "question",
    "chunk",
)
_PREFERRED = 4  # factor for the lengths in a column that is named as a text
_SURE = 0.8  # proportion of the texts that must agree in language or script

Values = dict[str, list[Any]]


@dataclass(frozen=True)
class CorpusLook:
    """A guess at the contents of a corpus.

    Attributes:
        files: number of files.
        rows: number of rows that were read.
        language: ISO 639 code; None if texts differ, are few, or py3langid is not installed.
        script: of most texts, such as latin or chinese; None if texts differ.
    """

    files: int
    rows: int
    columns: tuple[str, ...]
    id: str
    text: str
    keep: tuple[str, ...]
    language: str | None
    script: str | None


def look(corpus: CorpusSettings, id_column: str | None = None, text_column: str | None = None) -> CorpusLook:
    """Look at the first rows of a few files.

    Args:
        corpus: its uri and format.
        id_column: the id's column; None: guessed.
        text_column: the text's column; None: guessed.

    Raises:
        DataError: there are no rows, a file is unreadable, or no column can be the id or the text.
    """
    files = list_files(corpus)
    values = _sampled(files)
    for role, column in (("text", text_column), ("id", id_column)):
        if column is not None and column not in values:
            raise DataError(
                corpus.uri,
                f"a column {column!r} for the {role}",
                f"the columns {', '.join(values) or '(none)'}",
                f"name one of them with --{role}",
            )
    text = text_column or _text(corpus, values, id_column)
    id_column = id_column or _id(corpus, values, text)
    strings = [value for value in values[text] if isinstance(value, str)]
    return CorpusLook(
        files=len(files),
        rows=max(map(len, values.values()), default=0),
        columns=tuple(values),
        id=id_column,
        text=text,
        keep=_kept(values, id_column, text),
        language=_language(strings),
        script=_most_common(
            [SCRIPTS[number] for number in scripts_of(pa.array(strings, pa.large_string())).tolist()]
        ),
    )


def _most_common(names: Sequence[str]) -> str | None:
    """Return the name that most of the texts have; None if they differ."""
    [(name, count)] = Counter(names).most_common(1) or [("", 0)]
    return name if names and count >= _SURE * len(names) else None


def _language(texts: Sequence[str]) -> str | None:
    if importlib.util.find_spec("py3langid") is None:
        return None
    return _most_common(languages_of([text for text in texts if len(text.split()) > 3]))


def _sampled(files: Sequence[SourceFile]) -> Values:
    """Return the first rows of a few files by column, with None if a row has no value."""
    rows: list[dict[str, Any]] = []
    for file in files[:_FILES]:
        with storage_errors(file.uri, ""), open_file(file) as stream:
            read = _parquet(stream) if file.format == "parquet" else _json(stream, file.uri)
            rows += [dict(file.partitions) | row for row in read]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _parquet(stream: Any) -> list[dict[str, Any]]:
    return [
        row
        for batch in islice(pq.ParquetFile(stream).iter_batches(_BATCH), _ROWS // _BATCH // _FILES + 1)
        for row in batch.to_pylist()
    ]


def _json(stream: Any, uri: str) -> list[dict[str, Any]]:
    """Return the objects of the first lines, without other lines, which a night quarantines."""
    rows = []
    raw = pa.CompressedInputStream(stream, "gzip") if uri.lower().endswith(".gz") else stream
    for line in raw.read(_BYTES).split(b"\n")[: _ROWS // _FILES + 1]:
        with contextlib.suppress(ValueError, RecursionError):  # also the last line, which may be incomplete
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def _text(corpus: CorpusSettings, values: Values, id_column: str | None) -> str:
    """Return the column with the longest texts, preferably one that is named as a text."""
    weights = {
        name: _mean_length(column) * _weight(name)
        for name, column in values.items()
        if name != id_column and _all_of(column, (str, bytes))
    }
    if not weights:
        raise DataError(
            corpus.uri,
            "a column of strings for the text",
            f"the columns {', '.join(values)}" if values else "no rows",
            "name it with --text, or write the texts into a column of strings",
        )
    return max(weights, key=lambda name: weights[name])


def _weight(name: str) -> float:
    """Rate a column's name as the name of the text; an id may be longer than a title."""
    return _PREFERRED if name.lower() in _TEXTS else _PREFERRED**-2 if _id_rank(name) <= len(_IDS) else 1


def _id(corpus: CorpusSettings, values: Values, text: str) -> str:
    """Return a column of distinct values: by its name, or the first whose values look like identifiers."""
    distinct = [name for name, column in values.items() if name != text and _may_be_ids(column)]
    if not distinct:
        raise DataError(
            corpus.uri,
            "a column of distinct integers or short strings for the id",
            f"the columns {', '.join(values)}",
            "name one with --id, or add a column that identifies each row from night to night",
        )
    return min(distinct, key=_id_rank)


def _id_rank(name: str) -> int:
    """Rank a column's name as the name of the id; smaller is better."""
    lower = name.lower()
    return _IDS.index(lower) if lower in _IDS else len(_IDS) + (not lower.endswith(("id", "key")))


def _kept(values: Values, id_column: str, text: str) -> tuple[str, ...]:
    """Return the text and short plain columns, which search results show."""
    reserved = {*RESULT_COLUMNS, id_column, "id"}
    short = [
        name
        for name, column in values.items()
        if name not in (text, *reserved)
        and _all_of(column, (str, int, float, date))
        and _mean_length(column) <= _LONGEST_KEPT
    ]
    return tuple(name for name in (text, *short[:_MOST_KEPT]) if name not in reserved)


def _may_be_ids(column: Sequence[Any]) -> bool:
    """Return whether all values are distinct integers, or distinct short strings."""
    whole = all(type(value) is int for value in column)
    words = all(isinstance(value, str) and 0 < len(value) <= _LONGEST_ID for value in column)
    return (whole or words) and len(set(column)) == len(column) > 0


def _all_of(column: Sequence[Any], types: tuple[type, ...]) -> bool:
    """Return whether there are values, and all are of these types."""
    values = [value for value in column if value is not None]
    return bool(values) and all(isinstance(value, types) for value in values)


def _mean_length(column: Sequence[Any]) -> float:
    lengths = [
        len(value if isinstance(value, bytes) else str(value)) for value in column if value is not None
    ]
    return sum(lengths) / max(len(lengths), 1)
