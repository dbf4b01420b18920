"""Deletion vectors of Delta tables: those that deltalake reads, and damaged ones."""

import contextlib
import itertools
import json
import os
import random
import struct
import subprocess
import sys
import uuid
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipeline.errors import DataError
from pipeline.store.files.open_store import open_store
from pipeline.text.sources.delete_files import rows_of_vector
from pipeline.text.sources.delta_table import list_delta_files
from tests.text.ingest.lake_tables import added, commit, delete_by_vector, framed, replace_vector, rows
from tests.text.ingest.table_nights import DeltaNights

VECTORS = {"delta.enableDeletionVectors": "true"}
ROWS = 200  # rows per data file
MAGIC = struct.pack("<i", 1_681_511_377)


def table_of(folder: Path, files: int = 1) -> DeltaNights:
    """A table of data files with ROWS rows each."""
    nights = DeltaNights(folder)
    for number in range(files):
        ids = range(number * ROWS, (number + 1) * ROWS)
        nights.write(rows(ids), configuration=VECTORS)
    return nights


def deleted_rows(root: Path, version: int | None = None) -> dict[str, list[int]]:
    """The deleted rows of each data file that has a vector."""
    files = list_delta_files(str(root), version).files
    vectors = {Path(file.uri).name: file.table.vector for file in files if file.table}
    return {name: rows_of_vector(vector, ROWS).tolist() for name, vector in vectors.items() if vector}


def deleted_by_library(root: Path, version: int | None = None) -> dict[str, list[int]]:
    """The same, as deltalake reads them."""
    vectors = pa.table(DeltaTable(root, version).deletion_vectors()).to_pylist()
    return {
        unquote(vector["filepath"]).rpartition("/")[2]: [
            row for row, is_live in enumerate(vector["selection_vector"]) if not is_live
        ]
        for vector in vectors
    }


def reshape_checkpoint(root: Path, shape: str) -> None:
    """Write the checkpoint of the current version again: in three parts, or with a file beside it."""
    log, version = root / "_delta_log", DeltaTable(root).version()
    (log / "_last_checkpoint").unlink()
    classic = log / f"{version:020d}.checkpoint.parquet"
    table = pq.read_table(classic)
    classic.unlink()
    if shape == "parts":
        for part in range(3):
            name = f"{version:020d}.checkpoint.{part + 1:010d}.{3:010d}.parquet"
            pq.write_table(table.take(pa.array(range(part, len(table), 3))), log / name)
        return
    is_file = pc.is_valid(table["add"])
    sidecar = log / "_sidecars" / f"{uuid.uuid4()} 1.parquet"
    sidecar.parent.mkdir(exist_ok=True)
    pq.write_table(table.filter(is_file).select(["add"]), sidecar)
    others = [
        {name: value for name, value in row.items() if value is not None}
        for row in table.filter(pc.invert(is_file)).to_pylist(maps_as_pydicts="strict")
    ]
    place = {"path": quote(sidecar.name), "sizeInBytes": sidecar.stat().st_size}
    others.append({"sidecar": {**place, "modificationTime": 1}})
    path = log / f"{version:020d}.checkpoint.{uuid.uuid4()}.{shape}"
    if shape == "json":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in others))
    else:
        pq.write_table(pa.Table.from_pylist(others, table.schema), path)


