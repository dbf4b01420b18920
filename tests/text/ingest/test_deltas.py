"""Key and text tables of bases and deltas, over many nights, against an oracle that knows no history."""

import json
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import Corpus, TableBucket
from pipeline.text.ingest import sorted_rows
from pipeline.text.ingest.corpus_record import record_path, tables_folder
from pipeline.text.key_tables import buckets, keys
from pipeline.text.key_tables.buckets import read_key_bucket, read_text_bucket
from pipeline.text.task_map import TaskMap, map_here
from tests.text.ingest.editing import Nights, Row, check
from tests.text.ingest.tables import key_lines
from tests.text.ingest.task_maps import map_in_other_processes


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which some hundred rows fill several buckets with deltas."""
    monkeypatch.setattr(keys, "BUCKET_ROWS", 60)
    monkeypatch.setattr(buckets, "SMALL_ROWS", 10)
    monkeypatch.setattr(sorted_rows, "RANGE_ROWS", 50)


def edit(nights: Nights, draw: random.Random) -> None:
    """Change, delete and append a few rows, and drop a file now and then; some ids are in several files."""
    for name in draw.sample(sorted(nights.files), 2):
        rows = list(nights.files[name])
        row_id, _, lang = rows[draw.randrange(len(rows))]
        rows[rows.index((row_id, _, lang))] = (row_id, f"text {draw.randrange(400)}", lang)
        kind = draw.randrange(4)
        if kind == 0:
            rows.pop()
        elif kind == 1:
            rows.append((f"id-{draw.randrange(260)}", f"text {draw.randrange(400)}", "de"))
        nights.put(name, rows)
    if draw.random() < 0.2:
        nights.drop(draw.choice(sorted(nights.files)[1:]))
    if draw.random() < 0.3:
        nights.put(f"new-{nights.clock}.parquet", some_rows(draw, 12))


def some_rows(draw: random.Random, count: int) -> list[Row]:
    return [(f"id-{draw.randrange(260)}", f"text {draw.randrange(400)}", "en") for _ in range(count)]


def observe(nights: Nights, before: Corpus, ingested: Corpus) -> Counter[str]:
    """Count what happened to the buckets of both tables."""
    seen: Counter[str] = Counter()
    for name in ("keys", "texts"):
        buckets = getattr(before, name), getattr(ingested, name)
        if len(buckets[0]) != len(buckets[1]):
            seen[f"{name} divided"] += 1
            continue
        for old, new in zip(*buckets, strict=True):
            seen[f"{name} compacted"] += bool(old.deltas and new.base != old.base)
            seen[f"{name} unchanged"] += old == new
            seen[f"{name} extended"] += len(new.deltas) > len(old.deltas)
            seen[f"{name} extended twice"] += len(new.deltas) > 1
    for bucket in ingested.keys:
        for file in bucket.deltas:
            table = pq.read_table(nights.store.open(file.path, file.sha256))
            seen["deletion marks"] += table["text_key"].null_count
    return seen


def revived(before: dict[str, tuple[str, int]], now: dict[str, tuple[str, int]], read: set[str]) -> int:
    """Count the ids whose live row was a duplicate before and is in a file that was not read tonight."""
    moved = [position for row_id, position in now.items() if row_id in before and before[row_id] != position]
    return sum(file not in read for file, _ in moved)


@pytest.mark.parametrize(
    "map_tasks", [map_here, pytest.param(map_in_other_processes, marks=pytest.mark.slow)]
)
def test_tables_of_many_nights_equal_those_of_reading_everything(tmp_path: Path, map_tasks: TaskMap):
    draw, nights, seen = random.Random(7), Nights(tmp_path, unit_rows=64), Counter[str]()
    nights.map_tasks = map_tasks
    for number in range(6):
        nights.put(f"{number}.parquet", some_rows(draw, 40))
    ingested = nights.night()
    live = check(nights, ingested, {})
    for _ in range(14):
        files, positions = dict(nights.files), {row_id: row[2:] for row_id, row in nights.expected().items()}
        edit(nights, draw)
        read = {name for name, rows in nights.files.items() if files.get(name) != rows}
        before, ingested = ingested, nights.night()
        live = check(nights, ingested, live)
        seen += observe(nights, before, ingested)
        seen["rebuilt"] += bool(ingested.rebuild_reason)
        positions_now = {row_id: row[2:] for row_id, row in nights.expected().items()}
        seen["revived"] += 0 if ingested.rebuild_reason else revived(positions, positions_now, read)
    kinds = ("compacted", "unchanged", "extended", "extended twice")
    expected = {f"{table} {kind}" for table in ("keys", "texts") for kind in kinds}
    assert {name for name, count in seen.items() if count} >= expected | {"deletion marks", "revived"}, seen


def test_a_night_writes_the_changed_lines_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keys, "BUCKET_ROWS", 6_000)
    nights = Nights(tmp_path, keep=(), unit_rows=4_096)
    files = {
        f"{file}.parquet": [(f"document-{file}-{row}", f"{file} text {row}", None) for row in range(4_000)]
        for file in range(5)
    }
    for name, rows in files.items():
        nights.put(name, list(rows))
    first = nights.night()
    for name, rows in files.items():
        changed = [(row_id, f"{text} changed", lang) for row_id, text, lang in rows[:20]]
        nights.put(name, [*changed, *rows[20:-20]])
    second = nights.night()
    assert second.read_files == 5
    lines, sizes = Counter[str](), Counter[str]()
    for ingested in (first, second):
        for file in (file for bucket in (*ingested.keys, *ingested.texts) for file in bucket.references()):
            if file.path.startswith(tables_folder(ingested.id)):
                lines[ingested.id] += file.rows
                sizes[ingested.id] += file.bytes
    assert lines == {first.id: 40_000, second.id: 5 * (20 + 20) + 5 * 20}
    assert sizes[second.id] < 0.04 * sizes[first.id]
    third = nights.night()
    assert (third.keys, third.texts) == (second.keys, second.texts)


def test_a_bucket_is_compacted_if_its_deltas_are_large_or_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(buckets, "_MAX_DELTAS", 3)

    def bucket(*deltas: int) -> TableBucket:
        files = tuple(FileRef(path=str(rows), sha256="", rows=rows) for rows in deltas)
        return TableBucket(path="base", sha256="", rows=1_000, deltas=files)

    is_compacted = buckets.is_compacted
    assert is_compacted(None, 0)
    assert is_compacted(bucket().model_copy(update={"rows": 9}), 0)
    assert [is_compacted(bucket(), lines) for lines in (0, 1, 100, 101)] == [False, False, False, True]
    assert [is_compacted(bucket(60, 30), lines) for lines in (0, 10, 11)] == [False, False, True]
    assert [is_compacted(bucket(1, 1, 1), lines) for lines in (0, 1)] == [False, True]


@pytest.mark.parametrize("columns", [None, ("id", "address")])
def test_a_divided_bucket_with_deltas_has_the_lines_of_its_parts(tmp_path: Path, columns: tuple[str, ...]):
    draw, nights = random.Random(1), Nights(tmp_path, unit_rows=64)
    nights.put("a.parquet", [(f"id-{row}", f"text {row}", "en") for row in range(200)])
    nights.night()
    rows = [(f"id-{row}", f"text {row}", "en") for row in range(200)]
    del rows[-3:]
    rows[draw.randrange(190)] = ("id-x", "text x", "en")
    nights.put("a.parquet", rows)
    ingested = nights.night()
    assert any(bucket.deltas for bucket in ingested.keys)
    assert any(bucket.deltas for bucket in ingested.texts)
    count = len(ingested.keys)
    for parts in (count, 4 * count):
        found = [read_key_bucket(nights.store, ingested.keys, part, parts, columns) for part in range(parts)]
        tables = [table for table in found if table is not None]
        schema = keys.keys_schema(pa.string())
        assert {table.schema for table in tables} == {pa.schema(map(schema.field, columns or schema.names))}
        lines = [line for table in tables for line in table.to_pylist()]
        expected = [line for bucket in ingested.keys for line in key_lines(nights.store, bucket)]
        assert sorted(lines, key=str) == sorted(
            ({name: line[name] for name in columns or line} for line in expected), key=str
        )
    units = [unit.ordinal for unit in ingested.units]
    parts = 4 * len(ingested.texts)
    texts = [read_text_bucket(nights.store, ingested.texts, part, parts, units[1:]) for part in range(parts)]
    addresses = [address for table in texts if table is not None for address in table["address"].to_pylist()]
    assert len(addresses) == sum(unit.rows for unit in ingested.units[1:])
    assert not any(address >> 32 == units[0] for address in addresses)


def test_the_record_of_a_table_without_deltas_has_the_fields_of_earlier_versions(tmp_path: Path):
    nights = Nights(tmp_path)
    nights.put("a.parquet", [(f"id-{row}", f"text {row}", "en") for row in range(50)])
    first = nights.night()
    stored = json.loads(nights.store.read(record_path(first.id)))
    assert all(set(bucket) == {"path", "sha256", "rows", "bytes"} for bucket in stored["keys"])
    nights.put("b.parquet", [("id-new", "text new", "en")])
    second = nights.night()
    assert [bucket.base for bucket in second.keys] == [bucket.base for bucket in first.keys]
    assert Corpus.load(nights.store, record_path(second.id)) == second
    deltas = {file.path for bucket in second.keys for file in bucket.deltas}
    assert deltas
    assert deltas <= {file.path for file in second.references()}


def test_a_changed_delta_is_refused_and_a_missing_one_rebuilds_the_corpus(tmp_path: Path):
    nights = Nights(tmp_path)
    nights.put("a.parquet", [(f"id-{row}", f"text {row}", "en") for row in range(50)])
    nights.night()
    nights.put("b.parquet", [("id-new", "text new", "en")])
    (delta,) = (file for bucket in nights.night().keys for file in bucket.deltas)
    content = nights.store.read(delta.path)
    nights.put("c.parquet", [("id-more", "text more", "en")])
    nights.store.write(delta.path, content[:-20] + bytes(20))
    with pytest.raises(DataError, match="sha256"):
        nights.night()
    nights.store.delete(delta.path)
    ingested = nights.night()
    assert f"lacks {delta.path}" in ingested.rebuild_reason
    check(nights, ingested, {})
