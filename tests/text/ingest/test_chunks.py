"""Documents that are cut into chunks, over any nights, against an oracle that knows no history."""

import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import Defect
from pipeline.store.rows.schema import stored_name
from pipeline.text.ingest import sorted_rows
from pipeline.text.ingest.chunking import row_cutter
from pipeline.text.key_tables import keys
from pipeline.text.key_tables.line_numbers import (
    are_first,
    chunk_lines,
    dense_numbers,
    rows_of_lines,
)
from pipeline.text.task_map import map_here
from tests.text.ingest.cut_nights import CutNights, check_chunks, live_chunks, without_place
from tests.text.ingest.editing import apply, check, edits_of, rebuild_reason
from tests.text.ingest.task_maps import map_in_other_processes

ids = st.sampled_from(["a", "b", "c", "a#0", "a#1", "é", "1", None])
texts = st.sampled_from(
    ["one", " one two  three ", "one two four", "x\ny z w v", "five one two three", "", None]
)
rows = st.lists(st.tuples(ids, texts, st.sampled_from(["en", "de", None])), max_size=8)
edits = edits_of(rows, st.tuples(st.just("cut"), st.sampled_from([1, 2, 3, None]), st.just(None)))


@pytest.mark.parametrize("map_tasks", [map_here, map_in_other_processes])
@settings(max_examples=settings.default.max_examples // 2)
@given(
    st.lists(st.lists(edits, min_size=1, max_size=3), min_size=1, max_size=5),
    st.integers(1, 5),
    st.sampled_from([1 << 18, 12, 4]),
)
def test_any_sequence_of_edits_equals_reading_everything_again(
    tmp_path, map_tasks, nights_edits, unit_rows, bucket_rows
):
    """Other chunks on another night, or none, are edits as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "BUCKET_ROWS", bucket_rows)
        patch.setattr(sorted_rows, "RANGE_ROWS", bucket_rows)
        nights = CutNights(tmp_path / uuid.uuid4().hex, unit_rows=unit_rows)
        nights.map_tasks = map_tasks
        nights.put("0.parquet", [("always", "there is a text", "en")])
        live = check_chunks(nights, nights.night(), {})
        for night in nights_edits:
            live = edit_and_check(nights, night, live)


def edit_and_check(nights, night, live):
    was_cut = nights.size is not None
    for edit in night:
        if edit[0] == "cut":
            nights.cut_at(edit[1])
        else:
            apply(nights, edit)
    ingested = nights.night(rebuild_reason(night))
    if was_cut != (nights.size is not None):
        assert ingested.rebuild_reason
    return check_chunks(nights, ingested, live) if nights.size else check(nights, ingested, live)


def test_equal_chunks_of_a_changed_document_are_copied_or_stay(tmp_path):
    nights = CutNights(tmp_path, unit_rows=100)
    words = [f"w{number}" for number in range(20)]
    nights.put("a.parquet", [("long", " ".join(words), "en"), ("other", "just this", "en")])
    before = check_chunks(nights, nights.night(), {})
    nights.put(
        "a.parquet", [("long", " ".join(["new", "start", *words]), "en"), ("other", "just this", "en")]
    )
    ingested = nights.night()
    check_chunks(nights, ingested, before)
    assert ingested.changes.unchanged == 1
    (unit,) = [unit for unit in ingested.units if unit.ordinal not in {address >> 32 for address in before}]
    assert unit.rows == 11
    copies = pq.read_table(nights.store.open(unit.copies.path)).to_pylist()
    texts_now = pq.read_table(nights.store.open(unit.path))["text"].to_pylist()
    assert {texts_now[copy["row"]]: before[copy["source"]][1] for copy in copies} == {
        f"{one} {two}": f"{one} {two}" for one, two in zip(words[::2], words[1::2], strict=True)
    }


def test_other_chunks_are_read_again_and_equal_ones_keep_their_address(tmp_path):
    nights = CutNights(tmp_path, size=3, unit_rows=100)
    others = [(f"{number}", "two more", "en") for number in range(8)]
    nights.put("a.parquet", [("short", "two words", "en"), ("long", "one two three four", "en")])
    nights.put("b.parquet", others)
    before = check_chunks(nights, nights.night(), {})
    nights.cut_at(2)
    ingested = nights.night()
    check_chunks(nights, ingested, before)
    assert (ingested.read_files, ingested.rebuild_reason) == (2, "")
    assert (ingested.changes.unchanged, ingested.changes.changed) == (9, 2)
    nights.cut_at(None)
    ingested = nights.night()
    assert ingested.rebuild_reason == "corpus.chunk was set or removed"
    assert (ingested.read_files, ingested.changes.deleted) == (2, 11)
    assert sum(unit.copies.rows for unit in ingested.units) == 9


def test_the_chunks_of_the_next_document_follow_those_of_a_deleted_one(tmp_path):
    nights = CutNights(tmp_path, unit_rows=100)
    nights.put("a.parquet", [("1", "first has three chunks in all", "en")])
    nights.put("b.parquet", [("1", "second has four chunks in all words", "en"), ("2", "stays", "en")])
    before = check_chunks(nights, nights.night(), {})
    nights.put("a.parquet", [("3", "another", "en")])
    ingested = nights.night()
    live = check_chunks(nights, ingested, before)
    assert ingested.read_files == 1
    assert sorted(chunk[0] for chunk in live.values()) == ["1#0", "1#1", "1#2", "1#3", "2#0", "3#0"]


def test_integer_ids_become_strings_and_parents_stay_integers(tmp_path):
    nights = CutNights(tmp_path)
    table = {"id": pa.array([7, -8]), "text": ["one two three", "four"], "lang": ["en", "de"]}
    pq.write_table(pa.table(table), nights.input / "a.parquet")
    ingested = nights.night()
    live = sorted(live_chunks(nights, ingested).values())
    assert [(chunk[0], chunk[3]) for chunk in live] == [("-8#0", -8), ("7#0", 7), ("7#1", 7)]
    pq.write_table(pa.table(table | {"text": ["one two three", "five"]}), nights.input / "b.parquet")
    again = nights.night()
    assert again.read_files == 1
    assert without_place(live_chunks(nights, again).values()) == without_place(live)


def test_equal_input_gives_equal_bytes_in_other_processes(tmp_path):
    stored = []
    for name, map_tasks in (("one", map_here), ("two", map_in_other_processes)):
        nights = CutNights(tmp_path / name)
        nights.map_tasks = map_tasks
        nights.put("a.parquet", [(str(number), f"text {number} and more", "en") for number in range(30)])
        nights.night()
        nights.put("b.parquet", [(str(number), f"text {number % 7} and less", "de") for number in range(40)])
        nights.night()
        out = tmp_path / name / "out"
        kept = [path for path in out.rglob("*") if path.is_file() and "work" not in path.parts]
        stored.append({path.relative_to(out).as_posix(): path.read_bytes() for path in kept})
    assert stored[0] == stored[1]


def test_a_corpus_that_is_to_be_cut_needs_its_cutter(tmp_path):
    corpus = CutNights(tmp_path).plain
    with pytest.raises(Defect, match="ChunkedCorpus"):
        row_cutter(corpus.model_copy(update={"chunk": CutNights(tmp_path / "other").corpus.chunk}))
    assert stored_name("parent") == "parent"


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2**38 - 1), st.integers(0, 2**24 - 1)), min_size=1, unique=True))
def test_line_numbers_are_unique_and_in_order(pairs):
    pairs = sorted(pairs)
    rows, chunks = (pa.array(column).to_numpy() for column in zip(*pairs, strict=True))
    lines = chunk_lines(rows, chunks)
    assert (lines[1:] > lines[:-1]).all()
    assert rows_of_lines(lines).tolist() == rows.tolist()
    assert are_first(lines).tolist() == (chunks == 0).tolist()
    dense, again = dense_numbers(lines, lines[::-1])
    assert dense.tolist() == again[::-1].tolist() == list(range(len(pairs)))
    assert rows_of_lines(rows).tolist() == rows.tolist()
    assert are_first(rows).all()
