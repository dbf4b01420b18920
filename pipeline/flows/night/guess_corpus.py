"""Guess the settings of a new corpus from its first rows: id, text and kept columns, and the language."""

import importlib.util
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.augment.language import languages_of
from pipeline.errors import ConfigError, DataError, PipelineError
from pipeline.models.folder.folder import open_folder
from pipeline.settings import RESULT_COLUMNS, CorpusSettings, EncoderSettings
from pipeline.settings.text_template import TextTemplate, parse_template
from pipeline.text.formats.json_values import parse_line, refuse_array
from pipeline.text.formats.jsonl import read_blocks
from pipeline.text.normalize import has_surrogates
from pipeline.text.sources.file_view import view_of
from pipeline.text.sources.sources import SourceFile, list_corpus, open_file, reading
from pipeline.text.tokens.scripts import SCRIPTS, scripts_of

_MAX_FILES = 3
_MAX_FILE_ROWS = 384  # read of each file
_BATCH_ROWS = 64  # read at once of a Parquet file
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
_SPLITS = {"train", "test", "validation", "valid", "dev"}  # in names of files
_OF_PANDAS = re.compile(r"__index_level_\d+__|Unnamed: \d+|index")  # columns of an index, usually row numbers
_UNIQUE = 0.95  # proportion of rows that must have an id of their own, as a night quarantines the others
_AGREEMENT = 0.8  # proportion of the texts that must have the same language or script

Values = dict[str, list[Any]]


@dataclass(frozen=True)
class CorpusGuess:
    """A guess at the contents of a corpus."""

    files: int
    """number of files"""
    rows: int
    """number of rows that were read"""
    columns: tuple[str, ...]
    id: str
    text: str
    keep: tuple[str, ...]
    language: str | None
    """ISO 639 code; None if texts differ, are few, or py3langid is not installed"""
    script: str | None
    """script of most texts, such as latin or chinese; None if texts differ"""
    unusable_ids: int
    """number of rows without an id, or with the id of an earlier row"""
    cut: float | None
    """proportion of the texts that the default encoder would truncate; None if it is not installed"""
    doubts: tuple[str, ...]
    """sentences about ids that may change from night to night, and about the files"""


def guess_corpus(
    corpus: CorpusSettings, id_column: str | None = None, text_column: str | None = None
) -> CorpusGuess:
    """Guess id, text and kept columns, and the language, from the first rows of a few files.

    Args:
        corpus: its uri and format.
        id_column: column of the ids; None to guess it.
        text_column: column of the texts, or a template over columns; None to guess it.

    Raises:
        DataError: there are no rows, a file is unreadable, or no column can be the id or the text.
        ConfigError: the template is invalid, or names an unknown column.
    """
    listed = list_corpus(corpus)
    files, values = listed.files, _sample_columns(listed.files, corpus)
    template = None if text_column is None else _template(text_column)
    named = [("text", column) for column in (template.columns if template else ())] + [("id", id_column)]
    for role, column in named:
        if column is not None and column not in values:
            is_of_template = role == "text" and template is not None and not template.is_column
            raise (ConfigError if is_of_template else DataError)(
                corpus.uri,
                f"a column {column!r} for the {role}",
                f"the columns {', '.join(values) or '(none)'}",
                f"name one of them with --{role}",
            )
    text = text_column or _guess_text(corpus, values, id_column)
    template = template or _template(text)
    id_column = id_column or _guess_id(corpus, values, template.columns)
    strings = list(_texts(values, template))
    return CorpusGuess(
        files=len(files),
        rows=max(map(len, values.values()), default=0),
        columns=tuple(values),
        id=id_column,
        text=text,
        keep=_guess_kept(values, id_column, template.columns if template.is_column else ()),
        language=guess_language(strings),
        script=_most_common(
            [SCRIPTS[number] for number in scripts_of(pa.array(strings, pa.large_string())).tolist()]
        ),
        unusable_ids=_count_unusable_ids(values[id_column]),
        cut=_cut_proportion(strings),
        doubts=tuple(filter(None, (_doubt_ids(values, id_column), _doubt_splits(files), listed.warning))),
    )


