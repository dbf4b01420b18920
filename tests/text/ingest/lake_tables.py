"""Delete files of Delta and Iceberg tables, written as the specifications say.

deltalake 1.6 and pyiceberg 0.12 write a data file again to delete some of its rows. They read deletion
vectors and position deletes, which other engines write, but do not write them.
"""

import json
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.update.snapshot import Operation, _FastAppendFiles
from pyroaring import BitMap64

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_FILE_PATH, _POS = 2147483546, 2147483545  # ids of the columns of position deletes
_DELETION_VECTOR = 1_681_511_377  # begins a bitmap of deleted rows, in both formats


def rows(ids: Sequence[int], text: str = "text", **columns: Any) -> pa.Table:
    """Rows with these ids, and a column lang with two values."""
    lang = ["de" if number % 2 else "en" for number in ids]
    named = {"id": pa.array(ids, pa.int64()), "text": [f"{text} {number}" for number in ids], "lang": lang}
    return pa.table(named | columns)


def commit(root: Path, *actions: Mapping[str, Any]) -> None:
    """Write the next entry of a Delta table's log."""
    version = DeltaTable(root).version() + 1
    entry = root / "_delta_log" / f"{version:020d}.json"
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))


def added(root: Path) -> dict[str, dict[str, Any]]:
    """The add actions of the live files of a Delta table by path, from its log."""
    live: dict[str, dict[str, Any]] = {}
    for entry in sorted((root / "_delta_log").glob(f"{'[0-9]' * 20}.json")):
        for action in map(json.loads, entry.read_text().splitlines()):
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
            if "add" in action:
                live[action["add"]["path"]] = action["add"]
    return live


