"""A corpus that is edited and read night after night, checked against reading it from scratch."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from pipeline.settings import CorpusSettings
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.records.dead import Dead
from pipeline.store.records.units import Changes, Corpus
from pipeline.store.releases.change_examples import ChangedRows
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import PreviousCorpus
from pipeline.text.normalize import text_keys
from pipeline.text.task_map import TaskMap, TaskRunner, map_here
from tests.text.ingest.tables import key_lines, text_lines

Row = tuple[str | None, str | None, str | None]


SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string()), ("lang", pa.string())])


class Nights:
    """A folder of input files that is edited, and the store of a corpus that is read from it every night."""

    def __init__(self, folder: Path, keep: tuple[str, ...] = ("lang",), unit_rows: int = 4) -> None:
        self.input, self.store = folder / "in", open_store(folder / "out")
        self.input.mkdir(parents=True)
        self.corpus = CorpusSettings(uri=str(self.input), keep=keep, max_quarantined=1)
        self.unit_rows, self.clock, self.last, self.next_ordinal = unit_rows, 0, None, 0
        self.files: dict[str, list[Row]] = {}
        self.map_tasks: TaskMap = map_here

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
        ingested = ingest(
            self.corpus,
            self.unit_rows,
            self.store,
            PreviousCorpus(self.last, self.next_ordinal, rebuild),
            TaskRunner(self.map_tasks),
        )
        self.last, self.next_ordinal = ingested, max(self.next_ordinal, ingested.next_ordinal)
        return ingested

    def expected(self) -> dict[str, tuple[str, str | None, str, int]]:
        """id -> (text, lang, file, row) of the live rows: the first of each id by file name and row."""
        live: dict[str, tuple[str, str | None, str, int]] = {}
        for name in sorted(self.files):
            for number, (row_id, text, lang) in enumerate(self.files[name]):
                if row_id is not None and text is not None and text.strip():
                    live.setdefault(row_id, (text.strip(), lang, name, number))
        return live


def addresses(store: Store, ingested: Corpus) -> dict[int, tuple[str, str, str | None]]:
    """address -> (id, text, lang) of the live rows, read from the units."""
    dead = Dead.load(store, ingested.dead)
    live = {}
    for unit in ingested.units:
        rows = pq.read_table(store.open(unit.path, unit.sha256)).to_pylist()
        dead_rows = set(dead.rows_of(unit.ordinal).tolist())
        assert len(dead_rows) == unit.dead < unit.rows == len(rows)
        live |= {
            unit.ordinal << 32 | number: (row["id"], row["text"], row.get("lang"))
            for number, row in enumerate(rows)
            if number not in dead_rows
        }
    return live


def check(
    nights: Nights, ingested: Corpus, before: dict[int, tuple[str, str, str | None]]
) -> dict[int, tuple[str, str, str | None]]:
    """Compare live rows, their addresses and all tables with the oracle; returns the live rows by address."""
    live, expected = addresses(nights.store, ingested), nights.expected()
    assert sorted(live.values(), key=str) == sorted(
        ((row_id, text, lang) for row_id, (text, lang, _, _) in expected.items()), key=str
    )
    assert ingested.rows == len(live) == ingested.counts["good"]
    assert (
        ingested.counts["rows"]
        == sum(map(len, nights.files.values()))
        == ingested.counts["good"] + ingested.counts["quarantined"]
    )

    lines = [line for bucket in ingested.keys for line in key_lines(nights.store, bucket)]
    positions = {
        line["id"]: (line["file"], line["row"], line["address"])
        for line in lines
        if line["address"] is not None
    }
    assert {row_id: position[:2] for row_id, position in positions.items()} == {
        row_id: (name, number) for row_id, (_, _, name, number) in expected.items()
    }
    assert all(live[address][0] == row_id for row_id, (_, _, address) in positions.items())

    texts = {line["address"]: line["text_key"] for line in text_lines(nights.store, ingested)}
    assert len(texts) == sum(unit.rows for unit in ingested.units)
    assert {address: texts[address] for address in live} == {
        address: text_keys(pa.array([row[1]]))[0].as_py() for address, row in live.items()
    }

    quarantined = (
        pq.read_table(nights.store.open(ingested.quarantine.path)).to_pylist() if ingested.quarantine else []
    )
    all_rows = {(name, number) for name, rows in nights.files.items() for number in range(len(rows))}
    assert sorted((row["file"], row["row"]) for row in quarantined) == sorted(
        all_rows - {(name, number) for _, _, name, number in expected.values()}
    )
    if not ingested.rebuild_reason:
        addresses_before, addresses_now = (
            {row: address for address, row in rows.items()} for rows in (before, live)
        )
        assert all(
            addresses_now[row] == address for row, address in addresses_before.items() if row in addresses_now
        )
        ids_then, ids_now = {row[0] for row in before.values()}, {row[0] for row in live.values()}
        unchanged = len(set(before.values()) & set(live.values()))
        assert ingested.changes == Changes(
            new=len(ids_now - ids_then),
            changed=len(ids_then & ids_now) - unchanged,
            deleted=len(ids_then - ids_now),
            unchanged=unchanged,
        )
        check_examples(nights.store, ingested, before, live)
    return live


def check_examples(
    store: Store,
    ingested: Corpus,
    before: dict[int, tuple[str, str, str | None]],
    live: dict[int, tuple[str, str, str | None]],
) -> None:
    """Check that each kind of change has at most five example rows, and that each row is of its kind."""
    ids_then, ids_now = ({row[0] for row in rows.values()} for rows in (before, live))
    drawn = ChangedRows.load(store, ChangedRows.path(ingested.id))
    assert drawn is not None
    assert len({(row.before, row.now) for row in drawn.rows}) == len(drawn.rows)
    counts = {"new": 0, "changed": 0, "deleted": 0}
    for row in drawn.rows:
        if row.before is None:
            assert live[row.now][0] not in ids_then
            counts["new"] += 1
        elif row.now is None:
            assert before[row.before][0] not in ids_now
            counts["deleted"] += 1
        else:
            assert before[row.before][0] == live[row.now][0]
            assert before[row.before] != live[row.now]
            counts["changed"] += 1
    assert counts == {kind: min(5, getattr(ingested.changes, kind)) for kind in counts}


ids = st.sampled_from(["a", "b", "c", "d", "e", "f", "é", None])
texts = st.sampled_from(["one", " one", "two", "three", "four", "", None])
rows = st.lists(st.tuples(ids, texts, st.sampled_from(["en", "de", None])), max_size=8)
names = st.sampled_from(["1.parquet", "2.parquet", "3.parquet"])


def edits_of(rows: st.SearchStrategy, *others: st.SearchStrategy) -> st.SearchStrategy:
    """Return a strategy of edits (kind, name, argument) of files with these rows, and of `others`."""
    return st.one_of(
        st.tuples(st.just("put"), names, rows),
        st.tuples(st.just("rename"), names, names),
        st.tuples(st.just("drop"), names, st.just(None)),
        st.tuples(st.just("append"), names, rows),
        st.tuples(st.just("rebuild"), st.just(""), st.just(None)),
        *others,
    )


def apply(nights: Nights, edit: tuple) -> None:
    """Apply an edit of files; other kinds of edits are left to the caller."""
    kind, name, argument = edit
    if kind == "put":
        nights.put(name, argument)
    elif kind == "append":
        nights.put(name, [*nights.files.get(name, []), *argument])
    elif kind == "rename" and name in nights.files and argument not in nights.files:
        nights.rename(name, argument)
    elif kind == "drop" and name in nights.files:
        nights.drop(name)


def rebuild_reason(edits: list[tuple]) -> str:
    """Return the reason for a rebuild if one of the edits is one."""
    return "the test says so" if any(kind == "rebuild" for kind, *_ in edits) else ""
