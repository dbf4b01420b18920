"""Read a user's own queries with the ids of their relevant rows, or sentence pairs with scores."""

import contextlib
import io
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.source import float64_of, number_type
from pipeline.evaluate.sts import check_scores
from pipeline.settings import RelevanceSettings
from pipeline.store.files.disk import describe_missing
from pipeline.store.files.open_store import store_of
from pipeline.store.rows.arrays import is_text, plain_type
from pipeline.text.formats.json_values import parse_object
from pipeline.text.formats.queries import is_parquet, read_lines
from pipeline.text.normalize import normalize, replace_surrogates, strings_of

_JUDGED, _PAIRS = ("query", "id"), ("sentence1", "sentence2", "score")
_COLUMNS = (*_JUDGED, *_PAIRS)
_JSON_SUFFIXES, _CSV_SUFFIXES = (".jsonl", ".ndjson", ".json"), (".csv",)
_REMEDY = "correct the file named by gates.relevance.queries"


@dataclass(frozen=True)
class JudgedQueries:
    """Different queries, each with the ids of its relevant rows."""

    where: str
    """path or URI of the file"""
    queries: tuple[str, ...]
    """normalized as texts of the corpus are"""
    relevant: tuple[tuple[str, ...], ...]
    """for each query its different ids, as strings, sorted"""
    slices: tuple[str, ...] | None = None
    """for each query its value in the column of the slices; None without such a column"""

    @property
    def count(self) -> str:
        """Number of queries and of relevant ids, as a text."""
        ids = {row_id for of_query in self.relevant for row_id in of_query}
        return f"queries: {len(self.queries):,}, relevant ids: {len(ids):,}"


@dataclass(frozen=True)
class JudgedPairs:
    """Sentence pairs with scores."""

    where: str
    """path or URI of the file"""
    left: tuple[str, ...]
    """first sentence of each pair, normalized as texts of the corpus are"""
    right: tuple[str, ...]
    """second sentence of each pair"""
    gold: np.ndarray
    """(n,) float64 scores; larger is more similar"""
    slices: tuple[str, ...] | None = None
    """for each pair its value in the column of the slices; None without such a column"""

    @property
    def count(self) -> str:
        """Number of pairs, as a text."""
        return f"pairs: {len(self.gold):,}"


def read_relevance(settings: RelevanceSettings) -> JudgedQueries | JudgedPairs:
    """Read the file of `gates.relevance`, as `read_judgements` does.

    Raises:
        ConfigError: a bound is set for queries, and the file has pairs.
    """
    assert settings.queries is not None
    judged = read_judgements(settings.queries, settings.slices)
    bounds = {"recall_at_least": settings.recall_at_least, "mrr_at_least": settings.mrr_at_least}
    for name, bound in bounds.items():
        if isinstance(judged, JudgedPairs) and bound is not None:
            raise ConfigError(
                f"gates.relevance.{name}: {bound:g}",
                f"a file with the columns query and id in {settings.queries}",
                "sentence1, sentence2 and score",
                f"set gates.relevance.{name} to null; at_least is a bound for pairs",
            )
    return judged


def read_judgements(file: str, slices: str | None = None) -> JudgedQueries | JudgedPairs:
    """Read queries (columns query and id) or pairs (sentence1, sentence2 and score).

    The file is Parquet, JSON lines or CSV. A query with several relevant rows has a row for each.

    Args:
        slices: a column by whose values the rows are divided; null is a value of its own.

    Raises:
        ConfigError: there is no such file, or its name has another ending.
        DataError: the file cannot be read, lacks columns or values, its scores are all equal, or a query is
            in two slices.
    """
    table = _read_table(file, slices)
    columns = next((form for form in (_JUDGED, _PAIRS) if set(form) <= set(table.column_names)), None)
    if columns is None:
        raise DataError(
            file,
            "the columns query and id, or sentence1, sentence2 and score",
            ", ".join(table.column_names) or "no columns",
            "rename the columns of the file",
        )
    if repeated := [name for name in columns if table.column_names.count(name) > 1]:
        raise DataError(
            file, f"one column {repeated[0]}", f"{table.column_names.count(repeated[0])}", "remove the others"
        )
    if not len(table):
        raise DataError(file, "rows with " + " and ".join(columns), "no rows", _REMEDY)
    labels = None if slices is None else _slice_labels(table, slices, file)
    if columns == _JUDGED:
        return _group_by_query(file, _texts(table, "query", file), _ids(table, file), labels)
    gold = _numbers(table, "score", file)
    check_scores(gold, -np.inf, np.inf, file)
    left, right = (_texts(table, name, file) for name in ("sentence1", "sentence2"))
    return JudgedPairs(file, tuple(left), tuple(right), gold, tuple(labels) if labels else None)


def _group_by_query(file: str, queries: list[str], ids: list[str], labels: list[str] | None) -> JudgedQueries:
    """Collect the ids of equal queries."""
    relevant: dict[str, set[str]] = {}
    for query, row_id in zip(queries, ids, strict=True):
        relevant.setdefault(query, set()).add(row_id)
    slices: dict[str, str] = {}
    for query, label in zip(queries, labels or (), strict=labels is not None):
        if slices.setdefault(query, label) != label:
            raise DataError(
                f"{file}: {query[:80]!r}",
                "a query in one slice",
                f"the slices {slices[query]!r} and {label!r}",
                "give all rows of a query one value, or choose another column for gates.relevance.slices",
            )
    ids_of_queries = tuple(tuple(sorted(each)) for each in relevant.values())
    return JudgedQueries(file, tuple(relevant), ids_of_queries, tuple(slices.values()) or None)


