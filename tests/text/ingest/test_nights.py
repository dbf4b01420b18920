"""A corpus that changes from night to night, against a plain-Python oracle that knows no history."""

import os

import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.store.records.units import EMPTIED, Changes, Corpus
from pipeline.text.ingest import ingest as ingest_module
from pipeline.text.key_tables import keys
from tests.text.ingest.editing import Nights, addresses, check


def test_unchanged_files_are_not_read(tmp_path):
    nights = Nights(tmp_path)
    nights.put("a.parquet", [("1", "one", "en"), ("2", "two", "en")])
    nights.put("b.parquet", [("3", "three", "en")])
    nights.night()
    stamp = (nights.input / "a.parquet").stat()
    (nights.input / "a.parquet").write_bytes(
        b"x" * stamp.st_size
    )  # same size and time, but reading it would fail
    os.utime(nights.input / "a.parquet", ns=(stamp.st_mtime_ns, stamp.st_mtime_ns))
    nights.put("b.parquet", [("3", "three", "en"), ("4", "four", "en")])
    ingested = nights.night()
    assert ingested.read_files == 1
    assert ingested.changes == Changes(new=1, unchanged=3)
    assert sorted(row[0] for row in addresses(nights.store, ingested).values()) == ["1", "2", "3", "4"]


def test_duplicate_becomes_live_when_the_winner_is_deleted(tmp_path):
    nights = Nights(tmp_path)
    nights.put("a.parquet", [("1", "wins", "en"), ("2", "stays", "en")])
    nights.put("b.parquet", [("1", "loses", "en"), ("3", "three", "en")])
    before = check(nights, nights.night(), {})
    nights.put("a.parquet", [("2", "stays", "en")])
    ingested = nights.night()
    check(nights, ingested, before)
    assert ingested.changes == Changes(changed=1, unchanged=2)
    assert ingested.read_files == 1


def test_text_known_under_another_id_has_a_copy_source(tmp_path):
    nights = Nights(tmp_path)
    nights.put("a.parquet", [("1", "one", "en"), ("2", "two", "en")])
    before = addresses(nights.store, nights.night())
    nights.put("b.parquet", [("3", "new", "en"), ("4", "two", "en"), ("5", "one", "de")])
    unit = nights.night().units[-1]
    assert unit.copies is not None
    copies = pq.read_table(nights.store.open(unit.copies.path, unit.copies.sha256)).to_pylist()
    assert {line["row"]: before[line["source"]][1] for line in copies} == {1: "two", 2: "one"}


def test_text_that_changes_back_is_copied_from_its_dead_row(tmp_path):
    nights = Nights(tmp_path)
    nights.put(
        "a.parquet", [("1", "one", "en"), ("2", "two", "en"), ("3", "three", "en"), ("4", "four", "en")]
    )
    nights.night()
    nights.put(
        "a.parquet", [("1", "changed", "en"), ("2", "two", "en"), ("3", "three", "en"), ("4", "four", "en")]
    )
    nights.night()
    nights.put(
        "a.parquet", [("1", "one", "en"), ("2", "two", "en"), ("3", "three", "en"), ("4", "four", "en")]
    )
    ingested = nights.night()
    assert ingested.units[-1].copies is not None
    assert pq.read_table(nights.store.open(ingested.units[-1].copies.path)).to_pylist() == [
        {"row": 0, "source": 0}
    ]
    assert ingested.changes == Changes(changed=1, unchanged=3)


def test_many_dead_rows_or_many_small_units_rebuild_the_corpus(tmp_path, monkeypatch):
    nights = Nights(tmp_path, unit_rows=10)
    nights.put("a.parquet", [(str(number), f"text {number}", "en") for number in range(10)])
    before = check(nights, nights.night(), {})
    nights.put("a.parquet", [(str(number), f"text {number}", "en") for number in range(4, 10)])
    ingested = nights.night()
    before = check(nights, ingested, before)
    assert not ingested.rebuild_reason
    nights.put("b.parquet", [("10", "ten", "en")])
    ingested = nights.night()
    assert "40% of the units' rows were dead" in ingested.rebuild_reason
    assert [unit.dead for unit in ingested.units] == [0]
    assert ingested.changes == Changes(new=1, unchanged=6)
    assert ingested.units[0].ordinal == nights.next_ordinal - 1 > max(address >> 32 for address in before)
    monkeypatch.setattr(ingest_module, "_SMALL_UNITS", 3)
    for number in range(11, 17):
        nights.put(f"{number}.parquet", [(str(number), f"text {number}", "en")])
        before, ingested = addresses(nights.store, ingested), nights.night()
        check(nights, ingested, before)
    assert len(ingested.units) < 5


