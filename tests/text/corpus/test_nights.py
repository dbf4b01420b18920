"""A corpus that changes from night to night, against a plain-Python oracle that knows no history."""

import os
import shutil
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.settings import CorpusSettings
from pipeline.store.base import Store
from pipeline.store.changes import ChangedRows
from pipeline.store.dead import Dead
from pipeline.store.store import open_store
from pipeline.store.units import Changes, Corpus
from pipeline.text.corpus import ingest as module
from pipeline.text.corpus import keys
from pipeline.text.corpus.ingest import ParentCorpus, ingest
from pipeline.text.corpus.normalize import text_keys

Row = tuple[str | None, str | None, str | None]
SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string()), ("lang", pa.string())])


class Nights:
    """A corpus folder and the nights over it."""

    def __init__(self, folder: Path, keep: tuple[str, ...] = ("lang",), unit_rows: int = 4) -> None:
        self.input, self.store = folder / "in", open_store(folder / "out")
        self.input.mkdir(parents=True)
        self.corpus = CorpusSettings(uri=str(self.input), keep=keep, max_quarantined=1)
        self.unit_rows, self.clock, self.last, self.next_ordinal = unit_rows, 0, None, 0
        self.files: dict[str, list[Row]] = {}

    def put(self, name: str, rows: list[Row]) -> None:
        """Write a file, unless it has these rows already.

        Its time is set explicitly, because nights follow each other faster than the clock ticks.
        """
        if self.files.get(name) == rows:
            return
        self.files[name] = rows
        self.clock += 1
        pq.write_table(
            pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA),
            self.input / name,
        )
        os.utime(self.input / name, ns=(self.clock, self.clock))

    def rename(self, name: str, other: str) -> None:
        shutil.move(self.input / name, self.input / other)
        self.files[other] = self.files.pop(name)

    def drop(self, name: str) -> None:
        (self.input / name).unlink()
        del self.files[name]

    def night(self, rebuild: str = "") -> Corpus:
        made = ingest(
            self.corpus, self.unit_rows, self.store, ParentCorpus(self.last, self.next_ordinal, rebuild)
        )
        self.last, self.next_ordinal = made, max(self.next_ordinal, made.next_ordinal)
        return made

    def expected(self) -> dict[str, tuple[str, str | None, str, int]]:
        """id -> (text, lang, file, row) of the live rows: the first of each id by file name and row."""
        live: dict[str, tuple[str, str | None, str, int]] = {}
        for name in sorted(self.files):
            for number, (row_id, text, lang) in enumerate(self.files[name]):
                if row_id is not None and text is not None and text.strip():
                    live.setdefault(row_id, (text.strip(), lang, name, number))
        return live


def addresses(store: Store, made: Corpus) -> dict[int, tuple[str, str, str | None]]:
    """address -> (id, text, lang) of the live rows, read from the units."""
    dead = Dead.load(store, made.dead)
    found = {}
    for unit in made.units:
        rows = pq.read_table(store.open(unit.path, unit.sha256)).to_pylist()
        gone = set(dead.rows_of(unit.ordinal).tolist())
        assert len(gone) == unit.dead < unit.rows == len(rows)
        found |= {
            unit.ordinal << 32 | number: (row["id"], row["text"], row.get("lang"))
            for number, row in enumerate(rows)
            if number not in gone
        }
    return found


def check(
    nights: Nights, made: Corpus, before: dict[int, tuple[str, str, str | None]]
) -> dict[int, tuple[str, str, str | None]]:
    """Compare live rows, kept addresses and all tables with the oracle; returns the live rows by address."""
    live, expected = addresses(nights.store, made), nights.expected()
    assert sorted(live.values(), key=str) == sorted(
        ((row_id, text, lang) for row_id, (text, lang, _, _) in expected.items()), key=str
    )
    assert made.rows == len(live) == made.counts["good"]
    assert (
        made.counts["rows"]
        == sum(map(len, nights.files.values()))
        == made.counts["good"] + made.counts["quarantined"]
    )

    lines = [
        line
        for bucket in made.keys
        for line in pq.read_table(nights.store.open(bucket.path, bucket.sha256)).to_pylist()
    ]
    where = {
        line["id"]: (line["file"], line["row"], line["address"])
        for line in lines
        if line["address"] is not None
    }
    assert {row_id: place[:2] for row_id, place in where.items()} == {
        row_id: (name, number) for row_id, (_, _, name, number) in expected.items()
    }
    assert all(live[address][0] == row_id for row_id, (_, _, address) in where.items())

    texts = {
        line["address"]: line["text_key"]
        for table in made.texts
        for line in pq.read_table(nights.store.open(table.path)).to_pylist()
    }
    assert len(texts) == sum(unit.rows for unit in made.units)
    assert {address: texts[address] for address in live} == {
        address: text_keys(pa.array([row[1]]))[0].as_py() for address, row in live.items()
    }

    bad = pq.read_table(nights.store.open(made.quarantine.path)).to_pylist() if made.quarantine else []
    all_rows = {(name, number) for name, rows in nights.files.items() for number in range(len(rows))}
    assert sorted((row["file"], row["row"]) for row in bad) == sorted(
        all_rows - {(name, number) for _, _, name, number in expected.values()}
    )
    if not made.anew:
        then, now = ({row: address for address, row in rows.items()} for rows in (before, live))
        assert all(now[row] == address for row, address in then.items() if row in now)
        ids_then, ids_now = {row[0] for row in before.values()}, {row[0] for row in live.values()}
        same = len(set(before.values()) & set(live.values()))
        both = len(ids_then & ids_now)
        assert made.changes == Changes(
            new=len(ids_now - ids_then), changed=both - same, deleted=len(ids_then - ids_now), unchanged=same
        )
        check_examples(nights.store, made, before, live)
    return live


