"""A root of six nights, read by pyarrow alone, and a target in memory that can be stopped at any call."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import load_settings
from pipeline.flows.export.export import Exported, export
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from pipeline.targets.target import Position, Target
from tests.flows.conftest import WORDS, job_arguments, sentences
from tests.models.folder.wordfiles import write_words

Row = dict[str, Any]


class Rows(dict[str, Row]):
    """Rows by id, which hypothesis does not print."""

    def __repr__(self) -> str:
        return f"{len(self)} rows"


UNKNOWN = "qqzzq xxyyx"  # has no vector
ODD_IDS = ("q\"\\\\'; DROP", "\u6587 \u00e9 %", "a/b?c#d&e=f")
LAST = 6  # number of the last release


def row(text: str, number: int) -> Row:
    """A row of the corpus with columns of many types, some of them null."""
    return {
        "text": text,
        "lang": ["de", "en", None, 'O\'Neill "x" \\ \u00e9\u6587'][number % 4],
        "price": None if number % 5 == 0 else number / 8,
        "count": number - 3,
        "in_stock": number % 2 == 0,
        "tags": None if number % 7 == 0 else ["a", f"t{number}"],
        "seen": datetime(2026, 1, 1 + number % 28, 3, 4, 5, 678_901, tzinfo=UTC),
    }


KEPT = [name for name in row("", 0) if name != "text"]


def corpora() -> list[dict[str, Row]]:
    """Return the corpora of all nights."""
    texts = sentences(400)
    first = {f"id-{number:03d}'": row(texts[number], number) for number in range(120)}
    first["no vector"] = row(UNKNOWN, 1)
    first |= {name: row(texts[120 + number], number) for number, name in enumerate(ODD_IDS)}
    second = {name: each for number, (name, each) in enumerate(first.items()) if number % 10 != 3}
    for number in (5, 17, 60):
        second[f"id-{number:03d}'"] = row(texts[200 + number], number)
    for number in (6, 18):
        second[f"id-{number:03d}'"] = first[f"id-{number:03d}'"] | {"lang": "fr"}
    del second[ODD_IDS[0]], second[ODD_IDS[1]]
    second |= {f"new-{number}": row(texts[130 + number], number) for number in range(7)}
    third = second | {"no vector": row(texts[150], 1), "new-1": row(UNKNOWN, 1)}
    fourth = {name: row(texts[250 + number], number) for number, name in enumerate(sorted(third))}
    fifth = dict(first)
    sixth = fifth | {"no vector": row(texts[151], 2), "last": row(texts[152], 3)}
    return [first, second, third, fourth, fifth, sixth]


def write(file: Path, rows: dict[str, Row]) -> None:
    """Write a corpus."""
    table = pa.Table.from_pylist([{"id": name, **each} for name, each in rows.items()])
    pq.write_table(table, file)


def publish_all(folder: Path, child: LocalWorkers) -> Path:
    """Publish a release for each corpus. Returns the root."""
    (folder / "corpus").mkdir()
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), 24)).astype(np.float32)
    write_words(folder / "words.txt.gz", WORDS, vectors, "word2vec")
    arguments = [
        *job_arguments(folder, folder / "words.txt.gz"),
        f"corpus.keep=[{', '.join(KEPT)}]",
        "encode.unit_rows=25",
        "whiten.mode=off",
        "index.kind=flat",
        "gates.recall_at_10=",
        "corpus.max_quarantined=0.5",
    ]
    for rows in corpora():
        write(folder / "corpus" / "rows.parquet", rows)
        with connect(ClusterSettings(), Stages(), local=child):
            nightly(load_settings(Job, None, tuple(arguments)), Stages())
    return folder / "releases"


def released_rows(root: Path, number: int) -> Rows:
    """Read the rows of a release from its units: the vector's bytes, and the kept columns."""
    manifest = Releases(open_store(root)).get(number)
    dead = set(pq.read_table(root / manifest.dead.path)["address"].to_pylist()) if manifest.dead else set()
    found = Rows()
    for unit in manifest.units:
        table = pq.read_table(root / unit.path)
        positions = range(unit.rows + len(unit.dropped))
        positions = [position for position in positions if position not in unit.dropped]
        for position, each in zip(positions, table.drop_columns(["text_key"]).to_pylist(), strict=True):
            if unit.ordinal << 32 | position not in dead:
                assert each["id"] not in found
                found[each.pop("id")] = each
    assert len(found) == manifest.rows
    return found


class DictTarget(Target):
    """Rows in memory. What is stored outlives the object, as it would in a database."""

    def __init__(self, stored: dict[str, Any] | None = None) -> None:
        super().__init__("memory", "rows")
        self.stored = {} if stored is None else stored

    def position(self) -> Position | None:
        text = self.stored.get("position")
        return Position.model_validate_json(text) if text else None

    def create(self, schema: pa.Schema, position: Position) -> None:
        self.stored["rows"] = {}
        self.store_position(position)

    def upsert(self, rows: pa.Table) -> None:
        for each in rows.to_pylist():
            self.stored["rows"][each.pop("id")] = each

    def delete(self, ids: pa.Array) -> None:
        for each in ids.to_pylist():
            self.stored["rows"].pop(each, None)

    def ids(self) -> Iterator[pa.Array]:
        names = list(self.stored["rows"])
        return (pa.array(names[start : start + 7]) for start in range(0, len(names), 7))

    def store_position(self, position: Position) -> None:
        self.stored["position"] = position.model_dump_json()

    def count(self) -> int | None:
        return len(self.stored["rows"])


class Killed(BaseException):
    """Ends an export as SIGKILL does: nothing handles it."""


class StoppingTarget(Target):
    """Another target whose call number `calls` is not made, half made, or made without an answer."""

    def __init__(self, target: Target, calls: int, when: str) -> None:
        super().__init__(target.uri, target.name)
        self.target, self.calls, self.when = target, calls, when
        self.is_atomic = target.is_atomic  # type: ignore[misc]

    def _call(self, call: Callable[[], None], half: Callable[[], None] = lambda: None) -> None:
        self.calls -= 1
        if self.calls == 0:
            {"before": lambda: None, "half": half, "after": call}[self.when]()
            raise Killed
        call()

    def position(self) -> Position | None:
        return self.target.position()

    def create(self, schema: pa.Schema, position: Position) -> None:
        self._call(lambda: self.target.create(schema, position))

    def upsert(self, rows: pa.Table) -> None:
        half = rows.slice(0, len(rows) // 2)
        self._call(lambda: self.target.upsert(rows), lambda: self.target.upsert(half))

    def delete(self, ids: pa.Array) -> None:
        half = ids.slice(0, len(ids) // 2)
        self._call(lambda: self.target.delete(ids), lambda: self.target.delete(half))

    def ids(self) -> Iterator[pa.Array]:
        return self.target.ids()

    def store_position(self, position: Position) -> None:
        self._call(lambda: self.target.store_position(position))

    def count(self) -> int | None:
        return self.target.count()


def run_export(root: Path, number: int | None, target: Target, **options: bool) -> Exported:
    """Export a release of a root."""
    return export(Releases(open_store(root)), number, target, Stages(), **options)
