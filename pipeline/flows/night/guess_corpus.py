"""Guess the settings of a new corpus from its first rows: id, text and kept columns, and the language."""

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
from pipeline.text.corpus.file_view import view_of
from pipeline.text.corpus.sources import SourceFile, list_files, open_file, reading
from pipeline.text.tokens.scripts import SCRIPTS, scripts_of

_MAX_FILES = 3
_MAX_FILE_ROWS = 384  # read of each file
_BATCH_ROWS = 64  # read at once of a Parquet file
_MAX_FILE_BYTES = 1 << 20  # read of each file of JSON lines
_MAX_ID_LENGTH = 200  # characters
_MAX_KEPT_LENGTH = 200  # characters, on average
_MAX_KEPT = 6  # columns besides the text
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
# Factors by which the mean length of a column counts more if its name is one of _TEXTS, and less if it is the
# name of an id: an id may be longer than a title.
_TEXT_WEIGHT, _ID_WEIGHT = 4, 1 / 16
_UNIQUE = 0.95  # proportion of rows that must have an id of their own, as a night quarantines the others
_AGREEMENT = 0.8  # proportion of the texts that must have the same language or script

Values = dict[str, list[Any]]


@dataclass(frozen=True)
class CorpusGuess:
    """A guess at the contents of a corpus.

    Attributes:
        files: number of files.
        rows: number of rows that were read.
        language: ISO 639 code; None if texts differ, are few, or py3langid is not installed.
        unusable_ids: number of rows without an id, or with the id of an earlier row.
        script: script of most texts, such as latin or chinese; None if texts differ.
    """

    files: int
    rows: int
    columns: tuple[str, ...]
    id: str
    text: str
    keep: tuple[str, ...]
    language: str | None
    script: str | None
    unusable_ids: int


def guess_corpus(
    corpus: CorpusSettings, id_column: str | None = None, text_column: str | None = None
) -> CorpusGuess:
    """Guess id, text and kept columns, and the language, from the first rows of a few files.

    Args:
        corpus: its uri and format.
        id_column: column of the ids; None to guess it.
        text_column: column of the texts; None to guess it.

    Raises:
        DataError: there are no rows, a file is unreadable, or no column can be the id or the text.
    """
    files = list_files(corpus)
    values = _sample_columns(files)
    for role, column in (("text", text_column), ("id", id_column)):
        if column is not None and column not in values:
            raise DataError(
                corpus.uri,
                f"a column {column!r} for the {role}",
                f"the columns {', '.join(values) or '(none)'}",
                f"name one of them with --{role}",
            )
    text = text_column or _guess_text(corpus, values, id_column)
    id_column = id_column or _guess_id(corpus, values, text)
    strings = [value for value in values[text] if isinstance(value, str)]
    return CorpusGuess(
        files=len(files),
        rows=max(map(len, values.values()), default=0),
        columns=tuple(values),
        id=id_column,
        text=text,
        keep=_guess_kept(values, id_column, text),
        language=_guess_language(strings),
        script=_most_common(
            [SCRIPTS[number] for number in scripts_of(pa.array(strings, pa.large_string())).tolist()]
        ),
        unusable_ids=_count_unusable_ids(values[id_column]),
    )


def _most_common(names: Sequence[str]) -> str | None:
    """Return the name that most of the texts have; None if they differ."""
    if not names:
        return None
    [(name, count)] = Counter(names).most_common(1)
    return name if count >= _AGREEMENT * len(names) else None


def _guess_language(texts: Sequence[str]) -> str | None:
    if importlib.util.find_spec("py3langid") is None:
        return None
    return _most_common(languages_of([text for text in texts if len(text.split()) > 3]))


