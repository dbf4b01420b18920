"""Nights over Delta tables. Their rows are those that deltalake reads with DataFusion."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.errors import DataError
from pipeline.store.records.units import Changes
from pipeline.text.formats import parquet
from pipeline.text.sources.sources import list_files
from tests.text.ingest.editing import addresses
from tests.text.ingest.lake_tables import added, commit, delete_by_vector, rename_column, rows
from tests.text.ingest.table_nights import DeltaNights

VECTORS = {"delta.enableDeletionVectors": "true"}
DELETION_TIME = {"retention_hours": 0, "dry_run": False, "enforce_retention_duration": False}


@pytest.mark.parametrize("partition_by", [None, ["lang"]])
def test_nights_over_a_table_that_its_library_edits(tmp_path, partition_by):
    nights = DeltaNights(tmp_path)
    nights.write(rows(range(20)), partition_by=partition_by)
    assert nights.checked().changes == Changes(new=20)
    nights.write(rows(range(20, 30)))
    assert nights.checked().changes == Changes(new=10, unchanged=20)
    nights.table.update(updates={"text": "'again'"}, predicate="id = 3")
    assert nights.checked().changes == Changes(changed=1, unchanged=29)
    nights.table.delete("id IN (4, 25)")
    assert nights.checked().changes == Changes(deleted=2, unchanged=28)
    merge = nights.table.merge(rows([5, 99], "merged"), "s.id = t.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert nights.checked().changes == Changes(new=1, changed=1, unchanged=27)
    for number in (100, 102):
        nights.write(rows([number]))
    assert nights.checked().changes == Changes(new=2, unchanged=29)
    nights.table.optimize.compact()
    compacted = nights.checked()
    assert compacted.changes == Changes(unchanged=31)
    assert compacted.read_files > 0
    nights.table.create_checkpoint()
    nights.table.vacuum(**DELETION_TIME)
    assert nights.checked().read_files == 0


def test_unchanged_data_files_are_not_opened(tmp_path):
    nights = DeltaNights(tmp_path)
    nights.write(rows(range(20)), partition_by=["lang"])
    nights.checked()
    before = [file.uri for file in list_files(nights.corpus)]
    nights.write(rows([20, 22]))
    ingested = nights.checked(untouched=before)
    assert (ingested.read_files, ingested.changes) == (1, Changes(new=2, unchanged=20))


@pytest.mark.parametrize("kind", ["u", "p", "i"])
@pytest.mark.parametrize("partition_by", [None, ["lang"]])
def test_a_file_with_another_deletion_vector_is_read_again_without_the_deleted_rows(
    tmp_path, partition_by, kind
):
    nights = DeltaNights(tmp_path)
    nights.write(rows(range(20)), partition_by=partition_by, configuration=VECTORS)
    nights.write(rows(range(20, 30)))
    nights.checked()
    file = nights.file_of(2)
    for positions, changes in (
        ([0, 3], Changes(deleted=2, unchanged=28)),
        ([0, 2, 3], Changes(deleted=1, unchanged=27)),
    ):
        delete_by_vector(nights.root, file.table.location, positions, kind)
        ingested = nights.checked(untouched=nights.others(file))
        assert (ingested.read_files, ingested.changes) == (1, changes)


def test_a_file_is_divided_by_its_live_rows(tmp_path, monkeypatch):
    """Some row groups have deleted rows only."""
    monkeypatch.setattr(parquet, "_DIVISION_ROWS", 10)
    nights = DeltaNights(tmp_path)
    nights.write(rows(range(100)), configuration=VECTORS)
    (file,) = list_files(nights.corpus)
    pq.write_table(rows(range(100)), file.uri, row_group_size=7)
    add = added(nights.root)[file.table.location]
    size = (nights.root / file.name).stat().st_size
    commit(nights.root, {"add": {**add, "size": size}})
    nights.checked()
    delete_by_vector(nights.root, file.table.location, [0, *range(7, 14), 20, 21, *range(30, 99)])
    ingested = nights.checked()
    assert ingested.rows == 100 - 79
    assert sorted(row[0] for row in addresses(nights.store, ingested).values())[-1] == 99


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_that_were_renamed_are_found(tmp_path, mode):
    nights = DeltaNights(tmp_path)
    configuration = {"delta.columnMapping.mode": mode}
    nights.write(rows(range(10)), partition_by=["lang"], configuration=configuration)
    (physical,) = {pq.read_schema(file.uri).names[1] for file in list_files(nights.corpus)}
    assert physical.startswith("col-")
    nights.checked()
    nights.write(rows(range(10, 14)))
    assert nights.checked().changes == Changes(new=4, unchanged=10)
    rename_column(nights.root, "text", "body")
    nights.set(text="body")
    assert nights.checked().rows == 14


def test_renamed_columns_and_deletion_vectors_together(tmp_path):
    nights = DeltaNights(tmp_path)
    nights.write(rows(range(10)), partition_by=["lang"], configuration={"delta.columnMapping.mode": "name"})
    features = ["columnMapping", "deletionVectors"]
    version = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features}
    commit(nights.root, {"protocol": version | {"writerFeatures": features}})
    nights.checked()
    delete_by_vector(nights.root, nights.file_of(4).table.location, [0, 4])
    assert nights.checked().changes == Changes(deleted=2, unchanged=8)
    rename_column(nights.root, "text", "body")
    nights.set(text="body")
    assert nights.checked().rows == 8


def test_a_dropped_column_that_comes_back_has_no_old_values(tmp_path):
    nights = DeltaNights(tmp_path)
    first = rows(range(4))
    spare = pa.nulls(4, pa.string())
    nights.write(first.append_column("spare", spare), configuration={"delta.columnMapping.mode": "name"})
    nights.checked()
    rename_column(nights.root, "lang", "dropped")
    rename_column(nights.root, "spare", "lang")
    ingested = nights.checked()
    assert ingested.changes == Changes(changed=4)
    assert {row[2] for row in addresses(nights.store, ingested).values()} == {None}


def test_values_of_partitions_have_the_types_of_the_table(tmp_path):
    nights = DeltaNights(tmp_path)
    days = pa.array([0, 1, None, 1], pa.date32())
    numbers = pa.array([7, 7, 8, None], pa.int16())
    nights.write(
        rows(range(4), day=days, number=numbers, lang=["a b", "a/b%", "=", None]),
        partition_by=["day", "number", "lang"],
    )
    nights.set(keep=("lang", "day", "number"))
    ingested = nights.night()
    found = pa.concat_tables(pq.read_table(nights.store.open(unit.path)) for unit in ingested.units)
    expected = nights.read(["id", "text", "lang", "day", "number"]).to_pylist()
    assert sorted(found.select(list(expected[0])).to_pylist(), key=str) == sorted(expected, key=str)
    assert found.schema.field("day").type == pa.date32()
    assert pa.types.is_integer(found.schema.field("number").type)


def test_an_earlier_version_is_read_by_its_number_or_time(tmp_path):
    nights = DeltaNights(tmp_path)
    nights.write(rows(range(4)))
    nights.write(rows(range(4, 6)))
    nights.table.delete("id = 0")
    log = sorted((nights.root / "_delta_log").glob("*.json"))
    for number, file in enumerate(log):
        os.utime(file, (1_000 + number, 1_000 + number))
    times = [datetime.fromtimestamp(1_000.5 + number, UTC) for number in range(len(log))]
    for version, ids in enumerate(([0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5])):
        for snapshot in (version, times[version]):
            nights.set(snapshot=snapshot)
            ingested = nights.night()
            assert sorted(row[0] for row in addresses(nights.store, ingested).values()) == ids
            assert ingested.snapshot.id == version
    for snapshot in (3, times[0] - timedelta(seconds=1)):
        nights.set(snapshot=snapshot)
        with pytest.raises(DataError, match=r"corpus\.snapshot"):
            nights.night()


def test_a_version_whose_files_were_vacuumed_is_an_error_only_if_they_must_be_read(tmp_path):
    nights = DeltaNights(tmp_path)
    nights.write(rows(range(4)))
    nights.checked()
    nights.table.delete("id = 0")
    nights.table.vacuum(**DELETION_TIME)
    nights.set(snapshot=0)
    assert nights.night().read_files == 0
    nights.set(keep=())
    with pytest.raises(DataError, match=r"a data file of version 0 of the Delta table.*vacuumed"):
        nights.night()


def test_reader_features_that_are_not_known_are_refused(tmp_path):
    nights = DeltaNights(tmp_path)
    nights.write(rows(range(4)), configuration=VECTORS)
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["fromTheFuture"],
        "writerFeatures": ["fromTheFuture"],
    }
    commit(nights.root, {"protocol": protocol})
    with pytest.raises(DataError, match="fromTheFuture"):
        nights.night()


def test_a_damaged_log_is_an_error_of_the_data(tmp_path):
    nights = DeltaNights(tmp_path)
    nights.write(rows(range(4)))
    (nights.root / "_delta_log" / f"{0:020d}.json").write_text("no JSON")
    with pytest.raises(DataError, match="a readable Delta table"):
        nights.night()


def test_a_table_without_rows_is_an_error_of_the_data(tmp_path):
    nights = DeltaNights(tmp_path)
    DeltaTable.create(nights.root, rows([1]).schema)
    with pytest.raises(DataError, match="no data files"):
        nights.night()


def test_a_table_in_an_object_store_is_read_with_its_endpoint(tmp_path, s3):
    nights = DeltaNights(tmp_path)
    uri = f"{s3}/{tmp_path.name}/table"
    options = {
        "aws_endpoint": os.environ["AWS_ENDPOINT_URL"],
        "aws_allow_http": "true",
        "aws_s3_allow_unsafe_rename": "true",
    }
    write_deltalake(uri, rows(range(6)), partition_by=["lang"], storage_options=options)
    nights.set(uri=uri)
    ingested = nights.night()
    assert sorted(row[0] for row in addresses(nights.store, ingested).values()) == list(range(6))
    DeltaTable(uri, storage_options=options).delete("id = 2")
    assert nights.night().changes == Changes(deleted=1, unchanged=5)


@pytest.mark.parametrize("slashes", ["", "//"])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_table_at_a_file_uri_has_its_partitions(tmp_path, absolute, slashes):
    """Paths in the log are encoded, those of partitions twice, and may be absolute."""
    nights = DeltaNights(tmp_path)
    at = pa.array([datetime(2020, 1, 1, 3, 4, 5, tzinfo=UTC)] * 4, pa.timestamp("us", "UTC"))
    options = {"partition_by": ["lang", "at"], "configuration": VECTORS}
    nights.write(rows(range(4), lang=["a b", "50%", "50%", None], at=at), **options)
    for path, add in added(nights.root).items() if absolute else ():
        other = f"file:{slashes}{quote(str(nights.root))}/{path}"
        commit(nights.root, {"remove": {"path": path, "dataChange": True}}, {"add": {**add, "path": other}})
    nights.set(uri=f"file://{quote(str(nights.root))}")
    ingested = nights.night()
    found = sorted(addresses(nights.store, ingested).values())
    assert [(row[0], row[2]) for row in found] == [(0, "a b"), (1, "50%"), (2, "50%"), (3, None)]
    if not absolute:
        delete_by_vector(nights.root, nights.file_of(1).table.location, [0])
        assert nights.night().changes == Changes(deleted=1, unchanged=3)


def test_pipes_that_a_table_names_are_refused_at_once(tmp_path):
    nights = DeltaNights(tmp_path)
    nights.write(rows(range(20)))
    (file,) = list_files(nights.corpus)
    Path(file.uri).unlink()
    os.mkfifo(file.uri)
    with pytest.raises(DataError, match="a pipe, a device or a socket"):
        nights.night()
    for name in ("_last_checkpoint", "_sidecars/pipe.parquet"):
        pipe = nights.root / "_delta_log" / name
        pipe.parent.mkdir(exist_ok=True)
        os.mkfifo(pipe)
        with pytest.raises(DataError, match="a pipe, a device or a socket") as caught:
            list_files(nights.corpus)
        assert caught.value.where == str(pipe)
        pipe.unlink()
