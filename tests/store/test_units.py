"""A record that stands says the truth about its data."""

from pathlib import Path

import pytest

from pipeline.errors import DataError
from pipeline.store.base import Store
from pipeline.store.store import open_store
from pipeline.store.units import UnitRecord, create_record, stored_by_content


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path)


def record(store: Store, name: str) -> UnitRecord:
    """A record of a unit of four bytes that is there."""
    store.write(f"units/{name}.parquet", b"data")
    return UnitRecord(name=name, path=f"units/{name}.parquet", rows=1, bytes=4, sha256=name * 64)


def test_the_first_of_two_records_stands(store: Store):
    first, second = record(store, "a"), record(store, "b")
    assert create_record(store, "units/r.json", first) == first
    assert create_record(store, "units/r.json", second) == first


@pytest.mark.parametrize("damage", ["record cut off", "data gone", "data cut off"])
def test_a_record_that_nothing_stands_behind_is_replaced(store: Store, damage: str):
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


def test_of_what_an_earlier_run_left_only_a_beginning_counts_as_nothing(store: Store):
    made = record(store, "a")
    content = made.to_json()
    assert UnitRecord.left(store, "units/r.json") is None
    for end in range(0, len(content) - 1, 7):
        store.write("units/r.json", content[:end])
        assert UnitRecord.left(store, "units/r.json") is None
    store.write("units/r.json", content)
    assert UnitRecord.left(store, "units/r.json") == made
    store.write("units/r.json", content.replace(b'"rows":1', b'"rows":2'))
    with pytest.raises(DataError):
        UnitRecord.left(store, "units/r.json")


@pytest.mark.parametrize("name", ["moments", "quarantine"])
def test_a_record_is_whole_while_all_that_it_names_is_there_in_full(store: Store, name: str):
    reference = stored_by_content(store, b"twelve bytes", name, ".bin")
    made = record(store, "a").model_copy(update={name: reference})
    assert made.is_whole(store)
    store.write(reference.path, b"twelve")
    assert not made.is_whole(store)
    store.delete(reference.path)
    assert not made.is_whole(store)