def _sample_columns(files: Sequence[SourceFile]) -> Values:
    """Return the first rows of a few files by column, with None if a row has no value."""
    rows: list[dict[str, Any]] = []
    for file in files[:_MAX_FILES]:
        with reading(file, ""), open_file(file) as stream:
            read = _read_parquet(stream, file) if file.format == "parquet" else _read_json(stream, file.uri)
            rows += [dict(file.partitions) | row for row in read]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _read_parquet(stream: Any, file: SourceFile) -> list[dict[str, Any]]:
    reader = pq.ParquetFile(stream)
    view = view_of(file, reader.schema_arrow, reader.metadata.num_rows)
    rows, position = list[dict[str, Any]](), 0
    for batch in islice(reader.iter_batches(_BATCH_ROWS), _MAX_FILE_ROWS // _BATCH_ROWS):
        live = view.live_rows(pa.Table.from_batches([batch]), position)
        rows += view.select(live, view.names).to_pylist()
        position += len(batch)
    return rows


def _read_json(stream: Any, uri: str) -> list[dict[str, Any]]:
    """Return the objects of the first lines, without other lines, which a night quarantines."""
    rows = []
    raw = pa.CompressedInputStream(stream, "gzip") if uri.lower().endswith(".gz") else stream
    for line in raw.read(_MAX_FILE_BYTES).split(b"\n")[:_MAX_FILE_ROWS]:
        with contextlib.suppress(ValueError, RecursionError):  # also the last line, which may be incomplete
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def _guess_text(corpus: CorpusSettings, values: Values, id_column: str | None) -> str:
    """Return the column with the longest texts, preferably one that is named as a text."""
    weights = {
        name: _mean_length(column) * _text_weight(name)
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


def _text_weight(name: str) -> float:
    """Rate a column's name as the name of the text."""
    if name.lower() in _TEXTS:
        return _TEXT_WEIGHT
    return _ID_WEIGHT if _id_rank(name) <= len(_IDS) else 1


def _guess_id(corpus: CorpusSettings, values: Values, text: str) -> str:
    """Return a column of values that are distinct in nearly all rows.

    A column with the name of an id comes first, then one whose values are distinct in all rows.
    """
    unusable = {
        name: _count_unusable_ids(column) for name, column in values.items() if name != text and column
    }
    candidates = [name for name, count in unusable.items() if count <= (1 - _UNIQUE) * len(values[name])]
    if not candidates:
        raise DataError(
            corpus.uri,
            "a column of distinct integers or short strings for the id",
            f"the columns {', '.join(values)}",
            "name one with --id, or add a column that identifies each row from night to night",
        )
    return min(candidates, key=lambda name: (_id_rank(name) > len(_IDS), unusable[name] > 0, _id_rank(name)))


def _id_rank(name: str) -> int:
    """Rank a column's name as the name of the id; smaller is better."""
    lower = name.lower()
    if lower in _IDS:
        return _IDS.index(lower)
    return len(_IDS) if lower.endswith(("id", "key")) else len(_IDS) + 1


def _guess_kept(values: Values, id_column: str, text: str) -> tuple[str, ...]:
    """Return the columns that search results should show: the text and short plain columns."""
    reserved = {*RESULT_COLUMNS, id_column, "id"}
    short = [
        name
        for name, column in values.items()
        if name not in (text, *reserved)
        and _all_of(column, (str, int, float, date))
        and _mean_length(column) <= _MAX_KEPT_LENGTH
    ]
    return tuple(name for name in (text, *short[:_MAX_KEPT]) if name not in reserved)


def _count_unusable_ids(column: Sequence[Any]) -> int:
    """Count the rows that have no id, or the id of an earlier row.

    An id is an integer or a short string; integers in a column of strings do not count as ids, nor do strings
    in a column of integers.
    """
    integers = {value for value in column if type(value) is int}
    strings = {value for value in column if isinstance(value, str) and 0 < len(value) <= _MAX_ID_LENGTH}
    return len(column) - max(len(integers), len(strings))


def _all_of(column: Sequence[Any], types: tuple[type, ...]) -> bool:
    """Return whether there are values, and all are of these types."""
    values = [value for value in column if value is not None]
    return bool(values) and all(isinstance(value, types) for value in values)


def _mean_length(column: Sequence[Any]) -> float:
    lengths = [
        len(value if isinstance(value, bytes) else str(value)) for value in column if value is not None
    ]
    return sum(lengths) / max(len(lengths), 1)
