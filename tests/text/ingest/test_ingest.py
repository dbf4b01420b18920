"""Units, quarantine and key table against a plain-Python oracle: splits, duplicates, kills, S3."""

import uuid
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.store.rows.schema import stored_name
from pipeline.text.ingest import part_writer
from pipeline.text.ingest.ingest import ingest
from pipeline.text.key_tables import keys
from pipeline.text.key_tables.keys import bucket_count, id_hashes
from pipeline.text.normalize import text_keys
from tests.text.ingest.ingesting import corpora, random_rows, rows_of, write
from tests.text.ingest.tables import key_lines


def quarantined(store, ingested):
    return pq.read_table(store.open(ingested.quarantine.path)).to_pylist() if ingested.quarantine else []


@given(corpora, st.lists(st.integers(0, 40), max_size=4), st.integers(1, 9))
def test_every_row_is_kept_or_quarantined_once_for_every_split_into_files(tmp_path, rows, cuts, unit_rows):
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts = [rows[start:stop] for start, stop in pairwise(edges)]
    directory, store = tmp_path / uuid.uuid4().hex, open_store(tmp_path / uuid.uuid4().hex)
    corpus = write(directory, [("always", "there")], *parts)
    ingested = ingest(corpus, unit_rows, store)

    numbered = [("00.parquet", 0, "always", "there")]
    numbered += [
        (f"{number:02d}.parquet", row, *pair)
        for number, part in enumerate(parts, start=1)
        for row, pair in enumerate(part)
    ]
    good = [one for one in numbered if one[2] is not None and one[3] is not None and one[3].strip()]
    live = list({one[2]: one for one in reversed(good)}.values())
    live.sort()
    found = rows_of(store, ingested)
    assert [(row["file"], row["row"], row["id"], row["text"]) for row in found] == [
        (*one[:3], one[3].strip()) for one in live
    ]
    assert [row["text_key"] for row in found] == text_keys(
        pa.array([row["text"] for row in found])
    ).to_pylist()
    assert all(unit.rows <= unit_rows for unit in ingested.units)

    reasons = {(row["file"], row["row"]): row["reason"] for row in quarantined(store, ingested)}
    assert (
        len(reasons)
        == len(quarantined(store, ingested))
        == len(numbered) - len(live)
        == ingested.counts["quarantined"]
    )
    assert {position for position, reason in reasons.items() if reason == "duplicate_id"} == {
        one[:2] for one in good
    } - {one[:2] for one in live}
    assert {position for position, reason in reasons.items() if reason == "null_id"} == {
        one[:2] for one in numbered if one[2] is None
    }
    assert (
        ingested.counts["rows"] == ingested.counts["good"] + ingested.counts["quarantined"] == len(numbered)
    )
    assert [(file.rows, file.good + file.quarantined) for file in ingested.files] == [
        (len(part), len(part)) for part in [[0], *parts]
    ]
    check_keys(store, ingested, good)


def check_keys(store, ingested, good):
    """One line per good row, sorted, with the address of the row that it names, or null for a duplicate."""
    lines = [pq.read_table(store.open(bucket.path)).to_pylist() for bucket in ingested.keys]
    assert sorted((line["file"], line["row"], line["id"]) for bucket in lines for line in bucket) == sorted(
        one[:3] for one in good
    )
    addresses = {
        (row["file"], row["row"]): record.ordinal << 32 | number
        for record in ingested.units
        for number, row in enumerate(pq.read_table(store.open(record.path)).to_pylist())
    }
    for number, bucket in enumerate(lines):
        assert bucket == sorted(
            bucket,
            key=lambda line: (
                line["id"].encode() if isinstance(line["id"], str) else line["id"],
                line["file"],
                line["row"],
            ),
        )
        for line in bucket:
            assert line["address"] == addresses.get((line["file"], line["row"]))
            (id_hash,) = id_hashes(pa.table({"id": [line["id"]], "row": [line["row"]]}))
            assert int(id_hash) * len(lines) >> 64 == number


