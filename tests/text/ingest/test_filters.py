"""Rows that corpus.where leaves out are filtered: the corpus equals one of the other rows alone."""

import json
import os
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DataError
from pipeline.settings import CorpusSettings
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Corpus
from pipeline.store.releases.change_examples import ChangedRows
from pipeline.text.formats import parquet
from pipeline.text.formats.excluded_ids import read_ids, with_excluded_ids, write_ids
from pipeline.text.formats.reader import read_batches, survey_files
from pipeline.text.ingest.corpus_record import corpus_digest, reading_digest
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import PreviousCorpus
from pipeline.text.sources.sources import list_files
from pipeline.text.task_map import TaskRunner
from tests.text.ingest.editing import addresses
from tests.text.ingest.task_maps import map_in_other_processes

Value = int | float | str | bool | list[int] | None
Answer = bool | str | None


def _lower(value: Value, than: float) -> Answer:
    """True, false, None for null, "fails" for a value that is not a number, or too large a one."""
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 10**76
    return value < than if is_number else "fails"


def _equal(value: Value, text: str) -> Answer:
    return value == text if isinstance(value, str) else None if value is None else "fails"


def _either(*answers: Answer) -> Answer:
    if "fails" in answers:
        return "fails"
    return True if True in answers else None if None in answers else False


def _both(*answers: Answer) -> Answer:
    if "fails" in answers:
        return "fails"
    return False if False in answers else None if None in answers else True


def _negated(answer: Answer) -> Answer:
    return not answer if isinstance(answer, bool) else answer


FILTERS: dict[str | None, Callable[[Value, Value], Answer]] = {
    None: lambda price, lang: True,
    "price < 3": lambda price, lang: _lower(price, 3),
    "price < 2.5 or lang = 'de'": lambda price, lang: _either(_lower(price, 2.5), _equal(lang, "de")),
    "not (price < 3 and lang = 'de')": lambda price, lang: _negated(
        _both(_lower(price, 3), _equal(lang, "de"))
    ),
    "price is not null": lambda price, lang: price is not None,
    "lang in ('de', 'fr') or lang is null": lambda price, lang: _either(
        _either(_equal(lang, "de"), _equal(lang, "fr")), lang is None
    ),
}

Row = tuple[str | None, str | None, Value, Value]
some_ids, some_texts = (
    st.sampled_from([*"abcdef", None]),
    st.sampled_from(["one", "two", "three", "", None]),
)
prices = st.sampled_from([1, 2, 3, 2.5, 2**60, 2**64 + 1, -(10**80), "3", True, [1], None])
languages = st.sampled_from(["de", "fr", "en", 7, None])
json_rows = st.lists(st.tuples(some_ids, some_texts, prices, languages), max_size=8)
parquet_rows = st.lists(
    st.tuples(some_ids, some_texts, st.sampled_from([1, 2, 3, None]), st.sampled_from(["de", "fr", None])),
    max_size=8,
)
filters = st.sampled_from(list(FILTERS))