def rename_column(root: Path, name: str, other: str) -> None:
    """Rename a column of a Delta table whose files name it by another name. deltalake cannot do it."""
    entries = sorted((root / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
    metadata = [action["metaData"] for action in actions if "metaData" in action][-1]
    schema = metadata["schemaString"].replace(f'"name":"{name}"', f'"name":"{other}"')
    commit(root, {"metaData": {**metadata, "schemaString": schema}})


def change_type(root: Path, name: str, kind: str) -> None:
    """Widen a column of a Delta table in its schema.

    The feature typeWidening is not named, since deltalake does not write to tables that have it.
    """
    entries = sorted((root / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
    metadata = [action["metaData"] for action in actions if "metaData" in action][-1]
    schema = json.loads(metadata["schemaString"])
    next(column for column in schema["fields"] if column["name"] == name)["type"] = kind
    features = ["timestampNtz"] if kind == "timestamp_ntz" else []
    version = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features}
    protocol = version | {"writerFeatures": features}
    commit(root, {"protocol": protocol}, {"metaData": {**metadata, "schemaString": json.dumps(schema)}})


def delete_by_vector(
    root: Path, path: str, positions: Sequence[int], kind: str = "u", folder: str = ""
) -> dict[str, Any]:
    """Delete rows of one data file of a Delta table by a deletion vector. Returns the new add action.

    Args:
        kind: storage of the vector: u for a file in a folder of the table, p for a file behind another vector
            by its absolute path, i for the log.
    """
    bitmap = struct.pack("<i", _DELETION_VECTOR) + BitMap64(positions).serialize()
    vector = {"storageType": kind, "sizeInBytes": len(bitmap), "cardinality": len(positions)}
    if kind == "i":
        vector |= {"pathOrInlineDv": _z85(bitmap + b"\0" * (-len(bitmap) % 4))}
    else:
        name, stored = uuid.uuid4(), framed(bitmap)
        (root / folder).mkdir(exist_ok=True)
        file = root / folder / f"deletion_vector_{name}.bin"
        before = b"\1" if kind == "u" else b"\1" + stored
        file.write_bytes(before + stored)
        place = f"{folder}{_z85(name.bytes)}" if kind == "u" else f"file://{quote(str(file))}"
        vector |= {"pathOrInlineDv": place, "offset": len(before)}
    return replace_vector(root, path, vector)


def framed(bitmap: bytes) -> bytes:
    """Return a deletion vector as it is stored, with its length and checksum."""
    return struct.pack(">i", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap))


def replace_vector(root: Path, path: str, vector: Mapping[str, Any]) -> dict[str, Any]:
    """Give a data file of a Delta table another deletion vector. Returns the new add action."""
    add = added(root)[path]
    remove = {key: add[key] for key in ("path", "size", "partitionValues", "deletionVector") if key in add}
    remove |= {"dataChange": True, "deletionTimestamp": add["modificationTime"], "extendedFileMetadata": True}
    add = {**add, "deletionVector": vector}
    commit(root, {"remove": remove}, {"add": add})
    return add


def _z85(content: bytes) -> str:
    """Encode every 4 bytes as 5 characters."""
    numbers = (int.from_bytes(content[start : start + 4]) for start in range(0, len(content), 4))
    return "".join(_Z85[number // 85**power % 85] for number in numbers for power in (4, 3, 2, 1, 0))


class _DeleteManifest(ManifestWriterV2):
    """Writer of a manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _DeleteSnapshot(_FastAppendFiles):
    """A snapshot that adds one delete file."""

    delete_file: DataFile

    def _manifests(self) -> list[ManifestFile]:
        spec = self._transaction.table_metadata.specs()[self.delete_file.spec_id]
        arguments = (spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression)
        entry = ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=self.delete_file
        )
        with _DeleteManifest(*arguments) as writer:
            writer.add(entry)
        return [writer.to_manifest_file(), *self._existing_manifests()]


def _commit_delete_file(table: Table, path: str, count: int, like: DataFile, **fields: Any) -> None:
    """Add a delete file of the partition of a data file."""
    file = DataFile.from_args(
        file_path=path,
        file_size_in_bytes=Path(path.removeprefix("file://")).stat().st_size,
        record_count=count,
        partition=like.partition,
        **{"content": DataFileContent.POSITION_DELETES, "file_format": FileFormat.PARQUET, **fields},
    )
    file.spec_id = like.spec_id
    with table.transaction() as transaction:
        snapshot = _DeleteSnapshot(Operation.DELETE, transaction, table.io)
        snapshot.delete_file = file
        snapshot.commit()


def delete_by_positions(
    table: Table, deleted: Mapping[str, Sequence[int]], like: DataFile, *, bounds: bool = False
) -> None:
    """Delete rows of data files of an Iceberg table, by their locations, with a file of positions.

    Args:
        like: one of the data files, whose partition the delete file has.
        bounds: record the location in the manifest, which is possible for one data file.
    """
    pairs = [
        (location, position) for location, positions in sorted(deleted.items()) for position in positions
    ]
    path = f"{table.location()}/data/delete-{uuid.uuid4()}.parquet"
    columns = {"file_path": [pair[0] for pair in pairs], "pos": [pair[1] for pair in pairs]}
    pq.write_table(pa.table(columns), path.removeprefix("file://"))
    fields = {}
    if bounds:
        (location,) = deleted
        fields = {key: {_FILE_PATH: location.encode()} for key in ("lower_bounds", "upper_bounds")}
    _commit_delete_file(table, path, len(pairs), like, **fields)


def delete_by_puffin(table: Table, deleted: Mapping[str, Sequence[int]], like: DataFile) -> None:
    """Delete rows of data files of an Iceberg table with a Puffin file of deletion vectors."""
    content, blobs = b"PFA1", []
    for location, positions in sorted(deleted.items()):
        body = struct.pack("<i", _DELETION_VECTOR) + BitMap64(positions).serialize()
        blob = framed(body)
        properties = {"referenced-data-file": location, "cardinality": str(len(positions))}
        place = {"offset": len(content), "length": len(blob), "properties": properties}
        blobs.append(
            {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1} | place
        )
        content += blob
    footer = json.dumps({"blobs": blobs}).encode()
    content += b"PFA1" + footer + struct.pack("<i", len(footer)) + b"\0\0\0\0" + b"PFA1"
    path = f"{table.location()}/data/{uuid.uuid4()}.puffin"
    Path(path.removeprefix("file://")).write_bytes(content)
    count = sum(map(len, deleted.values()))
    _commit_delete_file(table, path, count, like, file_format=FileFormat.PUFFIN)


def delete_by_equality(table: Table, ids: Sequence[int], like: DataFile) -> None:
    """Delete rows of an Iceberg table by a file of the ids to delete."""
    path = f"{table.location()}/data/equality-{uuid.uuid4()}.parquet"
    pq.write_table(pa.table({"id": ids}), path.removeprefix("file://"))
    fields = {"content": DataFileContent.EQUALITY_DELETES, "equality_ids": [1]}
    _commit_delete_file(table, path, len(ids), like, **fields)
