"""A record that stands says the truth about its data."""

from pathlib import Path

import pytest

from pipeline.store.store import Store, open_store
from pipeline.store.units import UnitRecord, create_record


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