def _slice_labels(table: pa.Table, slices: str, file: str) -> list[str]:
    """Return the values of a column as strings, and "(none)" for null."""
    if table.column_names.count(slices) != 1:
        raise DataError(
            f"{file}: gates.relevance.slices",
            f"a column {slices}",
            ", ".join(table.column_names),
            "choose a column of the file, or set gates.relevance.slices to null",
        )
    return ["(none)" if value is None else str(value) for value in table[slices].to_pylist()]


def _read_table(file: str, slices: str | None) -> pa.Table:
    """Read the file in the format that its ending names."""
    name = file.lower()
    if not (is_parquet(file) or name.endswith((*_JSON_SUFFIXES, *_CSV_SUFFIXES))):
        raise ConfigError(
            f"gates.relevance.queries: {file}",
            "a name that ends in .parquet, .jsonl, .ndjson, .json or .csv",
            file.rpartition("/")[2],
            "convert the file, or rename it",
        )
    content = _content(file)
    try:
        if is_parquet(file):
            return pq.ParquetFile(pa.BufferReader(content)).read()  # read_table fails on repeated columns
        if name.endswith(_CSV_SUFFIXES):
            deque(read_lines(io.BytesIO(content), file), maxlen=0)  # raises for bytes that are not UTF-8
            return _read_csv(content, slices)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            file,
            "CSV with a header" if name.endswith(_CSV_SUFFIXES) else "a Parquet file",
            " ".join(str(error).split()),
            _REMEDY,
        ) from None
    rows = list(_json_rows(content, file, slices))
    names = [name for name in (*_COLUMNS, slices) if name and any(name in row for row in rows)]
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _content(file: str) -> bytes:
    where, remedy = f"gates.relevance.queries: {file}", "check the path and its permissions"
    try:
        store, name = store_of(file)
        return store.read(name)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise ConfigError(where, "a file", describe_missing(error), remedy) from None
    except OSError as error:
        raise ConfigError(where, "a readable file", " ".join(str(error).split()), remedy) from None


def _read_csv(content: bytes, slices: str | None) -> pa.Table:
    # as strings, because 007 and 7 are different ids
    strings = dict.fromkeys((*_JUDGED, *_PAIRS[:2], slices or "query"), pa.string())
    options = pa_csv.ConvertOptions(column_types=strings | {"score": pa.float64()})
    parse = pa_csv.ParseOptions(newlines_in_values=True)
    return pa_csv.read_csv(io.BytesIO(content), parse_options=parse, convert_options=options)


def _json_rows(content: bytes, file: str, slices: str | None) -> Iterator[dict[str, str | float | None]]:
    """Yield the columns of each line. Ids become strings, since a file may have both 7 and "a"."""
    for number, line in enumerate(read_lines(io.BytesIO(content), file), 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            row = parse_object(line, _COLUMNS)
        except (ValueError, RecursionError) as error:
            raise DataError(where, "a JSON object", str(error), _REMEDY) from None
        if not isinstance(row, dict):
            raise DataError(where, "a JSON object", type(row).__name__, _REMEDY)
        found = {name: _json_value(row[name], name, where) for name in _COLUMNS if name in row}
        if slices is not None and slices not in _COLUMNS:
            label = row.get(slices)
            found[slices] = label if label is None else replace_surrogates(str(label))
        yield found


def _json_value(value: object, name: str, where: str) -> str | float | None:
    if name == "id" and type(value) is int:
        return str(value)
    if isinstance(value, str) and name != "score":
        return replace_surrogates(value)
    if name == "score" and isinstance(value, int | float) and type(value) is not bool:
        with contextlib.suppress(OverflowError):  # a number such as 10^400, which is refused below
            return float(value)
    if value is None:
        return value
    expected = "a number" if name == "score" else "a string"
    raise DataError(f"{where}: {name}", expected, repr(value)[:80], _REMEDY)


def _texts(table: pa.Table, name: str, file: str) -> list[str]:
    """Return a column of texts, normalized; DataError if one is missing or blank."""
    column = table[name]
    if not is_text(column.type):
        raise DataError(f"{file}: {name}", "strings", str(column.type), _REMEDY)
    texts: list[str] = normalize(strings_of(column, f"{file}: {name}")).to_pylist()
    _check_complete(name, [not text for text in texts], file)
    return texts


def _ids(table: pa.Table, file: str) -> list[str]:
    """Return the ids as strings; DataError if one is missing."""
    column = table["id"]
    if not is_text(column.type) and not pa.types.is_integer(plain_type(column.type)):
        raise DataError(f"{file}: id", "strings or whole numbers", str(column.type), _REMEDY)
    ids = strings_of(column.cast(plain_type(column.type)), f"{file}: id")
    _check_complete("id", [not row_id for row_id in ids], file)
    return [row_id or "" for row_id in ids]


def _numbers(table: pa.Table, name: str, file: str) -> np.ndarray:
    column = table[name]
    if (kind := number_type(column.type)) is None:
        raise DataError(f"{file}: {name}", "numbers", str(column.type), _REMEDY)
    numbers = float64_of(column.cast(kind))
    _check_complete(name, (~np.isfinite(numbers)).tolist(), file)
    return numbers


def _check_complete(name: str, is_missing: list[bool], file: str) -> None:
    """Raise DataError if a value is missing."""
    if any(is_missing):
        raise DataError(
            f"{file}, row {is_missing.index(True) + 1}: {name}",
            "a value in every row",
            f"none in {sum(is_missing):,} of {len(is_missing):,} rows",
            _REMEDY,
        )
