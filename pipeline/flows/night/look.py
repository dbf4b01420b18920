"""A first look at a corpus: which column may be the id, which the text, what is worth keeping, and which
language it is in.
"""

import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Sequence
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

_FILES, _ROWS, _BATCH = 3, 1_000, 64  # read of a corpus at most
_BYTES = 1 << 20  # read of a file of JSON lines
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
_PREFERRED = 4  # times as long as another column counts one whose name says text
_SURE = 0.8  # proportion of the texts that make a language the corpus's

Values = dict[str, list[Any]]


@dataclass(frozen=True)
class CorpusLook:
    """A guess at the contents of a corpus.

    language: an ISO 639 code; None if texts differ, are few, or py3langid is not installed. script: that of
    most texts, such as latin or chinese; None if texts differ.
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
        DataError: nothing there, unreadable, or no column can be the id or the text.
    """
    files = list_files(corpus)
    values = _sampled(files)
    rows = max(map(len, values.values()), default=0)
    text = _chosen(corpus, "text", text_column, values) or _text(corpus, values, id_column)
    found = _chosen(corpus, "id", id_column, values) or _id(corpus, values, text)
    return CorpusLook(
        files=len(files),
        rows=rows,
        columns=tuple(values),
        id=found,
        text=text,
        keep=_kept(values, found, text),
        language=_language(values[text]),
        script=_script([value for value in values[text] if isinstance(value, str)]),
    )


def _script(texts: Sequence[str]) -> str | None:
    """The script that preflight would count most of the texts under."""
    found = scripts_of(pa.array(texts, pa.large_string()))
    [(number, count)] = Counter(found.tolist()).most_common(1) or [(0, 0)]
    return SCRIPTS[number] if texts and count >= _SURE * len(texts) else None


def _sampled(files: Sequence[SourceFile]) -> Values:
    """The first rows of a few files by column, None where a row has no value."""
    rows: list[dict[str, Any]] = []
    for file in files[:_FILES]:
        with storage_errors(file.uri, ""):
            read = _parquet(file) if file.format == "parquet" else _json(file)
        rows += [dict(file.partitions) | row for row in read]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _parquet(file: SourceFile) -> list[dict[str, Any]]:
    with open_file(file) as stream:
        batches = pq.ParquetFile(stream).iter_batches(_BATCH)
        return [row for batch in islice(batches, _ROWS // _BATCH // _FILES + 1) for row in batch.to_pylist()]


def _json(file: SourceFile) -> list[dict[str, Any]]:
    """Objects of the first lines; what is no object is left out here, and quarantined by a night."""
    with open_file(file) as stream:
        raw = pa.CompressedInputStream(stream, "gzip") if file.uri.lower().endswith(".gz") else stream
        lines = raw.read(_BYTES).split(b"\n")
    rows = []
    for line in lines[: _ROWS // _FILES + 1]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # also the last line, which may be cut
            continue
        rows += [row] if isinstance(row, dict) else []
    return rows


def _chosen(corpus: CorpusSettings, role: str, column: str | None, values: Values) -> str | None:
    """The column that was named, which has to be there."""
    if column is not None and column not in values:
        raise DataError(
            corpus.uri,
            f"a column {column!r} for the {role}",
            f"the columns {', '.join(values) or '(none)'}",
            f"name one of them with --{role}",
        )
    return column


def _text(corpus: CorpusSettings, values: Values, taken: str | None) -> str:
    """The column with the longest texts, one whose name says so before others."""
    lengths = {
        name: _mean_length(column) for name, column in values.items() if name != taken and _are_texts(column)
    }
    weights = {name: length * _weight(name) for name, length in lengths.items()}
    if not weights:
        found = f"the columns {', '.join(values)}" if values else "no rows"
        raise DataError(
            corpus.uri,
            "a column of strings for the text",
            found,
            "name it with --text, or write the texts into a column of strings",
        )
    return max(weights, key=lambda name: weights[name])


def _weight(name: str) -> float:
    """Rate a column's name as the name of the text; an id may be longer than a title."""
    return _PREFERRED if name.lower() in _TEXTS else _PREFERRED**-2 if _id_rank(name) <= len(_IDS) else 1


def _id(corpus: CorpusSettings, values: Values, text: str) -> str:
    """A column of distinct values: by its name, or the first whose values look like identifiers."""
    distinct = [name for name, column in values.items() if name != text and _may_be_ids(column)]
    if not distinct:
        remedy = "name one with --id, or add a column that identifies each row from night to night"
        raise DataError(
            corpus.uri,
            "a column of distinct integers or short strings for the id",
            f"the columns {', '.join(values)}",
            remedy,
        )
    return min(distinct, key=_id_rank)


def _id_rank(name: str) -> int:
    """Smaller for names that ids usually have."""
    lower = name.lower()
    return (
        _IDS.index(lower) if lower in _IDS else len(_IDS) if lower.endswith(("id", "key")) else len(_IDS) + 1
    )


def _kept(values: Values, found: str, text: str) -> tuple[str, ...]:
    """The text and short plain columns, which search results show."""
    reserved = {*RESULT_COLUMNS, found, "id"}
    short = [
        name for name, column in values.items() if name != text and name not in reserved and _is_short(column)
    ]
    return tuple(name for name in (text, *short[:_MOST_KEPT]) if name not in reserved)


def _language(texts: Sequence[Any]) -> str | None:
    if importlib.util.find_spec("py3langid") is None:
        return None
    readable = [text for text in texts if isinstance(text, str) and len(text.split()) > 3]
    [(language, count)] = Counter(languages_of(readable)).most_common(1) or [("", 0)]
    return language if readable and count >= _SURE * len(readable) else None


def _are_texts(column: Sequence[Any]) -> bool:
    return _all_of(column, lambda value: isinstance(value, str | bytes))


def _may_be_ids(column: Sequence[Any]) -> bool:
    """Distinct integers, or distinct short strings; no value is missing."""
    whole = all(type(value) is int for value in column)
    words = all(isinstance(value, str) and 0 < len(value) <= _LONGEST_ID for value in column)
    return (whole or words) and len(set(column)) == len(column) > 0


def _is_short(column: Sequence[Any]) -> bool:
    plain = _all_of(column, lambda value: isinstance(value, str | int | float | date))
    return plain and _mean_length(column) <= _LONGEST_KEPT


def _all_of(column: Sequence[Any], fits: Callable[[Any], bool]) -> bool:
    """True if there are values, and all of them fit."""
    values = [value for value in column if value is not None]
    return bool(values) and all(map(fits, values))


def _mean_length(column: Sequence[Any]) -> float:
    lengths = [
        len(value if isinstance(value, str | bytes) else str(value)) for value in column if value is not None
    ]
    return sum(lengths) / max(len(lengths), 1)