def check_examples(
    store: Store,
    made: Corpus,
    before: dict[int, tuple[str, str, str | None]],
    live: dict[int, tuple[str, str, str | None]],
) -> None:
    """At most five rows stand for each kind of change, and each of them is of that kind."""
    ids_then, ids_now = ({row[0] for row in rows.values()} for rows in (before, live))
    drawn = ChangedRows.load(store, ChangedRows.path(made.id))
    assert drawn is not None
    assert len({(row.before, row.now) for row in drawn.rows}) == len(drawn.rows)
    found = {"new": 0, "changed": 0, "deleted": 0}
    for row in drawn.rows:
        if row.before is None:
            assert live[row.now][0] not in ids_then
            found["new"] += 1
        elif row.now is None:
            assert before[row.before][0] not in ids_now
            found["deleted"] += 1
        else:
            assert before[row.before][0] == live[row.now][0]
            assert before[row.before] != live[row.now]
            found["changed"] += 1
    assert found == {kind: min(5, getattr(made.changes, kind)) for kind in found}


ids = st.sampled_from(["a", "b", "c", "d", "e", "f", "é", None])
texts = st.sampled_from(["one", " one", "two", "three", "four", "", None])
rows = st.lists(st.tuples(ids, texts, st.sampled_from(["en", "de", None])), max_size=8)
names = st.sampled_from(["1.parquet", "2.parquet", "3.parquet"])
edits = st.one_of(
    st.tuples(st.just("put"), names, rows),
    st.tuples(st.just("rename"), names, names),
    st.tuples(st.just("drop"), names, st.just(None)),
    st.tuples(st.just("append"), names, rows),
    st.tuples(st.just("rebuild"), st.just(""), st.just(None)),
)


@given(st.lists(st.lists(edits, min_size=1, max_size=3), min_size=1, max_size=5), st.integers(1, 5))
def test_any_sequence_of_edits_equals_reading_everything_again(tmp_path, nights_edits, unit_rows):
    nights = Nights(tmp_path / uuid.uuid4().hex, unit_rows=unit_rows)
    nights.put("0.parquet", [("always", "there", "en")])
    live: dict[int, tuple[str, str, str | None]] = check(nights, nights.night(), {})
    for night in nights_edits:
        rebuild = ""
        for kind, name, more in night:
            if kind == "put":
                nights.put(name, more)
            elif kind == "append":
                nights.put(name, [*nights.files.get(name, []), *more])
            elif kind == "rename" and name in nights.files and more not in nights.files:
                nights.rename(name, more)
            elif kind == "drop" and name in nights.files:
                nights.drop(name)
            elif kind == "rebuild":
                rebuild = "the test says so"
        live = check(nights, nights.night(rebuild), live)


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
    made = nights.night()
    assert made.read_files == 1
    assert made.changes == Changes(new=1, unchanged=3)
    assert sorted(row[0] for row in addresses(nights.store, made).values()) == ["1", "2", "3", "4"]


def test_duplicate_becomes_live_when_the_winner_is_deleted(tmp_path):
    nights = Nights(tmp_path)
    nights.put("a.parquet", [("1", "wins", "en"), ("2", "stays", "en")])
    nights.put("b.parquet", [("1", "loses", "en"), ("3", "three", "en")])
    before = check(nights, nights.night(), {})
    nights.put("a.parquet", [("2", "stays", "en")])
    made = nights.night()
    check(nights, made, before)
    assert made.changes == Changes(changed=1, unchanged=2)
    assert made.read_files == 1


