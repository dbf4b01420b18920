"""Nights over Iceberg tables. Their rows are those that pyiceberg reads."""

import bz2
import contextlib
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyiceberg.types import StringType

from pipeline.errors import ConfigError, DataError
from pipeline.store.records.units import Changes
from pipeline.text.sources import delete_files, iceberg_io
from pipeline.text.sources.iceberg_io import StoredInput
from pipeline.text.sources.sources import list_files
from tests.text.ingest.editing import addresses
from tests.text.ingest.lake_tables import delete_by_equality, delete_by_positions, delete_by_puffin, rows
from tests.text.ingest.table_nights import IcebergNights, data_file


@pytest.mark.parametrize("partition_by", [None, "lang"])
def test_nights_over_a_table_that_its_library_edits(tmp_path, partition_by):
    nights = IcebergNights(tmp_path, rows(range(20)), partition_by)
    assert nights.checked().changes == Changes(new=20)
    before = nights.others()
    nights.table.append(rows(range(20, 30)))
    assert nights.checked(untouched=before).changes == Changes(new=10, unchanged=20)
    nights.table.delete("id in (4, 25)")
    assert nights.checked().changes == Changes(deleted=2, unchanged=28)
    nights.table.upsert(rows([5, 99], "merged"), ["id"])
    assert nights.checked().changes == Changes(new=1, changed=1, unchanged=27)
    nights.table.overwrite(nights.read(["id", "text", "lang"]))
    rewritten = nights.checked()
    assert rewritten.changes == Changes(unchanged=29)
    assert rewritten.read_files == len(rewritten.files)


@pytest.mark.parametrize("bounds", [True, False])
@pytest.mark.parametrize("partition_by", [None, "lang"])
def test_a_file_with_other_position_deletes_is_read_again_without_the_deleted_rows(
    tmp_path, partition_by, bounds
):
    nights = IcebergNights(tmp_path, rows(range(20)), partition_by)
    nights.table.append(rows(range(20, 30)))
    nights.checked()
    file = nights.file_of(2)
    for positions, changes in (
        ([0, 3], Changes(deleted=2, unchanged=28)),
        ([2], Changes(deleted=1, unchanged=27)),
    ):
        like = data_file(nights, 2)
        delete_by_positions(nights.table, {like.file_path: positions}, like, bounds=bounds)
        ingested = nights.checked(untouched=nights.others(file))
        assert (ingested.read_files, ingested.changes) == (1, changes)


def test_rows_that_were_added_after_a_delete_file_are_live(tmp_path):
    nights = IcebergNights(tmp_path, rows(range(4)))
    like = data_file(nights, 0)
    delete_by_positions(nights.table, {like.file_path: [0]}, like)
    nights.table.append(rows([0]))
    ingested = nights.checked()
    assert sorted(row[0] for row in addresses(nights.store, ingested).values()) == [0, 1, 2, 3]


@pytest.mark.parametrize("write", [delete_by_positions, delete_by_puffin])
def test_one_delete_file_of_several_data_files(tmp_path, write):
    nights = IcebergNights(tmp_path, rows(range(10)))
    nights.table.append(rows(range(10, 20)))
    nights.table.append(rows(range(20, 30)))
    nights.checked()
    first, second = data_file(nights, 0), data_file(nights, 10)
    write(nights.table, {first.file_path: [0, 9], second.file_path: [5]}, first)
    ingested = nights.checked(untouched=[nights.file_of(20).uri])
    assert (ingested.read_files, ingested.changes) == (2, Changes(deleted=3, unchanged=27))


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    "columns",
    [{"pos": [-1]}, {"pos": [1, None]}, {"pos": ["a"]}, {"pos": [1.5]}, {"file_path": [1]}, {}],
    ids=str,
)
def test_positions_that_are_none_are_refused_by_the_name_of_the_file(tmp_path, columns, cached, monkeypatch):
    nights = IcebergNights(tmp_path, rows(range(4)))
    like = data_file(nights, 0)
    delete_by_positions(nights.table, {like.file_path: [0]}, like)
    (file,) = nights.root.rglob("delete-*.parquet")
    count = len(columns.get("pos", [0]))
    written = {
        "file_path": [like.file_path] * count,
        **({"pos": [0]} if "file_path" in columns else {}),
        **columns,
    }
    pq.write_table(pa.table(written), file)
    if not cached:
        monkeypatch.setattr(delete_files, "_MAX_CACHED_ROWS", 0)
    with pytest.raises(DataError, match=re.escape(file.name)):
        nights.night()


def test_equality_deletes_are_refused(tmp_path):
    nights = IcebergNights(tmp_path, rows(range(4)))
    nights.checked()
    delete_by_equality(nights.table, [1], data_file(nights, 0))
    with pytest.raises(DataError, match=r"position deletes only.*rewrite its data files"):
        nights.night()


