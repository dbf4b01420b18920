"""Ids that a table has and a release lacks, found without the ids of either in memory."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store.arrays import one_chunk
from pipeline.text.corpus.normalize import blake2b_digests
from pipeline.text.corpus.partitions import partition_of

_PART_IDS = 1 << 18  # average number of ids in a part
_MOST_PARTS = 256  # each is an open file while ids are written


def surplus_ids(
    held: Iterable[pa.Array], wanted: Iterable[pa.Array], rows: int, scratch: Path
) -> Iterator[pa.Array]:
    """Yield the ids of `held` that are not in `wanted`.

    Both are first written to files, in parts by the hash of an id; then the parts are compared one by one.

    Args:
        held: the ids of a table.
        wanted: the ids of a release, of the same type.
        rows: number of ids of the release.
        scratch: folder for the files.
    """
    parts = min(_MOST_PARTS, 1 << (rows // _PART_IDS).bit_length())
    held_files = _write_parts(held, parts, scratch / "held")
    wanted_files = _write_parts(wanted, parts, scratch / "wanted")
    for number in range(parts):
        if held_files[number].exists():
            ids, remaining = _read_ids(held_files[number]), _read_ids(wanted_files[number])
            yield ids.filter(pc.invert(pc.is_in(ids, value_set=remaining.cast(ids.type))))


def _write_parts(ids: Iterable[pa.Array], parts: int, folder: Path) -> list[Path]:
    """Write ids by part. Returns the files; one without ids does not exist."""
    folder.mkdir()
    files = [folder / str(number) for number in range(parts)]
    writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
    with contextlib.ExitStack() as opened:
        for array in ids:
            table = pa.table({"id": array})
            numbers = partition_of(_hashes(array), parts)
            for number in np.unique(numbers).tolist():
                if number not in writers:
                    writer = pa.ipc.new_stream(str(files[number]), table.schema)
                    writers[number] = opened.enter_context(writer)
                writers[number].write_table(table.filter(pa.array(numbers == number)))
    return files


def _hashes(ids: pa.Array) -> np.ndarray:
    digests = blake2b_digests(ids.cast(pa.string()), 8)
    return np.frombuffer(digests.buffers()[1], dtype=">u8", count=len(ids)).astype(np.uint64)


def _read_ids(file: Path) -> pa.Array:
    if not file.exists():
        return pa.nulls(0)
    with pa.ipc.open_stream(str(file)) as reader:
        return one_chunk(reader.read_all()["id"])
