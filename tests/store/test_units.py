"""A stored record agrees with its data; otherwise it is replaced or refused."""

import hashlib
from pathlib import Path

import pytest

from pipeline.errors import DataError
from pipeline.store.base import Store
from pipeline.store.once import create_record, load_or_make, put_by_content, store_by_content
from pipeline.store.stored import FileRef
from pipeline.store.units import Manifest, UnitRecord


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


@pytest.mark.parametrize("name", ["moments", "quarantine"])
def test_a_record_is_complete_if_all_its_files_are(store: Store, name: str):
    reference = store_by_content(store, b"twelve bytes", name, ".bin")
    unit = record(store, "a").model_copy(update={name: reference})
    manifest = Manifest(stage="vectors", units=(record(store, "b"), unit))
    assert unit.is_complete(store)
    assert manifest.is_complete(store)
    for damage in (lambda: store.write(reference.path, b"twelve"), lambda: store.delete(reference.path)):
        damage()
        assert not unit.is_complete(store)
        assert not manifest.is_complete(store)


def test_references_are_found_in_fields_tuples_and_nested_records(store: Store):
    moments = FileRef(path="moments", sha256="m")
    first, second = record(store, "a"), record(store, "b").model_copy(update={"moments": moments})
    manifest = Manifest(stage="vectors", units=(first, second))
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