@pytest.fixture
def small_buckets(monkeypatch):
    """Sizes at which a few thousand rows need several runs and buckets."""
    monkeypatch.setattr(keys, "BUCKET_ROWS", 500)
    monkeypatch.setattr(part_writer, "_PART_BYTES", 20_000)


def test_duplicates_are_found_across_runs_and_buckets(tmp_path, small_buckets):
    rows = random_rows(6000, seed=0, distinct=4000)
    corpus, store = write(tmp_path / "in", rows[:2500], rows[2500:]), open_store(tmp_path / "out")
    ingested = ingest(corpus, 512, store)
    assert len(ingested.keys) == bucket_count(6000) == 16
    good = [
        (
            "00.parquet" if number < 2500 else "01.parquet",
            number % 2500 if number < 2500 else number - 2500,
            *row,
        )
        for number, row in enumerate(rows)
    ]
    first = {}
    for one in good:
        first.setdefault(one[2], one)
    assert sorted((row["file"], row["row"], row["id"]) for row in rows_of(store, ingested)) == [
        one[:3] for one in good if first[one[2]] is one
    ]
    check_keys(store, ingested, good)
    duplicates = quarantined(store, ingested)
    assert [(row["file"], row["row"]) for row in duplicates] == sorted(
        (row["file"], row["row"]) for row in duplicates
    )
    for row in duplicates:
        assert row["detail"] == f"{first[row['id']][0]} row {first[row['id']][1]} has it first"


def test_rows_that_are_all_duplicates_leave_no_gap_in_the_names_of_units(tmp_path):
    rows = [(f"id-{number}", "text") for number in range(4)]
    corpus, store = write(tmp_path / "in", rows, rows, [("new", "text")] * 2), open_store(tmp_path / "out")
    ingested = ingest(corpus, 4, store)
    assert [unit.rows for unit in ingested.units] == [4, 1]
    assert [unit.name for unit in ingested.units] == ["00000000", "00000001"]
    check_keys(
        store,
        ingested,
        [("00.parquet", n, *row) for n, row in enumerate(rows)]
        + [("01.parquet", n, *row) for n, row in enumerate(rows)]
        + [("02.parquet", n, "new", "text") for n in range(2)],
    )


@pytest.mark.parametrize(
    ("kind", "values", "stored"),
    [
        (pa.int16(), [-1, 7], "int64"),
        (pa.uint64(), [2**63 + 1, 7], "uint64"),
        (pa.large_string(), ["a", "b"], "string"),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b"], "string"),
        (pa.uint32(), [1, 2], "int64"),
    ],
)
def test_ids_keep_type_and_value(tmp_path, kind, values, stored):
    corpus = write(
        tmp_path / "in",
        [(value, f"text {value}") for value in values],
        schema=pa.schema([("id", kind), ("text", pa.large_string())]),
    )
    store = open_store(tmp_path / "out")
    ingested = ingest(corpus, 10, store)
    assert [row["id"] for row in rows_of(store, ingested)] == values
    assert ingested.id_type == stored
    assert [line["id"] for line in key_lines(store, ingested.keys[0])] == sorted(values)


def test_kept_columns_and_partitions_are_stored_in_the_units(tmp_path):
    for lang, numbers in (("en", pa.int32()), ("de", pa.int64())):
        (tmp_path / f"lang={lang}").mkdir()
        table = pa.table(
            {
                "key": [f"{lang}1"],
                "body": pa.array([f" {lang} text "]).dictionary_encode(),
                "n": pa.array([2**31 - 1], numbers),
                "id": [b"x"],
                "tags": [["t"]],
                "file": [None],
            }
        )
        pq.write_table(table, tmp_path / f"lang={lang}" / "a.parquet")
    corpus = CorpusSettings(
        uri=str(tmp_path), id="key", text="body", keep=("lang", "n", "id", "tags", "file", "body")
    )
    store = open_store(tmp_path / "_out")
    rows = rows_of(store, ingest(corpus, 10, store))
    assert [
        (
            row["id"],
            row["text"],
            row["lang"],
            row["n"],
            row["kept.id"],
            row["tags"],
            row["kept.file"],
            row["body"],
        )
        for row in rows
    ] == [
        (f"{lang}1", f"{lang} text", lang, 2**31 - 1, b"x", ["t"], None, f" {lang} text ")
        for lang in ("de", "en")
    ]