def test_columns_are_found_by_their_ids(tmp_path):
    """Renamed, moved, dropped and added again under the same name, and added later."""
    nights = IcebergNights(tmp_path, rows(range(4)))
    nights.checked()
    with nights.table.update_schema() as schema:
        schema.rename_column("text", "body")
        schema.move_first("lang")
    nights.set(text="body")
    nights.table.append(rows([4]).rename_columns(["id", "body", "lang"]).select(["lang", "id", "body"]))
    assert nights.checked().rows == 5
    with nights.table.update_schema() as schema:
        schema.delete_column("lang")
    with nights.table.update_schema() as schema:
        schema.add_column("lang", StringType())
    assert {row[2] for row in addresses(nights.store, nights.checked()).values()} == {None}


def test_files_without_ids_have_the_columns_of_the_name_mapping(tmp_path):
    """Such files are added from elsewhere; values of their partition are in the manifest only."""
    nights = IcebergNights(tmp_path, rows(range(4)), "lang")
    path = tmp_path / "elsewhere" / "lang=en" / "a.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(rows([6, 8]), path)
    nights.table.add_files([f"file://{path}"])
    assert nights.checked().rows == 6
    assert [file.name for file in list_files(nights.corpus)][-1] == f"file://{path}"
    with nights.table.transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    nights.set(keep=())
    with pytest.raises(DataError, match="field ids in the file, or a name mapping"):
        nights.night()


def test_nested_columns_whose_fields_were_renamed_are_refused(tmp_path):
    kind = pa.struct([("a", pa.int64())])
    nights = IcebergNights(tmp_path, rows(range(4), place=pa.array([{"a": 1}] * 4, kind)))
    nights.set(keep=("lang", "place"))
    nights.night()
    with nights.table.update_schema() as schema:
        schema.rename_column("place.a", "b")
    nights.set(keep=("place", "lang"))
    with pytest.raises(DataError, match=r"column 'place'.*as in the table"):
        nights.night()


def test_an_earlier_snapshot_is_read_by_its_id_or_time(tmp_path):
    nights = IcebergNights(tmp_path, rows(range(4)))
    nights.table.append(rows([4]))
    nights.table.delete("id = 0")
    snapshots = nights.table.snapshots()
    for entry, ids in zip(snapshots, ([0, 1, 2, 3], [0, 1, 2, 3, 4], [1, 2, 3, 4]), strict=True):
        for snapshot in (entry.snapshot_id, datetime.fromtimestamp(entry.timestamp_ms / 1_000, UTC)):
            nights.set(snapshot=snapshot)
            ingested = nights.night()
            assert sorted(row[0] for row in addresses(nights.store, ingested).values()) == ids
            assert ingested.snapshot.id == entry.snapshot_id
    early = datetime.fromtimestamp(snapshots[0].timestamp_ms / 1_000, UTC) - timedelta(seconds=1)
    for snapshot in (7, early):
        nights.set(snapshot=snapshot)
        with pytest.raises(DataError, match=r"the snapshot .*corpus\.snapshot.*found 3 snapshots"):
            nights.night()


def test_an_expired_snapshot_is_an_error(tmp_path):
    nights = IcebergNights(tmp_path, rows(range(4)))
    expired = nights.checked().snapshot.id
    nights.table.delete("id = 0")
    nights.table.maintenance.expire_snapshots().by_id(expired).commit()
    nights.set(snapshot=expired)
    with pytest.raises(DataError, match="may have expired"):
        nights.night()


def test_a_data_file_that_is_gone_is_an_error(tmp_path):
    nights = IcebergNights(tmp_path, rows(range(4)))
    Path(nights.others()[0]).unlink()
    with pytest.raises(DataError, match=r"a data file of snapshot .* of the Iceberg table.*expired"):
        nights.night()


def test_a_table_of_a_catalog_is_read_by_its_name(tmp_path, monkeypatch):
    nights = IcebergNights(tmp_path, rows(range(4)))
    nights.checked()
    # a file that was written, but never committed
    metadata = sorted((nights.root / "metadata").glob("*.metadata.json"))
    shutil.copy(metadata[0], nights.root / "metadata" / f"{metadata[-1].name[:5]}-never.metadata.json")
    with pytest.raises(DataError, match=r"never committed.*iceberg://CATALOG"):
        nights.night()
    nights.set(uri=str(metadata[-1]))
    assert nights.checked().read_files == 0
    environment = {"PYICEBERG_CATALOG__C__URI": f"sqlite:///{tmp_path}/catalog.db"}
    assert read_by_process("iceberg://c/ns.t", environment) == "4"
    assert "expected the catalog c" in read_by_process("iceberg://c/ns.t", {})
    assert "expected a table of the catalog c" in read_by_process("iceberg://c/ns.other", environment)