def _template(text: str) -> TextTemplate:
    """Parse a column or a template for corpus.text; raise ConfigError if it is invalid."""
    try:
        return parse_template(text)
    except ValueError as error:
        raise ConfigError(
            "--text", str(error), repr(text), "name a column, or correct the template"
        ) from None


def _texts(values: Values, template: TextTemplate) -> Iterator[str]:
    """Yield the texts of the rows that have one."""
    if template.is_column:
        yield from (value for value in values[template.columns[0]] if isinstance(value, str))
        return
    for row in zip(*(values[name] for name in template.columns), strict=True):
        fields = [str(value) if isinstance(value, str | int) else None for value in row]
        if (text := template.render(fields)) is not None:
            yield text


def _cut_proportion(texts: Sequence[str]) -> float | None:
    """Return the proportion of the texts that the default encoder truncates; None if it is not installed."""
    try:
        tokenizer = open_folder(EncoderSettings()).tokenizer()
    except PipelineError:
        return None
    lengths = tokenizer.full_lengths(texts)
    return float((lengths > tokenizer.max_length).mean()) if len(lengths) else 0.0


def _doubt_ids(values: Values, id_column: str) -> str | None:
    """Return a sentence if the ids seem to be row numbers, or if a column named like an id was not chosen."""
    column = values[id_column]
    first = column[0] if column else None
    if type(first) is int and first in (0, 1) and column == list(range(first, first + len(column))):
        return (
            f"The ids in the column {id_column} seem to be row numbers: if a row is inserted or removed, all "
            "later rows count as changed; name another column with --id"
        )
    named = [name for name in values if name.lower() in _IDS and name != id_column]
    repeated = next((name for name in named if _id_rank(name) < _id_rank(id_column)), None)
    if repeated is not None:
        count = f"{_count_unusable_ids(values[repeated]):,} of {len(column):,} rows"
        return f"The column {repeated} is not the id: {count} have none there, or that of an earlier row"
    return None


def _doubt_splits(files: Sequence[SourceFile]) -> str | None:
    """Return a sentence if the files seem to be several splits of one data set."""
    words = {word for file in files for word in re.split(r"[^a-z]+", file.name.lower())}
    found = sorted(words & _SPLITS)
    if len(found) < 2:
        return None
    return f"Files of several splits ({', '.join(found)}) are read as one corpus: name one of them as CORPUS"


def _most_common(names: Sequence[str]) -> str | None:
    """Return the name that most of the texts have; None if they differ."""
    if not names:
        return None
    [(name, count)] = Counter(names).most_common(1)
    return name if count >= _AGREEMENT * len(names) else None


def guess_language(texts: Sequence[str]) -> str | None:
    """Return the language of most texts; None if they differ, are few, or py3langid is not installed."""
    if importlib.util.find_spec("py3langid") is None:
        return None
    return _most_common(languages_of([text for text in texts if len(text.split()) > 3]))


def no_language() -> str:
    """Return the reason why `guess_language` returned None."""
    is_installed = importlib.util.find_spec("py3langid") is not None
    return "unknown" if is_installed else "not checked: pip install py3langid"


