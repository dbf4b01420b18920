"""Judged queries and pairs are read alike from every format; invalid files are named with their row."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.judgements import JudgedPairs, JudgedQueries, read_judgements, read_relevance
from pipeline.settings import RelevanceSettings

Columns = Mapping[str, Sequence[Any]]
QUERIES: Columns = {
    "query": ["join, two\npaths", " second query ", "join, two\npaths", "join, two\npaths"],
    "id": ["007", "b", "7", "007"],
    "note": ["x", "y", "z", ""],
}
PAIRS: Columns = {"sentence1": ["a", "b", "c"], "sentence2": ["d", "e", "f"], "score": [1.0, 2.5, 3.0]}


def write(folder: Path, ending: str, columns: Columns) -> str:
    file, rows = folder / f"judged.{ending}", list(zip(*columns.values(), strict=True))
    if ending == "parquet":
        pq.write_table(pa.table(dict(columns)), file)
    elif ending == "csv":
        with file.open("w", newline="", encoding="utf-8-sig") as stream:
            csv.writer(stream).writerows([list(columns), *rows])
    else:
        file.write_text("\n\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in rows))
    return str(file)


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "ndjson", "json", "csv"])
def test_queries_are_collected_with_their_ids_from_every_format(tmp_path: Path, ending: str):
    judged = read_judgements(write(tmp_path, ending, QUERIES))
    assert isinstance(judged, JudgedQueries)
    assert judged.queries == ("join, two\npaths", "second query")
    assert judged.relevant == (("007", "7"), ("b",)), "ids are strings, and 007 is not 7"


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_pairs_keep_their_scores_from_every_format(tmp_path: Path, ending: str):
    judged = read_judgements(write(tmp_path, ending, PAIRS))
    assert isinstance(judged, JudgedPairs)
    assert (judged.left, judged.right, judged.gold.tolist()) == (
        ("a", "b", "c"),
        ("d", "e", "f"),
        [1, 2.5, 3],
    )


@pytest.mark.parametrize(
    "scores",
    [
        pa.array([2**60 + 1, 2, 3]),
        pa.array([1.5, 2, 3]).cast(pa.decimal128(5, 2)),
        pa.array([1.5, 2, 3]).dictionary_encode(),
    ],
    ids=lambda scores: str(scores.type),
)
def test_scores_of_every_type_are_numbers(tmp_path: Path, scores: pa.Array):
    judged = read_judgements(write(tmp_path, "parquet", {**PAIRS, "score": scores}))
    assert isinstance(judged, JudgedPairs)
    assert judged.gold.tolist() == [float(score) for score in scores.to_pylist()]


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([7, 8], pa.int64()),
        pa.array([7, 8], pa.uint8()),
        pa.array(["7", "8"]).dictionary_encode(),
        pa.array(["7", "8"], pa.large_string()),
    ],
)
def test_ids_of_any_stored_type_become_strings(tmp_path: Path, ids: pa.Array):
    judged = read_judgements(write(tmp_path, "parquet", {"query": ["a", "b"], "id": ids}))
    assert isinstance(judged, JudgedQueries)
    assert judged.relevant == (("7",), ("8",))


def test_numbers_and_half_characters_in_json_are_read(tmp_path: Path):
    file = tmp_path / "judged.jsonl"
    file.write_text('{"query": "half \\ud800", "id": 7}\n{"note": [1], "query": "b", "id": "x"}\n')
    judged = read_judgements(str(file))
    assert isinstance(judged, JudgedQueries)
    assert (judged.queries, judged.relevant) == (("half \ufffd", "b"), (("7",), ("x",)))


def test_scores_of_any_size_in_json_are_read(tmp_path: Path):
    scores = ["100000000000000000000", "9007199254740993", "0.5", "-1e300"]
    file = tmp_path / "judged.jsonl"
    file.write_text("\n".join(f'{{"sentence1": "a", "sentence2": "b", "score": {each}}}' for each in scores))
    judged = read_judgements(str(file))
    assert isinstance(judged, JudgedPairs)
    assert judged.gold.tolist() == list(map(float, scores))


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("repeated", [name for columns in (QUERIES, PAIRS) for name in columns])
def test_repeated_columns_are_refused_if_they_are_read(tmp_path: Path, ending: str, repeated: str):
    columns = QUERIES if repeated in QUERIES else PAIRS
    names, values = [*columns, repeated], [*columns.values(), columns[repeated]]
    file = tmp_path / f"judged.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table([pa.array(each) for each in values], names=names), file)
    else:
        with file.open("w", newline="") as stream:
            csv.writer(stream).writerows([names, *zip(*values, strict=True)])
    if repeated == "note":
        assert isinstance(read_judgements(str(file)), JudgedQueries)
    else:
        with pytest.raises(DataError, match=f"expected one column {repeated}, found 2"):
            read_judgements(str(file))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", '{"query": "a", "id": "1"}\n{"query": " ", "id": "2"}', "row 2: query"),
        ("a.jsonl", '{"query": "a"}\n{"query": "b", "id": "2"}', "row 1: id"),
        ("a.jsonl", '{"query": "a", "id": 1.5}', "line 1: id"),
        ("a.jsonl", '{"query": true, "id": 1}', "line 1: query"),
        ("a.jsonl", '{"query": "a", "id": 1', "line 1"),
        ("a.jsonl", "[1]", "line 1"),
        ("a.jsonl", '{"query": "a", "id": 1, "id": 2}', 'line 1: expected a JSON object, found the key "id"'),
        ("a.jsonl", "[" * 100_000, "line 1"),
        ("a.jsonl", '{"text": "a"}', "the columns query and id, or sentence1"),
        ("a.jsonl", "", "no columns"),
        ("a.jsonl", '{"sentence1": "a", "sentence2": "b", "score": true}', "line 1: score"),
        ("a.jsonl", '{"sentence1": "a", "sentence2": "b", "score": 1' + "0" * 400 + "}", "line 1: score"),
        ("a.jsonl", '{"sentence1": "a", "sentence2": "b", "score": 1}', "at least two pairs"),
        ("a.csv", "query,id\n", "no rows"),
        ("a.csv", "query,id\na,\n", "row 1: id"),
        ("a.csv", "query,id\na\n", "CSV with a header"),
        ("a.csv", "sentence1,sentence2,score\na,b,high\n", "CSV with a header"),
        ("a.csv", "sentence1,sentence2,score\na,b,1\nc,d,\n", "row 2: score"),
        ("a.csv", "sentence1,sentence2,score\na,b,1\nc,d,1\n", "two different scores"),
        ("a.parquet", "nothing", "a Parquet file"),
    ],
)
def test_invalid_files_are_named_with_row_and_remedy(tmp_path: Path, name: str, content: str, expected: str):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as caught:
        read_judgements(str(tmp_path / name))
    assert expected in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("column", [[1.5, 2.5], [b"a", b"b"], [["a"], ["b"]]])
def test_columns_of_other_types_are_refused(tmp_path: Path, column: list[Any]):
    for name in ("query", "id"):
        file = write(tmp_path, "parquet", {"query": ["a", "b"], "id": ["1", "2"], name: column})
        with pytest.raises(DataError, match=f": {name}: expected strings"):
            read_judgements(file)


def test_missing_files_and_other_endings_are_errors_of_the_settings(tmp_path: Path):
    for name in ("missing.csv", "no/folder.jsonl", "queries.xlsx"):
        with pytest.raises(ConfigError, match=r"gates\.relevance\.queries"):
            read_judgements(str(tmp_path / name))


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_slices_are_the_values_of_a_column(tmp_path: Path, ending: str):
    columns = {"query": ["a", "a", "b", "c"], "id": ["1", "2", "3", "4"], "lang": ["de", "de", "fr", "7"]}
    judged = read_judgements(write(tmp_path, ending, columns), "lang")
    assert isinstance(judged, JudgedQueries)
    assert (judged.queries, judged.slices) == (("a", "b", "c"), ("de", "fr", "7"))
    pairs = read_judgements(write(tmp_path, ending, {**PAIRS, "lang": ["x"] * len(PAIRS["score"])}), "lang")
    assert pairs.slices == ("x",) * len(PAIRS["score"])


def test_a_query_in_two_slices_and_a_missing_column_are_errors(tmp_path: Path):
    columns = {"query": ["a", "a"], "id": ["1", "2"], "lang": ["de", None]}
    file = write(tmp_path, "parquet", columns)
    with pytest.raises(DataError, match=r"a query in one slice.*'de' and '\(none\)'"):
        read_judgements(file, "lang")
    with pytest.raises(DataError, match=r"a column tenant.*query, id, lang"):
        read_judgements(file, "tenant")


def test_bounds_of_queries_are_refused_for_pairs(tmp_path: Path):
    settings = RelevanceSettings(queries=write(tmp_path, "csv", PAIRS), mrr_at_least=0.5)
    with pytest.raises(ConfigError, match=r"mrr_at_least: 0.5"):
        read_relevance(settings)