class Files:
    """A folder with a Parquet file and two files of JSON lines."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.rows = folder / "in", 0, dict[str, list[Row]]()
        self.folder.mkdir(parents=True)

    def put(self, name: str, rows: list[Row]) -> None:
        self.rows[name] = rows
        self.clock += 1
        file = self.folder / name
        if name.endswith(".parquet"):
            kinds = (pa.string(), pa.string(), pa.int64(), pa.string())
            columns = [pa.array([row[index] for row in rows], kind) for index, kind in enumerate(kinds)]
            pq.write_table(pa.table(columns, names=["id", "text", "price", "lang"]), file)
        else:
            lines = [json.dumps(dict(zip(("id", "text", "price", "lang"), row, strict=True))) for row in rows]
            file.write_text("\n".join(lines))
        os.utime(file, ns=(self.clock, self.clock))

    def expected(self, where: str | None) -> tuple[dict[str, str], Counter[str]]:
        """Text by id of the live rows, and the number of rows by fate: good, filtered or quarantined."""
        live, fates = dict[str, str](), Counter[str]()
        for name in sorted(self.rows):
            for row_id, text, price, lang in self.rows[name]:
                answer = FILTERS[where](price, lang)
                if answer == "fails":
                    fates["quarantined_filter_failed"] += 1
                elif not answer:
                    fates["filtered"] += 1
                elif row_id is None or not text:
                    fates["quarantined_null_id" if row_id is None else "quarantined_empty"] += 1
                elif row_id in live:
                    fates["quarantined_duplicate_id"] += 1
                else:
                    live[row_id] = text
                    fates["good"] += 1
        return live, fates


def quarantined(store: Store, corpus: Corpus) -> list[dict[str, Any]]:
    return pq.read_table(store.open(corpus.quarantine.path)).to_pylist() if corpus.quarantine else []


def of_units(store: Store, corpus: Corpus) -> dict[str, str]:
    return {row_id: text for row_id, text, _ in addresses(store, corpus).values()}


@pytest.mark.slow
@given(
    parquet_rows,
    json_rows,
    json_rows,
    st.lists(st.tuples(filters, st.none() | json_rows), min_size=2, max_size=3),
)
@settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_a_filter_that_is_added_changed_or_removed_gives_the_corpus_of_a_first_night_with_it(
    first: list[Row],
    second: list[Row],
    third: list[Row],
    nights: list[tuple[str | None, list[Row] | None]],
):
    """Unchanged files are read again when the filter changes; a row that passes keeps its address."""
    with TemporaryDirectory() as folder:
        files = Files(Path(folder))
        always = [("kept", "a text", 1, "de"), ("kept too", "a text", None, None)]
        files.put("1.parquet", first)
        files.put("2.jsonl", [*second, *always])
        files.put("3.jsonl", third)
        store, last = open_store(Path(folder) / "out"), None
        for number, (where, edited) in enumerate(nights):
            if edited is not None:
                files.put("3.jsonl", edited)
            corpus = CorpusSettings(uri=str(files.folder), max_quarantined=1, where=where)
            live, fates = files.expected(where)
            if not live:
                with pytest.raises(DataError, match="at least one row"):
                    ingest(corpus, 4, open_store(Path(folder) / f"fresh-{number}"))
                continue
            before = {} if last is None else addresses(store, last)
            previous = PreviousCorpus(last, last.next_ordinal if last else 0)
            now = ingest(corpus, 4, store, previous)
            fresh_store = open_store(Path(folder) / f"fresh-{number}")
            fresh = ingest(corpus, 4, fresh_store)
            assert of_units(store, now) == of_units(fresh_store, fresh) == live
            assert now.counts | {"emptied_files": 0} == fresh.counts | {"emptied_files": 0}
            assert quarantined(store, now) == quarantined(fresh_store, fresh)
            assert {name: count for name, count in now.counts.items() if name in fates} == fates
            assert now.counts["rows"] == now.counts["good"] + now.counts["quarantined"] + now.counts.get(
                "filtered", 0
            )
            if not now.rebuild_reason:
                rows_now = {row: address for address, row in addresses(store, now).items()}
                assert all(rows_now.get(row, address) == address for address, row in before.items())
            ids_before = {row[0] for row in before.values()}
            changed = ChangedRows.load(store, ChangedRows.path(now.id))
            assert changed is not None
            assert changed.deleted_documents == len(ids_before - live.keys())
            last = now


def test_filtered_rows_of_the_previous_corpus_are_distinguished_from_deleted_ones(tmp_path: Path):
    files, store = Files(tmp_path), open_store(tmp_path / "out")
    files.put("1.parquet", [(str(number), f"text {number}", number % 5, "de") for number in range(20)])
    files.put("2.jsonl", [("x", "text", 1, "de"), ("y", "text", 9, "de")])
    corpus = CorpusSettings(uri=str(files.folder))
    first = ingest(corpus, 100, store)
    files.put("2.jsonl", [("x", "text", 1, "de")])  # y is deleted
    second = ingest(corpus.model_copy(update={"where": "price < 4"}), 100, store, PreviousCorpus(first, 9))
    changed = ChangedRows.load(store, ChangedRows.path(second.id))
    assert changed is not None
    assert (changed.deleted_documents, changed.filtered_documents) == (5, 4)
    assert second.changes.model_dump() == {"new": 0, "changed": 0, "deleted": 5, "unchanged": 17}
    assert (second.counts["rows"], second.counts["good"], second.counts["filtered"]) == (21, 17, 4)
    assert second.read_files == 2, "a file that did not change is read again for the filter"
    third = ingest(corpus.model_copy(update={"where": "price < 4"}), 100, store, PreviousCorpus(second, 9))
    assert third.read_files == 0, "and not if the filter stays"


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("prize < 3", "'prize', but the rows have the columns id, text, price, lang; did you mean 'price'"),
        ("price <", "corpus.where, position 8: expected a value"),
        ("price = 'de'", "column price is of type int64"),
        (" and ".join(["price = 1"] * 1_001), "at most 1,000 conditions"),
        (f"lang like '{'%_' * 101}'", "at most 100 _ in all"),
    ],
)
def test_a_filter_that_no_row_can_meet_is_an_error_of_the_settings(tmp_path: Path, where: str, found: str):
    files = Files(tmp_path)
    files.put("1.parquet", [("a", "text", 1, "de")])
    with pytest.raises(ConfigError) as caught:
        ingest(CorpusSettings(uri=str(files.folder), where=where), 100, open_store(tmp_path / "out"))
    assert found in str(caught.value)
    assert "corpus.where" in str(caught.value)


def test_a_column_that_no_json_object_has_is_an_error_of_the_settings(tmp_path: Path):
    files = Files(tmp_path)
    files.put("1.jsonl", [("a", "text", 1, "de")])
    with pytest.raises(ConfigError, match="'colour', but the rows have the columns id, text, price, lang"):
        ingest(CorpusSettings(uri=str(files.folder), where="colour is null"), 9, open_store(tmp_path / "out"))


def test_a_column_that_first_occurs_late_in_a_json_file_is_known(tmp_path: Path):
    lines = [json.dumps({"id": str(number), "text": "x" * 400}) for number in range(6_000)]  # over two blocks
    lines += [json.dumps({"id": "gone", "text": "x", "deleted": True})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    corpus = CorpusSettings(uri=str(tmp_path / "a.jsonl"), where="deleted is null")
    counts = ingest(corpus, 10_000, open_store(tmp_path / "out")).counts
    assert (counts["good"], counts["filtered"]) == (6_000, 1)


def test_a_parquet_file_without_the_column_is_refused_or_skipped_like_one_without_a_kept_column(
    tmp_path: Path,
):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": ["a"], "text": ["x"], "price": [1]}), tmp_path / "in/1.parquet")
    pq.write_table(pa.table({"id": ["b"], "text": ["x"]}), tmp_path / "in/2.parquet")
    corpus = CorpusSettings(uri=str(tmp_path / "in"), where="price < 3")
    with pytest.raises(DataError, match=r"2\.parquet: expected a column 'price' \(corpus\.where\)"):
        ingest(corpus, 100, open_store(tmp_path / "out"))
    skipping = corpus.model_copy(update={"bad_files": "skip"})
    counts = ingest(skipping, 100, open_store(tmp_path / "out")).counts
    assert (counts["good"], counts["bad_files"]) == (1, 1)


def test_a_parquet_file_whose_column_has_another_type_is_quarantined_row_by_row(tmp_path: Path):
    (tmp_path / "in").mkdir()
    pq.write_table(
        pa.table({"id": ["a", "b"], "text": ["x", "y"], "price": [1, 9]}), tmp_path / "in/1.parquet"
    )
    pq.write_table(pa.table({"id": ["c"], "text": ["z"], "price": ["1"]}), tmp_path / "in/2.parquet")
    store = open_store(tmp_path / "out")
    corpus = ingest(CorpusSettings(uri=str(tmp_path / "in"), where="price < 3"), 100, store)
    [row] = quarantined(store, corpus)
    assert (row["file"], row["id"], row["reason"], row["excerpt"]) == (
        "2.parquet",
        "c",
        "filter_failed",
        "z",
    )
    assert "column price is of type string" in row["detail"]
    assert (corpus.counts["good"], corpus.counts["filtered"]) == (1, 1)


def test_filtered_rows_are_not_checked_and_do_not_count_as_quarantined(tmp_path: Path):
    """Nine empty texts, a row without id and a text of a wrong type are left out; one of two rows is bad."""
    rows = [{"id": str(number), "text": "", "lang": "en"} for number in range(9)]
    rows += [{"id": None, "text": "x", "lang": "en"}, {"id": "z", "text": 7, "lang": "en"}]
    rows += [{"id": "a", "text": "x", "lang": "de"}, {"id": "b", "text": "", "lang": "de"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    corpus = CorpusSettings(uri=str(tmp_path / "a.jsonl"), where="lang = 'de'")
    counts = ingest(corpus, 100, open_store(tmp_path / "out")).counts
    assert (counts["rows"], counts["good"], counts["quarantined"], counts["filtered"]) == (13, 1, 1, 11)
    with pytest.raises(DataError, match=r"1 of 2 rows \(empty 1, 11 rows filtered \(corpus\.where 11\)\)"):
        ingest(corpus.model_copy(update={"max_quarantined": 0.4}), 100, open_store(tmp_path / "out"))


def test_the_largest_number_of_rows_counts_filtered_rows_as_read(tmp_path: Path):
    files = Files(tmp_path)
    files.put("1.parquet", [(str(number), "text", number % 2, None) for number in range(50)])
    corpus = CorpusSettings(uri=str(files.folder), where="price = 1", max_rows=20)
    counts = ingest(corpus, 100, open_store(tmp_path / "out")).counts
    assert (counts["rows"], counts["good"], counts["filtered"], counts["skipped"]) == (20, 10, 10, 30)


def test_columns_of_every_kind_can_be_filtered(tmp_path: Path):
    """Times, nested columns tested for null, hive partitions, dictionary codes, the text and the id."""
    folder = tmp_path / "in" / "lang=de"
    folder.mkdir(parents=True)
    table = pa.table(
        {
            "id": pa.array([1, 2, 3, 4]),
            "text": ["one", "two", "three", "four"],
            "day": pa.array(np.array(["2026-01-01", "2026-02-01", "2026-03-01", "NaT"], "datetime64[ns]")),
            "kind": pa.array(["x", "y", "x", None]).dictionary_encode(),
            "tags": pa.array([["a"], None, [], ["b"]]),
        }
    )
    pq.write_table(table, folder / "a.parquet")
    expected = {
        "day < '2026-02-15'": {"1", "2"},
        "kind = 'x' and lang = 'de'": {"1", "3"},
        "lang = 'en' or tags is null": {"2"},
        "id > 2": {"3", "4"},
        "text like 't%'": {"2", "3"},
    }
    for where, ids in expected.items():
        store = open_store(tmp_path / str(len(where)))
        corpus = ingest(CorpusSettings(uri=str(tmp_path / "in"), where=where), 100, store)
        assert {str(row_id) for row_id in of_units(store, corpus)} == ids, where
        assert corpus.counts["filtered"] == 4 - len(ids)


def excluding(folder: Path, file: Path | str | None, **others: Any) -> CorpusSettings:
    corpus = CorpusSettings(uri=str(folder), exclude=None if file is None else str(file), **others)
    return with_excluded_ids(corpus)


@pytest.mark.slow
@given(
    parquet_rows,
    json_rows,
    st.lists(st.tuples(st.sets(st.sampled_from("abcdef")), filters), min_size=2, max_size=3),
)
@settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_a_changed_file_of_ids_changes_exactly_their_rows(
    first: list[Row], second: list[Row], nights: list[tuple[set[str], str | None]]
):
    """The corpus equals that of a first night over files without these rows; the files stay unchanged."""
    with TemporaryDirectory() as folder:
        files, others = Files(Path(folder)), Files(Path(folder) / "others")
        first = [*first, ("kept", "a text", 1, "fr")]
        files.put("1.parquet", first)
        files.put("2.jsonl", second)
        store, last, excluded = open_store(Path(folder) / "out"), None, Path(folder) / "excluded.txt"
        for number, (ids, where) in enumerate(nights):
            excluded.write_text("".join(f"{each}\n" for each in sorted(ids)))
            previous = PreviousCorpus(last, last.next_ordinal if last else 0)
            corpus = excluding(files.folder, excluded, where=where, max_quarantined=1)
            last = ingest(corpus, 4, store, previous)
            others.put("1.parquet", [row for row in first if row[0] not in ids])
            others.put("2.jsonl", [row for row in second if row[0] not in ids])
            other_store = open_store(Path(folder) / f"fresh-{number}")
            without = CorpusSettings(uri=str(others.folder), where=where, max_quarantined=1)
            fresh = ingest(without, 4, other_store)
            assert of_units(store, last) == of_units(other_store, fresh)
            gone = sum(row[0] in ids for row in (*first, *second))
            filtered = fresh.counts.get("filtered", 0) + gone
            assert last.counts.get("filtered", 0) == filtered
            assert last.counts["rows"] == fresh.counts["rows"] + gone
            assert last.counts["quarantined"] == fresh.counts["quarantined"]


def test_ids_that_no_row_has_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    files, store = Files(tmp_path), open_store(tmp_path / "out")
    files.put("1.parquet", [(str(number), f"text {number}", number, "de") for number in range(20)])
    excluded = tmp_path / "ids.txt"
    excluded.write_text("3\r\n7\n\nabsent\nnot here\n7\n")
    corpus = ingest(excluding(files.folder, excluded, where="price < 10"), 100, store)
    assert of_units(store, corpus).keys() == {str(number) for number in range(10)} - {"3", "7"}
    found = {name: corpus.counts.get(name) for name in ("filtered", "filtered_where", "filtered_exclude")}
    assert found == {"filtered": 12, "filtered_where": 10, "filtered_exclude": 2}
    assert corpus.counts["unmatched_excluded_ids"] == 2
    assert "2 ids of corpus.exclude or more in no row of the corpus" in capsys.readouterr().err
    excluded.write_text("7\n3\nabsent\nnot here\n")
    again = excluding(files.folder, excluded, where="price < 10")
    assert corpus_digest(again, list_files(again)) == corpus.digest, "the order of the ids does not count"
    excluded.write_text("\n")
    nobody = excluding(files.folder, excluded, where="price < 10")
    assert reading_digest(nobody) == reading_digest(excluding(files.folder, None, where="price < 10"))


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.large_string()])
def test_ids_of_a_parquet_file_leave_out_rows_with_ids_of_any_type(tmp_path: Path, kind: pa.DataType):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3], "text": ["one", "two", "three"]}), tmp_path / "in/1.parquet")
    table = pa.table({"group": [1, 1], "id": pa.array([2, None]).cast(kind)})
    pq.write_table(table, tmp_path / "ids.parquet")
    store = open_store(tmp_path / "out")
    corpus = ingest(excluding(tmp_path / "in", tmp_path / "ids.parquet"), 100, store)
    assert set(of_units(store, corpus).values()) == {"one", "three"}


@pytest.mark.parametrize(
    ("name", "content", "error", "found"),
    [
        ("none.txt", None, ConfigError, "no such file"),
        ("ids.csv", b"id\n1\n", ConfigError, "one id on each line"),
        ("ids.parquet", b"id\n1\n", DataError, "write the file again"),
        ("ids.txt", b"a\xff\n", DataError, "UTF-8"),
    ],
)
def test_a_file_of_ids_that_cannot_be_read_is_refused(
    tmp_path: Path, name: str, content: bytes | None, error: type[Exception], found: str
):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=rf"{name}.*{found}"):
        excluding(tmp_path, tmp_path / name)


def test_written_ids_are_read_again_and_those_that_cannot_be_lines_need_parquet(tmp_path: Path):
    ids = ["b", "a 1", "ö", "line\nbreak", " "]
    write_ids(str(tmp_path / "ids.parquet"), ids)
    assert read_ids(str(tmp_path / "ids.parquet")) == set(ids)
    write_ids(str(tmp_path / "ids.txt"), ids[:3])
    assert read_ids(str(tmp_path / "ids.txt")) == set(ids[:3])
    with pytest.raises(ConfigError, match=r"name a \.parquet file"):
        write_ids(str(tmp_path / "ids.txt"), ids)


@pytest.mark.parametrize("name", ["ids.txt", "ids.parquet"])
def test_ids_are_read_from_and_written_to_an_object_store(s3: str, name: str):
    uri = f"{s3}/{uuid.uuid4().hex}/{name}"
    with pytest.raises(ConfigError, match=r"corpus\.exclude: .*a file of ids"):
        read_ids(uri)
    write_ids(uri, ["a", "ö 1"])
    assert read_ids(uri) == {"a", "ö 1"}


def test_tasks_of_other_processes_and_row_groups_filter_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Settings, ids included, are pickled with the tasks; a file of ten row groups is read by ten items."""
    monkeypatch.setattr(parquet, "_DIVISION_BYTES", 1)
    (tmp_path / "in").mkdir()
    numbers = list(range(100))
    table = pa.table({"id": numbers, "text": [f"text {number}" for number in numbers], "price": numbers})
    pq.write_table(table, tmp_path / "in/a.parquet", row_group_size=10)
    (tmp_path / "ids.txt").write_text("".join(f"{number}\n" for number in range(0, 100, 3)))
    corpus = excluding(tmp_path / "in", tmp_path / "ids.txt", where="price >= 15")
    here, there = open_store(tmp_path / "here"), open_store(tmp_path / "there")
    made = ingest(corpus, 100, here)
    other = ingest(corpus, 100, there, runner=TaskRunner(map_in_other_processes))
    assert made == other
    kept = {f"text {number}" for number in numbers if number >= 15 and number % 3}
    assert set(of_units(here, made).values()) == set(of_units(there, other).values()) == kept
    assert made.counts["filtered"] == 100 - len(kept)


