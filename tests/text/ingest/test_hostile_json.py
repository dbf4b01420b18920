"""JSON lines that would exhaust memory or the parser are refused, quarantined or stored without the value."""

import gzip
import tracemalloc

import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.text.formats.columns import MAX_LEAVES, count_leaves
from pipeline.text.formats.json_values import MAX_DEPTH
from pipeline.text.formats.reader import read_batches, survey_files
from pipeline.text.ingest.ingest import ingest
from pipeline.text.sources.sources import list_files
from tests.text.ingest.json_lines import rows_of, write_json_lines


def test_a_gzip_bomb_is_refused_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.text.formats.jsonl._MAX_LINE_BYTES", 4 << 20)
    bomb = tmp_path / "a.jsonl.gz"
    bomb.write_bytes(gzip.compress(b" " * (64 << 20)))  # 64 KB
    tracemalloc.start()
    with pytest.raises(DataError, match="lines of at most 4 MiB"):
        rows_of(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


def nest(depth, value=1):
    for _ in range(depth):
        value = {"a": value}
    return value


def test_a_value_nested_too_deep_is_null_and_counted(tmp_path):
    values = [nest(300), nest(MAX_DEPTH + 1), nest(3), None, [nest(300)]]
    file = write_json_lines(
        tmp_path, *({"id": number, "text": "t", "meta": value} for number, value in enumerate(values))
    )
    ingested = ingest(CorpusSettings(uri=str(file), keep=("meta",)), 10, open_store(tmp_path / "out"))
    assert ingested.counts["kept_values_dropped"] == 3
    assert pq.read_table(tmp_path / "out" / ingested.units[0].path)["meta"].to_pylist() == [
        None,
        None,
        nest(3),
        None,
        None,
    ]


def test_a_line_nested_too_deep_to_parse_is_quarantined_alone(tmp_path):
    lines = [
        f'{{"id": {number}, "text": "t", "meta": {"[" * levels}{"]" * levels}}}'
        for number, levels in enumerate([300, 50_000, 300, 50_000])
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    corpus = CorpusSettings(uri=str(tmp_path / "a.jsonl"), keep=("meta",))
    store = open_store(tmp_path / "out")
    ingested = ingest(corpus, 10, store)
    assert (ingested.counts["good"], ingested.counts["kept_values_dropped"]) == (2, 2)
    assert ingested.quarantine is not None
    bad = pq.read_table(store.open(ingested.quarantine.path)).to_pylist()
    assert [(row["row"], row["reason"], row["detail"]) for row in bad] == [
        (1, "invalid_json", "nested too deep to be parsed"),
        (3, "invalid_json", "nested too deep to be parsed"),
    ]


def test_the_number_of_keys_of_a_kept_column_is_limited_and_values_beyond_it_are_null(tmp_path):
    lines = [{"id": number, "text": "t", "meta": {f"key{number}": number}} for number in range(2_000)]
    lines.append({"id": 2_000, "text": "t", "meta": {"key7": 7, "key8": 8}})
    corpus = CorpusSettings(uri=str(write_json_lines(tmp_path, *lines)), keep=("meta",))
    columns = survey_files(list_files(corpus), corpus).columns
    assert count_leaves(columns.kept[0].type) == MAX_LEAVES
    batches = list(read_batches(list_files(corpus)[0], corpus, columns))
    good = [row for batch in batches for row in batch.good.to_pylist()]
    ids_with_value = [row["id"] for row in good if row["meta"] is not None]
    assert ids_with_value == [*range(MAX_LEAVES), 2_000]
    assert {name: value for name, value in good[-1]["meta"].items() if value is not None} == {
        "key7": 7,
        "key8": 8,
    }
    assert [row for batch in batches for row in batch.nulled] == list(range(MAX_LEAVES, 2_000))


def test_leaves_are_bounded_across_files(tmp_path):
    for name in "ab":
        meta = {f"{name}{number}": number for number in range(200)}
        write_json_lines(tmp_path, {"id": name, "text": "t", "meta": meta}, name=f"{name}.jsonl")
    ingested = ingest(CorpusSettings(uri=str(tmp_path), keep=("meta",)), 10, open_store(tmp_path / "_out"))
    values = pq.read_table(tmp_path / "_out" / ingested.units[0].path)["meta"].to_pylist()
    assert (len(values[0]), values[1], ingested.counts["kept_values_dropped"]) == (200, None, 1)