def test_max_rows_reads_the_first_rows_and_counts_the_rest(tmp_path):
    rows = [(f"id-{number}", "text" if number % 3 else None) for number in range(30)]
    corpus, store = write(tmp_path / "in", rows[:10], rows[10:20], rows[20:]), open_store(tmp_path / "out")
    ingested = ingest(corpus.model_copy(update={"max_rows": 14}), 10, store)
    assert [row["id"] for row in rows_of(store, ingested)] == [
        f"id-{number}" for number in range(14) if number % 3
    ]
    assert (ingested.counts["rows"], ingested.counts["quarantined"], ingested.counts["skipped"]) == (
        14,
        5,
        16,
    )
    assert [(file.rows, file.skipped) for file in ingested.files] == [(10, 0), (4, 6), (0, 10)]


@pytest.mark.parametrize(
    ("limit", "read", "unread_files"), [(3, 3, 2), (5, 5, 1), (7, 7, 1), (10, 10, 0), (None, 10, 0)]
)
def test_max_rows_counts_json_files_not_read_to_their_end(tmp_path, limit, read, unread_files):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(f'{{"id":"{name}{number}","text":"t"}}\n\n' for number in range(5))
        )
    ingested = ingest(CorpusSettings(uri=str(tmp_path), max_rows=limit), 10, open_store(tmp_path / "_out"))
    assert (ingested.rows, ingested.counts["rows"], ingested.counts.get("skipped_files", 0)) == (
        read,
        read,
        unread_files,
    )


def test_unit_ends_early_if_texts_are_long(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.text.ingest.unit_writer.UNIT_BYTES", 1000)
    corpus = write(
        tmp_path / "in",
        [(f"id-{number}", "x" * length) for number, length in enumerate([400, 400, 400, 5000, 1, 999, 1])],
    )
    ingested = ingest(corpus, 100, open_store(tmp_path / "out"))
    assert [unit.rows for unit in ingested.units] == [2, 1, 1, 2, 1]


@pytest.mark.parametrize("name", ["position", "kept.position", "carried", "duplicate", "file", ""])
def test_a_kept_column_may_have_the_name_of_a_column_that_ingestion_uses(tmp_path, name):
    (tmp_path / "in").mkdir()
    table = pa.table({"id": ["a", "b", "c"], "text": ["one", "two", "three"], name: [3, 1, 2]})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    store = open_store(tmp_path / "out")
    ingested = ingest(CorpusSettings(uri=str(tmp_path / "in"), keep=(name,)), 2, store)
    assert {row["id"]: row[stored_name(name)] for row in rows_of(store, ingested)} == {"a": 3, "b": 1, "c": 2}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.string_view()), ["longer than a view holds", "b"]),
        (pa.list_(pa.binary_view(), 1), [b"one"]),
        (pa.struct([("a", pa.large_list(pa.string_view()))]), {"a": ["x", None]}),
        (pa.map_(pa.string_view(), pa.string_view()), [("key", "value")]),
    ],
)
def test_views_inside_of_kept_columns_are_stored_without_them(tmp_path, kind, value):
    (tmp_path / "in").mkdir()
    table = pa.table({"id": ["a", "b", "a"], "text": ["t"] * 3, "kept": pa.array([value, None, value], kind)})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    store = open_store(tmp_path / "out")
    corpus = CorpusSettings(uri=str(tmp_path / "in"), keep=("kept",), max_quarantined=1)
    found = rows_of(store, ingest(corpus, 10, store))
    assert {row["id"]: row["kept"] for row in found} == {"a": value, "b": None}