def test_text_known_under_another_id_has_a_copy_source(tmp_path):
    nights = Nights(tmp_path)
    nights.put("a.parquet", [("1", "one", "en"), ("2", "two", "en")])
    before = addresses(nights.store, nights.night())
    nights.put("b.parquet", [("3", "new", "en"), ("4", "two", "en"), ("5", "one", "de")])
    unit = nights.night().units[-1]
    assert unit.copies is not None
    found = pq.read_table(nights.store.open(unit.copies.path, unit.copies.sha256)).to_pylist()
    assert {line["row"]: before[line["source"]][1] for line in found} == {1: "two", 2: "one"}


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
    made = nights.night()
    assert made.units[-1].copies is not None
    assert pq.read_table(nights.store.open(made.units[-1].copies.path)).to_pylist() == [
        {"row": 0, "source": 0}
    ]
    assert made.changes == Changes(changed=1, unchanged=3)


def test_many_dead_rows_or_many_small_units_rebuild_the_corpus(tmp_path, monkeypatch):
    nights = Nights(tmp_path, unit_rows=10)
    nights.put("a.parquet", [(str(number), f"text {number}", "en") for number in range(10)])
    before = check(nights, nights.night(), {})
    nights.put("a.parquet", [(str(number), f"text {number}", "en") for number in range(4, 10)])
    made = nights.night()
    before = check(nights, made, before)
    assert not made.anew
    nights.put("b.parquet", [("10", "ten", "en")])
    made = nights.night()
    assert "40% of the units' rows were dead" in made.anew
    assert [unit.dead for unit in made.units] == [0]
    assert made.changes == Changes(new=1, unchanged=6)
    assert made.units[0].ordinal == nights.next_ordinal - 1 > max(address >> 32 for address in before)
    monkeypatch.setattr(module, "_SMALL_UNITS", 3)
    for number in range(11, 17):
        nights.put(f"{number}.parquet", [(str(number), f"text {number}", "en")])
        before, made = addresses(nights.store, made), nights.night()
        check(nights, made, before)
    assert len(made.units) < 5


def test_other_kept_columns_rebuild_the_corpus(tmp_path):
    nights = Nights(tmp_path)
    more = [(str(number), f"text {number}", "en") for number in range(3, 9)]
    nights.put("a.parquet", [("1", "one", "en"), ("2", "two", "de"), *more])
    nights.night()
    nights.put("a.parquet", [("1", "one", "en"), ("2", "two", "fr"), *more])
    made = nights.night()
    assert made.changes == Changes(changed=1, unchanged=7)
    assert made.units[-1].copies is not None
    nights.corpus = nights.corpus.model_copy(update={"keep": ()})
    made = nights.night()
    assert "columns, or their types, have changed" in made.anew
    assert sum(unit.rows for unit in made.units) == 8


def test_equal_nights_write_equal_bytes_after_a_failed_run(tmp_path):
    outcomes = []
    for name in ("one", "two"):
        nights = Nights(tmp_path / name)
        nights.put("a.parquet", [(str(number), f"text {number}", "en") for number in range(30)])
        nights.night()
        nights.put("b.parquet", [(str(number), f"text {number % 7}", "en") for number in range(20, 40)])
        made = nights.night()
        if name == "two":  # the record and a table are gone, as if the run had been stopped before its end
            nights.store.delete(f"keys/{made.id}/corpus.json")
            nights.store.delete(made.texts[0].path)
            nights.last = Corpus.load(nights.store, f"keys/{made.parent}/corpus.json")
            nights.next_ordinal = nights.last.next_ordinal
            assert nights.night() == made
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
    made = nights.night()
    assert "lacks" in made.anew
    assert len(addresses(nights.store, made)) == 3


def test_result_does_not_depend_on_the_number_of_buckets(tmp_path, monkeypatch):
    seen = []
    for number, bucket_rows in enumerate((1 << 18, 60, 8)):
        nights = Nights(tmp_path / str(number), unit_rows=16)
        nights.put("a.parquet", [(f"id-{row}", f"text {row % 50}", "en") for row in range(100)])
        before = check(nights, nights.night(), {})
        monkeypatch.setattr(
            keys, "BUCKET_ROWS", bucket_rows
        )  # the second night's buckets are finer than the first's
        nights.put("b.parquet", [(f"id-{row}", f"text {row % 70}", "en") for row in range(90, 200)])
        nights.put("a.parquet", [(f"id-{row}", f"text {row % 50}", "en") for row in range(5, 100)])
        made = nights.night()
        seen.append(check(nights, made, before))
    assert seen[0] == seen[1] == seen[2]