def test_other_kept_columns_rebuild_the_corpus(tmp_path):
    nights = Nights(tmp_path)
    other_rows = [(str(number), f"text {number}", "en") for number in range(3, 9)]
    nights.put("a.parquet", [("1", "one", "en"), ("2", "two", "de"), *other_rows])
    nights.night()
    nights.put("a.parquet", [("1", "one", "en"), ("2", "two", "fr"), *other_rows])
    ingested = nights.night()
    assert ingested.changes == Changes(changed=1, unchanged=7)
    assert ingested.units[-1].copies is not None
    nights.corpus = nights.corpus.model_copy(update={"keep": ()})
    ingested = nights.night()
    assert "columns, or their types, have changed" in ingested.rebuild_reason
    assert sum(unit.rows for unit in ingested.units) == 8


def test_equal_nights_write_equal_bytes_after_a_failed_run(tmp_path):
    outcomes = []
    for name in ("one", "two"):
        nights = Nights(tmp_path / name)
        nights.put("a.parquet", [(str(number), f"text {number}", "en") for number in range(30)])
        nights.night()
        nights.put("b.parquet", [(str(number), f"text {number % 7}", "en") for number in range(20, 40)])
        ingested = nights.night()
        if name == "two":  # the record and a table are gone, as if the run had been stopped before its end
            nights.store.delete(f"keys/{ingested.id}/corpus.json")
            nights.store.delete(ingested.texts[0].path)
            nights.last = Corpus.load(nights.store, f"keys/{ingested.parent}/corpus.json")
            nights.next_ordinal = nights.last.next_ordinal
            assert nights.night() == ingested
        outcomes.append(
            {
                path.relative_to(tmp_path / name / "out").as_posix(): path.read_bytes()
                for path in (tmp_path / name / "out").rglob("*")
                if path.is_file()
            }
        )
    assert outcomes[0] == outcomes[1]


def test_damaged_table_is_refused_and_missing_table_rebuilds_the_corpus(tmp_path):
    nights = Nights(tmp_path)
    nights.put("a.parquet", [("1", "one", "en"), ("2", "two", "en")])
    first = nights.night()
    content = nights.store.read(first.keys[0].path)
    nights.put("b.parquet", [("3", "three", "en")])
    nights.store.write(first.keys[0].path, content[:-20] + bytes(20))
    with pytest.raises(DataError, match="sha256"):
        nights.night()
    nights.store.delete(first.keys[0].path)
    ingested = nights.night()
    assert "lacks" in ingested.rebuild_reason
    assert len(addresses(nights.store, ingested)) == 3


def test_result_does_not_depend_on_the_number_of_buckets(tmp_path, monkeypatch):
    live_rows = []
    for number, bucket_rows in enumerate((1 << 18, 60, 8)):
        nights = Nights(tmp_path / str(number), unit_rows=16)
        nights.put("a.parquet", [(f"id-{row}", f"text {row % 50}", "en") for row in range(100)])
        before = check(nights, nights.night(), {})
        monkeypatch.setattr(
            keys, "BUCKET_ROWS", bucket_rows
        )  # the second night's buckets are finer than the first's
        nights.put("b.parquet", [(f"id-{row}", f"text {row % 70}", "en") for row in range(90, 200)])
        nights.put("a.parquet", [(f"id-{row}", f"text {row % 50}", "en") for row in range(5, 100)])
        ingested = nights.night()
        live_rows.append(sorted(check(nights, ingested, before).values()))
    assert live_rows[0] == live_rows[1] == live_rows[2]


def test_files_that_have_no_rows_any_more_are_named_and_counted(tmp_path, capsys):
    nights = Nights(tmp_path)
    for name in ("a", "b", "c"):
        nights.put(f"{name}.parquet", [(name, "text", "en")])
    line = b'{"id": "d", "text": "text", "lang": "en"}\n'
    for name, content in (("d.jsonl", line), ("always.jsonl", b"")):
        (nights.input / name).write_bytes(content)
    assert EMPTIED not in nights.night().counts
    assert "warning" not in capsys.readouterr().err
    nights.put("b.parquet", [])
    (nights.input / "d.jsonl").write_bytes(b"")
    ingested = nights.night()
    assert ingested.counts[EMPTIED] == ingested.changes.deleted == 2
    assert "warning: 2 files had rows, and now none: b.parquet, d.jsonl\n" in capsys.readouterr().err
    nights.put("b.parquet", [("b", "text", "en")])
    assert nights.night().counts[EMPTIED] == 1