def read_by_process(uri, environment):
    """Number of rows of a table, or the error, in a process that reads the catalogs of its environment."""
    script = """
import sys
from pipeline.errors import PipelineError
from pipeline.settings import CorpusSettings
from pipeline.text.formats.reader import survey_files
from pipeline.text.sources.sources import list_files
corpus = CorpusSettings(uri=sys.argv[1])
try:
    print(sum(survey_files(list_files(corpus), corpus).rows.values()))
except PipelineError as error:
    print(error)
"""
    command = [sys.executable, "-c", script, uri]
    result = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_a_table_without_a_catalog_is_read_by_its_hint(tmp_path):
    nights = IcebergNights(tmp_path, rows(range(4)))
    nights.table.append(rows([4]))
    metadata = sorted((nights.root / "metadata").glob("*.metadata.json"))
    for number, file in enumerate(metadata, start=1):
        file.rename(file.with_name(f"v{number}.metadata.json"))
    (nights.root / "metadata" / "version-hint.text").write_text(str(len(metadata)))
    assert nights.night().rows == 5


def test_no_module_that_the_metadata_of_a_table_names_is_imported(tmp_path):
    """pyiceberg imports this one if it opens the table by itself."""
    nights = IcebergNights(tmp_path, rows(range(4)))
    file = max((nights.root / "metadata").glob("*.metadata.json"))
    metadata = json.loads(file.read_text())
    file.write_text(json.dumps(metadata | {"properties": {"py-io-impl": "this.Anything"}}))
    nights.night()
    assert "this" not in sys.modules


def test_damaged_metadata_is_an_error_of_the_data(tmp_path):
    nights = IcebergNights(tmp_path, rows(range(4)))
    for file in (nights.root / "metadata").glob("*.metadata.json"):
        file.write_text("{}")
    with pytest.raises(DataError, match="a readable Iceberg table"):
        nights.night()


def test_a_table_in_an_object_store_is_read_through_the_project(tmp_path, s3):
    """The night knows no settings of pyiceberg: metadata and data are read by the project's client."""
    location = f"{s3}/{tmp_path.name}/table"
    settings = {
        "s3.endpoint": os.environ["AWS_ENDPOINT_URL"],
        "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    nights = IcebergNights(tmp_path, rows(range(6)), "lang", location=location, settings=settings)
    nights.set(uri=location)
    assert nights.checked().changes == Changes(new=6)
    nights.table.delete("id = 2")
    assert nights.checked().changes == Changes(deleted=1, unchanged=5)


UNPACKED = 5 << 20  # more than metadata may have in these tests


def bomb(codec: str) -> bytes:
    """Return a block of an Avro file that is unpacked to UNPACKED bytes."""
    if codec == "deflate":
        return zlib.compress(bytes(UNPACKED), 9)[2:-4]
    if codec == "bzip2":
        return bz2.compress(bytes(UNPACKED))
    if codec == "zstandard":
        return zstandard.ZstdCompressor().compress(bytes(UNPACKED))
    return bytes([UNPACKED >> shift & 127 | 128 for shift in (0, 7, 14)] + [UNPACKED >> 21])  # the size first


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "zstandard", "snappy"])
def test_a_manifest_that_is_unpacked_to_too_much_is_refused_before(tmp_path, codec, monkeypatch):
    monkeypatch.setattr(iceberg_io, "_MAX_UNPACKED", 4 << 20)
    content = bomb(codec)
    header = (
        b"Obj\x01" + bytes([2, 20]) + b"avro.codec" + bytes([2 * len(codec)]) + codec.encode() + bytes(17)
    )
    block, size = bytes([2]), len(content) << 1
    while size > 127:
        block, size = block + bytes([size & 127 | 128]), size >> 7
    path = tmp_path / "m0.avro"
    path.write_bytes(header + block + bytes([size]) + content + bytes(16))
    with pytest.raises(DataError, match="at most 4 MiB, unpacked"):
        StoredInput(str(path)).open()


def test_metadata_that_is_unpacked_to_too_much_is_refused_before(tmp_path, monkeypatch):
    monkeypatch.setattr(iceberg_io, "_MAX_UNPACKED", 4 << 20)
    nights = IcebergNights(tmp_path, rows(range(4)))
    (latest,) = Path(nights.root, "metadata").glob("00001-*.metadata.json")
    name = latest.name.replace("00001-", "00002-").replace(".metadata", ".gz.metadata")
    packed = gzip.compress(latest.read_bytes().rstrip()[:-1] + b" " * UNPACKED + b"}")
    assert len(packed) < 1 << 16
    latest.with_name(name).write_bytes(packed)
    with pytest.raises(DataError, match="at most 4 MiB, unpacked"):
        nights.night()


@pytest.mark.parametrize("suffix", [".json", "m0.avro", "snap-*.avro"])
def test_damaged_metadata_is_an_error_that_names_the_table(tmp_path, suffix):
    nights = IcebergNights(tmp_path, rows(range(4)))
    path = max(Path(nights.root, "metadata").glob(f"*{suffix}"))
    content = path.read_bytes()
    for stop in range(0, len(content) - 1, len(content) // 20):
        path.write_bytes(content[:stop])
        with pytest.raises(DataError):
            list_files(nights.corpus)
    draw = random.Random(0)
    for _ in range(60):
        damaged = bytearray(content)
        damaged[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        # or it is read, if the byte says nothing; a changed scheme names a file system that is not there
        with contextlib.suppress(DataError, ConfigError):
            list_files(nights.corpus)
