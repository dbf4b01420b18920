"""A stored record agrees with its data; otherwise it is replaced or refused."""

import hashlib
import json
from pathlib import Path

import pytest

from pipeline.config import canonical
from pipeline.errors import DataError
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.units import Corpus, StageRecord, TableBucket, UnitRecord
from pipeline.store.records.write_once import create_record, load_or_make, put_by_content, store_by_content
from pipeline.store.releases.manifest import IndexPart


def record(store: Store, name: str) -> UnitRecord:
    """Store a unit of four bytes and return its record."""
    store.write(f"units/{name}.parquet", b"data")
    return UnitRecord(name=name, path=f"units/{name}.parquet", rows=1, bytes=4, sha256=name * 64)


def test_the_first_of_two_records_is_kept(store: Store):
    first, second = record(store, "a"), record(store, "b")
    assert create_record(store, "units/r.json", first) == first
    assert create_record(store, "units/r.json", second) == first


@pytest.mark.parametrize("damage", ["record cut off", "data gone", "data cut off"])
def test_a_record_without_valid_data_is_replaced(store: Store, damage: str):
    first, second = record(store, "a"), record(store, "b")
    create_record(store, "units/r.json", first)
    if damage == "record cut off":
        store.write("units/r.json", first.to_json()[:20])
    elif damage == "data gone":
        store.delete(first.path)
    else:
        store.write(first.path, b"dat")
    assert create_record(store, "units/r.json", second) == second
    assert UnitRecord.load(store, "units/r.json") == second


def test_a_truncated_record_counts_as_missing_and_a_changed_one_is_refused(store: Store):
    unit = record(store, "a")
    content = unit.to_json()
    assert UnitRecord.load_intact(store, "units/r.json") is None
    for end in range(0, len(content) - 1, 7):
        store.write("units/r.json", content[:end])
        assert UnitRecord.load_intact(store, "units/r.json") is None
    store.write("units/r.json", content)
    assert UnitRecord.load_intact(store, "units/r.json") == unit
    store.write("units/r.json", content.replace(b'"rows":1', b'"rows":2'))
    with pytest.raises(DataError):
        UnitRecord.load_intact(store, "units/r.json")


_TABLE = TableBucket(path="p", sha256="s", deltas=(FileRef(path='a "seal":"', sha256="seal"),))


@pytest.mark.parametrize(
    "stored",
    [
        UnitRecord(name="first", path="z", rows=1, bytes=4, sha256="9" * 64, counts={"seal": 1, "tokens": 2}),
        _TABLE,  # its seal is neither the first nor the last field
        IndexPart(files=(), ids=(), next_ordinal=3),  # its seal is the last field
        Corpus(id="i", digest="d", units=(), texts=(_TABLE,), counts={"rows": 2}),
        StageRecord(stage="vectors", units=()),
    ],
    ids=lambda stored: type(stored).__name__,
)
def test_a_record_is_read_as_it_was_written_and_every_changed_byte_is_noticed(stored: Stored):
    content = stored.to_json()
    value = json.loads(content)
    assert value.pop("seal") == hashlib.sha256(canonical(value)).hexdigest()
    assert type(stored).from_json(content, "file") == stored
    indented = json.dumps(json.loads(content), indent=1).encode()
    assert type(stored).from_json(indented, "file") == stored
    for position in range(len(content) - 1):
        changed = bytearray(content)
        changed[position] ^= 1
        with pytest.raises(DataError):
            type(stored).from_json(bytes(changed), "file")


@pytest.mark.parametrize("name", ["moments", "quarantine"])
def test_a_record_is_complete_if_all_its_files_are(store: Store, name: str):
    reference = store_by_content(store, b"twelve bytes", name, ".bin")
    unit = record(store, "a").model_copy(update={name: reference})
    manifest = StageRecord(stage="vectors", units=(record(store, "b"), unit))
    assert unit.is_complete(store)
    assert manifest.is_complete(store)
    for damage in (lambda: store.write(reference.path, b"twelve"), lambda: store.delete(reference.path)):
        damage()
        assert not unit.is_complete(store)
        assert not manifest.is_complete(store)


def test_references_are_found_in_fields_tuples_and_nested_records(store: Store):
    moments = FileRef(path="moments", sha256="m")
    first, second = record(store, "a"), record(store, "b").model_copy(update={"moments": moments})
    manifest = StageRecord(stage="vectors", units=(first, second))
    assert list(manifest.references()) == [first.file, second.file, moments]


def test_a_unit_is_made_again_only_if_its_files_are_missing(store: Store):
    calls = []

    def make() -> UnitRecord:
        calls.append(1)
        return record(store, "a")

    for _ in range(2):
        assert load_or_make(store, "units/r.json", UnitRecord, make) == record(store, "a")
    assert len(calls) == 1
    store.delete("units/a.parquet")
    assert load_or_make(store, "units/r.json", UnitRecord, make).is_complete(store)
    assert len(calls) == 2


def test_the_record_of_the_fastest_attempt_is_used(store: Store):
    def make() -> UnitRecord:
        create_record(store, "units/r.json", record(store, "a"))
        return record(store, "b")

    assert load_or_make(store, "units/r.json", UnitRecord, make).name == "a"


@pytest.mark.parametrize(
    ("stem", "expected_path"), [("units/a", "units/a-{}.bin"), ("units/", "units/{}.bin")]
)
def test_a_file_named_by_content_has_its_size_and_digest(
    store: Store, tmp_path: Path, stem: str, expected_path: str
):
    (tmp_path / "given.bin").write_bytes(b"content")
    reference = put_by_content(store, tmp_path / "given.bin", stem, rows=3)
    digest = hashlib.sha256(b"content").hexdigest()
    assert reference == FileRef(path=expected_path.format(digest[:24]), sha256=digest, rows=3, bytes=7)
    assert reference.read(store) == reference.open(store).read() == reference.local(store).read_bytes()
    store.write(reference.path, b"CONTENT")
    for read in (reference.read, reference.open, reference.local):
        with pytest.raises(DataError):
            read(store)
