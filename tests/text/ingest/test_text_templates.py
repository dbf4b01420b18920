"""A template of corpus.text joins the columns of a row that have a value; keys are of the joined text."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.errors import ConfigError, DataError
from pipeline.settings import CorpusSettings
from pipeline.settings.text_template import parse_template
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Corpus
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import PreviousCorpus
from pipeline.text.normalize import text_keys
from tests.text.ingest.editing import addresses
from tests.text.ingest.tables import text_lines

values = st.none() | st.sampled_from(["", " ", "\u3000", "A title", "b", "{c}", "1"])


def texts_of(store: Store, corpus: Corpus) -> dict[Any, str]:
    return {row_id: text for row_id, text, _ in addresses(store, corpus).values()}


@given(st.lists(values, min_size=1, max_size=4), st.sampled_from([" ", "\n\n", ": ", " - ", ", ", "{{ "]))
def test_columns_with_a_value_are_joined_by_the_separator(row: list[str | None], separator: str):
    columns = [f"column {number}" for number in range(len(row))]
    template = parse_template(separator.join(f"{{{name}}}" for name in columns))
    assert template.columns == tuple(columns)
    kept = [value for value in row if value is not None and value.strip()]
    assert template.render(row) == (separator.replace("{{", "{").join(kept) if kept else None)


@pytest.mark.parametrize(
    ("template", "row", "text"),
    [
        ("({a})", ["x"], "(x)"),
        ("{a} ({b})", ["x", None], "x"),
        ("{a} ({b}), {c}", ["x", None, "z"], "x), z"),
        ("Title: {a}\nBody: {b}", [None, "y"], "Body: y"),
        ("Title: {a}\nBody: {b}", ["x", " "], "Title: x"),
        ("query: {a}", ["x"], "query: x"),
        ("{{{a}}} {{}}", ["x"], "{x} {}"),
        ("{a} {a}", ["x", "x"], "x x"),
    ],
)
def test_a_column_is_left_out_with_the_text_before_it(template: str, row: list[str | None], text: str):
    assert parse_template(template).render(row) == text


@pytest.mark.parametrize("template", ["{a", "a}", "{}", "{a}}", "{{a}}", "{a{b}}"])
def test_a_template_with_a_wrong_brace_or_without_columns_is_refused(template: str):
    with pytest.raises(ValidationError, match="column"):
        CorpusSettings(text=template)


ROWS = [
    {"id": "1", "title": "Ada", "body": "wrote a program", "year": 1843},
    {"id": "2", "title": None, "body": "no title", "year": None},
    {"id": "3", "title": "No body", "body": "  ", "year": 3},
    {"id": "4", "title": None, "body": "", "year": None},
]
EXPECTED = {"1": "Ada: wrote a program (1843)", "2": "no title", "3": "No body (3)"}


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(exist_ok=True)
    if file.suffix == ".parquet":
        kinds = [("id", pa.string()), ("title", pa.string()), ("body", pa.binary()), ("year", pa.int32())]
        rows = [row | {"body": row["body"] and row["body"].encode()} for row in rows]
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(kinds)), file)
    else:
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_texts_keys_and_counts_are_those_of_the_rendered_text_in_both_formats(tmp_path: Path, name: str):
    write(tmp_path / "in" / name, ROWS)
    store = open_store(tmp_path / "out")
    corpus = CorpusSettings(uri=str(tmp_path / "in"), text="{title}: {body} ({year})", keep=("title",))
    made = ingest(corpus, 100, store)
    assert texts_of(store, made) == EXPECTED
    assert made.counts["quarantined_empty"] == made.counts["quarantined"] == 1
    keys = {line["text_key"] for line in text_lines(store, made)}
    assert keys == set(text_keys(pa.array(EXPECTED.values())).to_pylist())


def test_a_changed_template_changes_the_rows_whose_text_it_changes_and_reads_unchanged_files(tmp_path: Path):
    """The second corpus equals that of a first night with the other template; equal rows keep addresses."""
    rows = [{"id": str(number), "title": f"title {number}", "body": "text"} for number in range(8)]
    rows += [{"id": f"n{number}", "title": None, "body": f"body {number}"} for number in range(8)]
    write(tmp_path / "in/a.jsonl", rows)
    os.utime(tmp_path / "in/a.jsonl", ns=(1, 1))
    store, fresh_store = open_store(tmp_path / "out"), open_store(tmp_path / "fresh")
    first = CorpusSettings(uri=str(tmp_path / "in"), text="{body}")
    second = first.model_copy(update={"text": "{title}: {body}"})
    before = ingest(first, 100, store)
    after = ingest(second, 100, store, PreviousCorpus(before, before.next_ordinal))
    fresh = ingest(second, 100, fresh_store)
    assert texts_of(store, after) == texts_of(fresh_store, fresh)
    assert after.counts == fresh.counts
    assert after.changes.model_dump() == {"new": 0, "changed": 8, "deleted": 0, "unchanged": 8}
    assert after.read_files == 1


def test_a_template_of_one_column_reads_the_rows_of_the_column(tmp_path: Path):
    write(tmp_path / "in/a.parquet", ROWS)
    read = [
        texts_of(store, ingest(CorpusSettings(uri=str(tmp_path / "in"), text=text), 100, store))
        for text, store in (("body", open_store(tmp_path / "1")), ("{body}", open_store(tmp_path / "2")))
    ]
    assert read[0] == read[1] == {"1": "wrote a program", "2": "no title"}


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_an_unknown_column_is_an_error_of_the_settings(tmp_path: Path, name: str):
    write(tmp_path / "in" / name, ROWS)
    corpus = CorpusSettings(uri=str(tmp_path / "in"), text="{titel}: {body}")
    with pytest.raises(ConfigError, match=r"corpus\.text: .*'titel', but the rows have the columns.*'title'"):
        ingest(corpus, 100, open_store(tmp_path / "out"))


def test_a_parquet_file_without_a_column_or_with_another_type_is_refused(tmp_path: Path):
    write(tmp_path / "in/a.parquet", ROWS)
    pq.write_table(pa.table({"id": ["9"], "body": ["text"], "year": [1.5]}), tmp_path / "in/b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: expected a column 'title' \(corpus\.text\)"):
        ingest(CorpusSettings(uri=str(tmp_path / "in"), text="{title} {body}"), 9, open_store(tmp_path / "1"))
    with pytest.raises(
        DataError, match=r"b\.parquet: expected column 'year' \(corpus\.text\) of type string"
    ):
        ingest(CorpusSettings(uri=str(tmp_path / "in"), text="{body} {year}"), 9, open_store(tmp_path / "2"))


def test_values_that_are_no_text_quarantine_their_row(tmp_path: Path):
    (tmp_path / "in").mkdir()
    table = pa.table({"id": ["1", "2"], "title": ["a", "b"], "body": [b"\xff", b"fine"]})
    pq.write_table(table, tmp_path / "in/a.parquet")
    lines = [{"id": "3", "title": ["a"], "body": "b"}, {"id": "4", "title": True, "body": "b"}]
    write(tmp_path / "in/b.jsonl", [*lines, {"id": "5", "title": "\ud800", "body": 7}])
    store = open_store(tmp_path / "out")
    settings = CorpusSettings(uri=str(tmp_path / "in"), text="{title} {body}", max_quarantined=1)
    corpus = ingest(settings, 100, store)
    assert texts_of(store, corpus) == {"2": "b fine", "5": "\ufffd 7"}
    rows = pq.read_table(store.open(corpus.quarantine.path)).to_pylist() if corpus.quarantine else []
    assert [(row["id"], row["reason"], row["detail"]) for row in rows] == [
        ("1", "invalid_utf8", "column body"),
        ("3", "wrong_type", 'title is ["a"], not a string or an integer'),
        ("4", "wrong_type", "title is true, not a string or an integer"),
    ]