def _sample_columns(files: Sequence[SourceFile], corpus: CorpusSettings) -> Values:
    """Return the first rows of a few files by column, with None if a row has no value."""
    rows: list[dict[str, Any]] = []
    rejected = Counter[str]()
    for file in files[:_MAX_FILES]:
        with reading(file, ""):
            read = _read_parquet(file) if file.format == "parquet" else _read_json(file, rejected)
            rows += [dict(file.partitions) | row for row in read]
    if rejected and not rows:
        found = ", ".join(f"{reason} {count}" for reason, count in rejected.items())
        raise DataError(
            corpus.uri,
            "JSON lines (one object per line, in UTF-8)",
            f"lines that are not ({found})",
            "write them so, or as Parquet",
        )
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _read_parquet(file: SourceFile) -> list[dict[str, Any]]:
    with open_file(file) as stream:
        reader = pq.ParquetFile(stream)
        view = view_of(file, reader.schema_arrow, reader.metadata.num_rows)
        rows, position = list[dict[str, Any]](), 0
        for batch in islice(reader.iter_batches(_BATCH_ROWS), _MAX_FILE_ROWS // _BATCH_ROWS):
            live = view.live_rows(pa.Table.from_batches([batch]), position)
            table = view.select(live, view.names)
            columns = {name: _python_values(table[name]) for name in table.column_names}
            rows += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            position += len(batch)
    return rows


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values; None for those that Python cannot represent: far times, text not in UTF-8."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException):
        return [_python_value(value) for value in column]


def _python_value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError, pa.ArrowException):
        return None


def _read_json(file: SourceFile, rejected: Counter[str]) -> list[dict[str, Any]]:
    """Return the objects of the first lines. Count lines without one, which nights quarantine, by reason."""
    block = next(read_blocks(file), None)
    if block is None:
        return []
    refuse_array(file, block)
    lines = islice(block.lines.split(b"\n"), _MAX_FILE_ROWS)
    parsed = [parse_line(line, ()) for line in lines if line.strip()]
    rejected.update(line.reason for line in parsed if line.value is None)
    return [
        {name: value for name, value in line.value.items() if not has_surrogates(name)}
        for line in parsed
        if line.value is not None
    ]


def _guess_text(corpus: CorpusSettings, values: Values, id_column: str | None) -> str:
    """Return the column with the longest texts in most rows; a name that suggests a text weighs more."""
    weights = {
        name: _mean_length(column) * _text_weight(name) * sum(value is not None for value in column)
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


def _guess_id(corpus: CorpusSettings, values: Values, texts: Sequence[str]) -> str:
    """Return a column of values that are distinct in nearly all rows.

    A column with the name of an id comes first, then one whose values are distinct in all rows.
    """
    unusable = {
        name: _count_unusable_ids(column) for name, column in values.items() if name not in texts and column
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
    if _OF_PANDAS.fullmatch(name):
        return len(_IDS) + 2
    if lower in _IDS:
        return _IDS.index(lower)
    return len(_IDS) if lower.endswith(("id", "key")) else len(_IDS) + 1


def _guess_kept(values: Values, id_column: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that search results should show beside the text: short plain columns."""
    reserved = {*RESULT_COLUMNS, id_column, "id"}
    short = [
        name
        for name, column in values.items()
        if name not in (*texts, *reserved)
        and _all_of(column, (str, int, float, date))
        and _mean_length(column) <= _MAX_KEPT_LENGTH
    ]
    return tuple(short[:_MAX_KEPT])


def _count_unusable_ids(column: Sequence[Any]) -> int:
    """Count the rows that have no id, or the id of an earlier row.

    An id is an integer or a short string; integers in a column of strings do not count as ids, nor do strings
    in a column of integers.
    """
    integers = {value for value in column if type(value) is int}
    strings = {value for value in column if isinstance(value, str) and 0 < len(value) <= _MAX_ID_LENGTH}
    return len(column) - max(len(integers), len(strings))


def _all_of(column: Sequence[Any], types: tuple[type, ...]) -> bool:
    """Return whether the column has values, all of these types."""
    values = [value for value in column if value is not None]
    return bool(values) and all(isinstance(value, types) for value in values)


def _mean_length(column: Sequence[Any]) -> float:
    lengths = [
        len(value if isinstance(value, bytes) else str(value)) for value in column if value is not None
    ]
    return sum(lengths) / max(len(lengths), 1)