PRICES: dict[str, list[Value]] = {
    "one type": [1, 2.5, None, 3, 2**53 - 1],
    "large integers": [1, 2**53, 2**60 + 1, None, 3],
    "several types": [1, "3", True, None, [1]],
    "strings": ["1", None, "de", "3", ""],
}


@pytest.mark.parametrize("keep", [(), ("price",)])
@pytest.mark.parametrize("prices", PRICES)
def test_the_answer_for_a_row_does_not_depend_on_the_rows_that_are_parsed_with_it(
    tmp_path: Path, prices: str, keep: tuple[str, ...]
):
    """A file gives what its lines give in files of their own; Arrow parses some of them, Python others."""
    rows = [(str(number), "one", price, "de") for number, price in enumerate(PRICES[prices])]
    files, lines = Files(tmp_path), Files(tmp_path / "lines")
    files.put("1.jsonl", rows)
    lines.put("0.jsonl", [("first", "one", 1 if prices != "strings" else "1", "de")])
    for number, row in enumerate(rows):
        lines.put(f"{number + 1}.jsonl", [row])
    for where in ("price < 3", "price is null", "price != 9007199254740992.5", "price in ('3', 'de')"):
        for text in ("text", "{text} ({lang})"):
            fates = list[dict[str, str]]()
            for folder in (files.folder, lines.folder):
                corpus = CorpusSettings(uri=str(folder), where=where, text=text, keep=keep)
                found, fate = survey_files(list_files(corpus), corpus).columns, dict[str, str]()
                for batch in (
                    each for file in list_files(corpus) for each in read_batches(file, corpus, found)
                ):
                    good = zip(batch.good["id"].to_pylist(), batch.good["text"].to_pylist(), strict=True)
                    fate |= dict(good) | dict.fromkeys(batch.filtered["id"].to_pylist(), "filtered")
                    fate |= dict.fromkeys(batch.bad["id"].to_pylist(), "bad")
                fate.pop("first", None)
                fates.append(fate)
            assert fates[0] == fates[1], (where, text)
            assert len(fates[0]) == len(rows)
