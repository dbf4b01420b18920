"""Program that reads the deletion vectors of a Delta table, with limited memory.

The library makes a value for each row up to the last one that a vector lists, and aborts its process if there
is no memory for them. It reads all vectors at once, each in one of 512 threads that needs another one to read
a local file: above that number of vectors it would wait for ever, so they are read in groups.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cores import limit_memory
from pipeline.daemon import in_daemon_thread

_GROUP = 128  # vectors that are read at once
# Features with which the library writes no checkpoint. They change nothing about vectors.
_NO_CHECKPOINT = {"typeWidening", "typeWidening-preview", "vacuumProtocolCheck"}

SCHEMA = pa.schema([("path", pa.string()), ("rows", pa.large_list(pa.int64()))])
"""Schema of the output, a stream of Arrow: the URI of each data file with a vector, and its deleted rows."""


def write_rows(uri: str, version: int, options: Mapping[str, str], memory: int) -> None:
    """Write the deleted rows of each data file to the standard output.

    Args:
        uri: root of the table, as the library opens it.
        options: the library's options for the storage.
        memory: bytes that may be allocated from now on.
    """
    from deltalake import DeltaTable

    in_daemon_thread(_end_with_parent, "manta-parent")
    limit_memory(memory)
    table = DeltaTable(uri, version, dict(options))
    with pa.ipc.new_stream(sys.stdout.buffer, SCHEMA) as stream, TemporaryDirectory() as folder:
        is_small = table.get_add_actions().num_rows <= _GROUP or not Path(uri).is_dir()
        for part in [table] if is_small else _parts(table, Path(uri).resolve(), Path(folder)):
            for batch in pa.RecordBatchReader.from_stream(part.deletion_vectors()):
                for path, kept in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
                    rows = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
                    lists = pa.LargeListArray.from_arrays([0, len(rows)], pa.array(rows, pa.int64()))
                    names = pa.array([path.removeprefix(part.table_uri)])
                    stream.write_batch(pa.record_batch([names, lists], schema=SCHEMA))


def _parts(table: Any, root: Path, folder: Path) -> Iterator[Any]:
    """Yield tables, each with a group of the data files of a local table that have vectors.

    They are versions of one table in a folder of its own, with links to the files of the other, whose
    checkpoint names the vectors.
    """
    from deltalake import DeltaTable

    version, log = table.version() + 1, folder / "_delta_log"
    _link(root, folder, table.version())
    features = sorted({*(table.protocol().reader_features or ())} - _NO_CHECKPOINT)
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    protocol = {**versions, "readerFeatures": features, "writerFeatures": features}
    (log / f"{version:020d}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    DeltaTable(folder, version).create_checkpoint()
    checkpoint = pq.read_table(log / f"{version:020d}.checkpoint.parquet", columns=["add"])
    adds = [add for add in checkpoint["add"].to_pylist() if add]
    if len(adds) != table.get_add_actions().num_rows:
        raise ValueError(f"a checkpoint of {len(adds):,} data files that has not those of the table")
    others = sum(not add.get("deletionVector") for add in adds)
    adds = [_plain(add) for add in adds if add.get("deletionVector")]
    removed, added = adds[_GROUP:], list[dict[str, Any]]()  # the first group is there already
    for number, start in enumerate(range(0, len(adds), _GROUP), version + 1):
        actions = [*({"remove": add} for add in removed), *({"add": add} for add in added)]
        (log / f"{number:020d}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))
        part, group, following = DeltaTable(folder, number), adds[start:][:_GROUP], start + _GROUP
        if part.get_add_actions().num_rows != others + len(group):
            raise ValueError(f"a group of {len(group):,} deletion vectors that cannot be read apart")
        yield part
        removed, added = group, adds[following : following + _GROUP]


def _plain(add: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that an action needs, as in a log."""
    fields = ("path", "size", "modificationTime", "deletionVector")
    stats = add.get("stats_parsed") or json.loads(add.get("stats") or "{}")
    return {
        **{key: add[key] for key in fields},
        "partitionValues": dict(add["partitionValues"]),
        "dataChange": False,
        "stats": json.dumps({"numRecords": stats.get("numRecords")}),
    }


def _link(root: Path, folder: Path, version: int) -> None:
    """Link to the files of a table; those of its log up to a version singly."""
    for entry in root.iterdir():
        if entry.name != "_delta_log":
            (folder / entry.name).symlink_to(entry)
    for file in (root / "_delta_log").rglob("*"):
        to = folder / file.relative_to(root)
        is_later = file.name[:20].isdecimal() and int(file.name[:20]) > version
        if not file.is_file() or is_later or file.name == "_last_checkpoint":
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        to.symlink_to(file)


def _end_with_parent() -> None:
    """End this process with its parent, even if that is killed."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    write_rows(*json.loads(sys.argv[1]))
