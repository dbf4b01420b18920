"""Units of a release are the same in a manifest that lists them and in one that names a table of them."""

import json
import pickle
from hashlib import sha256

import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.log import listening
from pipeline.store.files.base import Store
from pipeline.store.records.release_units import UnitTable, VectorUnit, store_units
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import bytes_to_read, content_faults, files_of, size_faults
from tests.store.candidates import candidate, publish


def ref(name: str) -> FileRef:
    return FileRef(path=name, sha256=sha256(name.encode()).hexdigest(), rows=3, bytes=7)


def units(count: int) -> list[VectorUnit]:
    """Units of a release; each optional field is missing in some of them."""
    return [
        VectorUnit(
            ordinal=2 * number,
            path=f"units/vectors/s/{number}.parquet",
            rows=number,
            bytes=number << 33,
            sha256=ref(str(number)).sha256,
            space_id="s",
            numerics_id="n",
            copied={"n": number, "older": 1} if number % 3 == 0 else {},
            corpus=ref(f"units/corpus/{number}.parquet"),
            dropped=tuple(range(number % 4)),
            moments=ref(f"moments/{number}") if number % 5 else None,
            live_moments=ref(f"moments/live-{number}") if number % 2 else None,
            sample=ref(f"units/samples/{number}") if number % 7 else None,
            record=f"units/vectors/s/{number}.json",
            quarantine=ref(f"quarantine/{number}") if number % 11 == 0 else None,
            counts={"rows": number, "length_00008": 1} if number % 2 else {"rows": number},
        )
        for number in range(count)
    ]


def manifest_of(store: Store, stored_units: list[VectorUnit]) -> ReleaseManifest:
    return candidate(store, "one", None).model_copy(update={"units": store_units(store, stored_units)})


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store the units of every release as a table, in groups of ten."""
    monkeypatch.setattr("pipeline.store.records.release_units.MAX_LISTED", 0)
    monkeypatch.setattr("pipeline.store.records.release_units._GROUP_UNITS", 10)


def test_a_manifest_lists_a_thousand_units_and_names_a_table_of_more(store: Store):
    few, many = (json.loads(manifest_of(store, units(count)).to_json())["units"] for count in (1_000, 1_001))
    assert [unit["ordinal"] for unit in few] == [2 * number for number in range(1_000)]
    assert not any("counts" in unit for unit in few), "as in manifests of earlier versions"
    content = store.read(many["path"])
    assert (many["rows"], many["bytes"], many["sha256"]) == (1_001, len(content), sha256(content).hexdigest())


@pytest.mark.usefixtures("tables")
def test_a_table_has_the_units_that_were_stored(store: Store):
    stored_units = units(47)
    manifest = manifest_of(store, stored_units)
    loaded = ReleaseManifest.from_json(manifest.to_json(), "", store)
    assert loaded == manifest
    assert loaded.id == manifest.id
    assert (len(loaded.units), list(loaded.units), loaded.units[3]) == (47, stored_units, stored_units[3])
    assert list(pickle.loads(pickle.dumps(loaded)).units) == stored_units
    assert loaded.model_copy(update={"release": 5}).units is loaded.units


@pytest.mark.usefixtures("tables")
def test_rows_of_a_table_are_the_entries_of_a_list(store: Store, monkeypatch: pytest.MonkeyPatch):
    stored_units = units(47)
    table = json.loads(manifest_of(store, stored_units).to_json())["units"]
    rows = pq.read_table(store.local(table["path"])).to_pylist(maps_as_pydicts="strict")
    monkeypatch.setattr("pipeline.store.records.release_units.MAX_LISTED", 1_000)
    listed = json.loads(manifest_of(store, stored_units).to_json())["units"]
    assert [{name: row[name] for name in unit} for row, unit in zip(rows, listed, strict=True)] == listed
    assert [row["counts"] for row in rows] == [unit.counts for unit in stored_units]


@pytest.mark.usefixtures("tables")
def test_a_table_is_read_only_when_its_units_are_used(store: Store):
    table = publish(store, "one").units
    assert isinstance(table, UnitTable)
    content = store.read(table.file.path)
    store.write(table.file.path, bytes(len(content)))
    current = Releases(store).get_or_current(None)
    assert (current.rows, len(current.units)) == (1, 1)
    for read in (lambda: list(current.units), lambda: files_of(store, current)):
        with pytest.raises(DataError, match=f"{table.file.path}: expected sha256"):
            read()
    assert {table.file.path} <= {fault.path for fault in content_faults(store, current)}
    assert bytes_to_read(store, current)
    with pytest.raises(DataError, match=f"{table.file.path}: expected sha256"):
        size_faults(store, current)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("damage", ["gone", "cut off"])
def test_a_release_without_its_table_is_skipped_like_one_without_its_manifest(store: Store, damage: str):
    publish(store, "one", "old")
    table = publish(store, "two", "new").units
    assert isinstance(table, UnitTable)
    content = store.read(table.file.path)
    store.delete(table.file.path)
    if damage == "cut off":
        store.write(table.file.path, content[:-1])
    with listening() as messages:
        assert Releases(store).get_or_current(None).release == 1
    assert f"{table.file.path}: expected the table of the 1 units of release 2" in messages[0]
    with pytest.raises(DataError, match=rf"{table.file.path}.*restore it"):
        Releases(store).get(2)
    with pytest.raises(DataError, match=rf"{table.file.path}.*restore it"):
        Releases(store).rollback(2)
    store.write(table.file.path, content)
    assert Releases(store).get_or_current(None).release == 2