@pytest.mark.parametrize("seed", range(4))
def test_vectors_are_those_that_the_library_reads(tmp_path, seed):
    draw = random.Random(seed)
    nights = table_of(tmp_path, files=4)
    features = ["deletionVectors", "v2Checkpoint"]
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    commit(nights.root, {"protocol": versions | {"readerFeatures": features, "writerFeatures": features}})
    deleted = {path: set[int]() for path in added(nights.root)}
    for _ in range(12):
        path = draw.choice(list(deleted))
        live = sorted(set(range(ROWS)) - deleted[path])
        deleted[path] |= set(draw.sample(live, draw.choice([1, 3, len(live) // 2])))
        kind, folder = draw.choice([("u", ""), ("u", "ab"), ("p", ""), ("i", "")])
        delete_by_vector(nights.root, path, sorted(deleted[path]), kind, folder)
        if draw.random() < 0.3:
            nights.table.create_checkpoint()
            if shape := draw.choice(["", "parts", "json", "parquet"]):
                reshape_checkpoint(nights.root, shape)
    for version in range(4, nights.table.version() + 1):
        assert deleted_rows(nights.root, version) == deleted_by_library(nights.root, version)
    assert deleted_rows(nights.root) == {path: sorted(rows) for path, rows in deleted.items() if rows}


@pytest.mark.parametrize("place", ["disk", "store"])
def test_any_number_of_vectors_is_read(tmp_path, place, request):
    """deltalake waits for ever above 512. Only the data files of the table's own rows exist."""
    nights = table_of(tmp_path)
    ((path, add),) = added(nights.root).items()
    add = delete_by_vector(nights.root, path, [3, 5])
    commit(nights.root, *({"add": {**add, "path": f"{number}%20.parquet"}} for number in range(600)))
    uri = str(nights.root)
    if place == "store":
        uri = f"{request.getfixturevalue('s3')}/{tmp_path.name}/a table"
        for file in nights.root.rglob("*.*"):
            open_store(uri).write(file.relative_to(nights.root).as_posix(), file.read_bytes())
    files = list_delta_files(uri, None).files
    assert {file.path for file in files} == {path, *(f"{number} .parquet" for number in range(600))}
    vectors = [file.table.vector for file in files if file.table]
    assert {tuple(rows_of_vector(vector, ROWS)) for vector in vectors if vector} == {(3, 5)}


@pytest.mark.parametrize(
    "damage", ["missing", "empty", "cut", "version", "one bit", "magic", "bitmap", "size", "cardinality"]
)
def test_a_damaged_vector_is_an_error_that_names_its_file(tmp_path, damage):
    nights = table_of(tmp_path)
    stored = delete_by_vector(nights.root, next(iter(added(nights.root))), [0, 3])["deletionVector"]
    (file,) = nights.root.rglob("deletion_vector_*.bin")
    whole = file.read_bytes()
    if damage in ("size", "cardinality"):
        entry, name = nights.root / "_delta_log" / f"{1:020d}.json", damage.replace("size", "sizeInBytes")
        log = entry.read_text().replace(f'"{name}": {stored[name]}', f'"{name}": {stored[name] - 1}')
        entry.write_text(log)
    elif damage == "missing":
        file.unlink()
    else:
        contents = {
            "empty": b"",
            "cut": whole[:-9],
            "version": b"\2" + whole[1:],
            "one bit": whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:],
            "magic": b"\1" + framed(bytes(4) + whole[9:-4]),
            "bitmap": b"\1" + framed(MAGIC + b"x" * (len(whole) - 13)),
        }
        file.write_bytes(contents[damage])
    with pytest.raises(DataError, match="a delete file of the table") as caught:
        nights.night()
    assert caught.value.where == str(file)


@pytest.mark.parametrize("last", [ROWS, 2**31, 2**40, 2**63])
@pytest.mark.parametrize("kind", ["u", "i"])
def test_a_row_that_the_data_file_does_not_have_is_refused_before_rows_are_unpacked(tmp_path, kind, last):
    nights = table_of(tmp_path)
    path = next(iter(added(nights.root)))
    delete_by_vector(nights.root, path, range(3, last + 1) if last == 2**31 else [3, last], kind)
    with pytest.raises(DataError, match=rf"row {last:,} of a data file of {ROWS} rows") as caught:
        nights.night()
    assert (path in caught.value.where) == (kind == "i")


def rows_or_error(root: Path) -> list[int] | None:
    """The deleted rows of a table with one data file; None if that is an error of the data."""
    try:
        (found,) = deleted_rows(root).values()
    except DataError:
        return None
    return found


def test_damaged_bytes_are_an_error_or_the_same_rows(tmp_path):
    draw = random.Random(0)
    nights = table_of(tmp_path)
    deleted = sorted(draw.sample(range(ROWS), 90))
    add = delete_by_vector(nights.root, next(iter(added(nights.root))), deleted)
    (file,) = nights.root.rglob("deletion_vector_*.bin")
    size, whole = add["deletionVector"]["sizeInBytes"], file.read_bytes()
    errors = 0
    for _ in range(100):
        content = bytearray(whole)
        for _ in range(draw.choice([1, 1, 3])):
            content[draw.randrange(len(content))] = draw.randrange(256)
        file.write_bytes(content[: draw.choice([len(content), draw.randrange(len(content))])])
        found = rows_or_error(nights.root)
        errors += found is None
        assert found in (None, deleted)
    assert errors > 60
    for _ in range(100):  # with a checksum that fits
        body = bytearray(whole[5:-4])
        body[draw.randrange(4, size)] = draw.randrange(256)
        file.write_bytes(b"\1" + framed(bytes(body)))
        found = rows_or_error(nights.root)
        assert found is None or (found == sorted({*found}) and len(found) == 90 and found[-1] < ROWS)


@pytest.mark.parametrize("kind", ["u", "p", "i"])
def test_an_invalid_descriptor_is_an_error_or_leads_to_the_same_rows(tmp_path, kind):
    nights = table_of(tmp_path)
    path = next(iter(added(nights.root)))
    vector = delete_by_vector(nights.root, path, [1, 3, 4], kind)["deletionVector"]
    odd = [None, -1, 0, 2, 2**31 - 1, 2**31, 2**63, "", "x", "|" * 20, 1.5, True, [], {"a": 1}]
    for name, value in itertools.product(vector, odd):
        version = nights.table.version() + 1
        replace_vector(nights.root, path, {**vector, name: value})
        assert rows_or_error(nights.root) in (None, [1, 3, 4])
        (nights.root / "_delta_log" / f"{version:020d}.json").unlink()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_vector_that_is_a_pipe_is_refused_at_once(tmp_path, scheme):
    nights = table_of(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    vector = {"storageType": "p", "pathOrInlineDv": f"{scheme}{tmp_path}/pipe", "offset": 1}
    path = next(iter(added(nights.root)))
    replace_vector(nights.root, path, {**vector, "sizeInBytes": 36, "cardinality": 2})
    with pytest.raises(DataError, match="a pipe, a device or a socket") as caught:
        nights.night()
    assert caught.value.where == str(tmp_path / "pipe")


def test_a_log_that_deltalake_understands_otherwise_is_refused(tmp_path):
    """An action that adds a file and one that removes it have no order in an entry."""
    nights = table_of(tmp_path, files=2)
    path, add = next(iter(added(nights.root).items()))
    commit(nights.root, {"remove": {"path": path, "dataChange": True}}, {"add": add})
    with pytest.raises(DataError, match="once in the log of version 2") as caught:
        nights.night()
    assert caught.value.where == str(nights.root / path)


def test_a_library_that_waits_does_not_keep_a_command_from_its_end(tmp_path):
    """A checkpoint names a pipe, which the library opens."""
    nights, features = table_of(tmp_path), ["v2Checkpoint"]
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    commit(nights.root, {"protocol": versions | {"readerFeatures": features, "writerFeatures": features}})
    nights.table.create_checkpoint()
    reshape_checkpoint(nights.root, "json")
    log, pipe = nights.root / "_delta_log", tmp_path / "pipe"
    (checkpoint,), (sidecar,) = log.glob("*.checkpoint.*.json"), (log / "_sidecars").iterdir()
    checkpoint.write_text(checkpoint.read_text().replace(quote(sidecar.name), f"file://{pipe}"))
    os.mkfifo(pipe)
    program = f"""
import os, signal, sys, threading
from pipeline.text.sources.delta_table import list_delta_files

def stop(*_):
    others = (frame for thread, frame in sys._current_frames().items() if thread != threading.get_ident())
    if any("deltalake" in frame.f_code.co_filename for frame in others):
        os._exit(7)

signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
list_delta_files({str(nights.root)!r}, None)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline() == b"ready\n"
        try:
            for _ in range(600):
                child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=0.1)
                    break
        finally:
            child.kill()
    assert child.returncode == 7
