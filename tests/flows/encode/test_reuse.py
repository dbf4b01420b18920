"""Vectors of known texts are copied where reading them takes less time than encoding again."""

import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.flows.encode.reuse import find_known, is_copying_faster
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import CorpusUnit
from pipeline.store.records.write_once import store_table_by_content
from pipeline.store.rows.address import to_addresses
from pipeline.store.rows.schema import vector_column, vectors_schema

_SPACE, _DIM = "space", 4
# (ordinal of the unit, row in it) of the earlier vector of each row
_SOURCES = np.array([(7, 2), (3, 0), *((3, row) for row in range(1, 40)), (7, 5), (9, 1)])


def vector_unit(ordinal: int, file: FileRef, dropped: tuple[int, ...] = ()) -> VectorUnit:
    return VectorUnit(
        ordinal=ordinal,
        **dict(file),
        space_id=_SPACE,
        numerics_id="numerics",
        corpus=file,
        dropped=dropped,
        record="",
    )


def write_vectors(store: Store, ordinal: int, rows: int = 60) -> VectorUnit:
    """Write a unit whose vector at row r begins with (ordinal, r); row 1 of unit 9 has none."""
    dropped = (1,) if ordinal == 9 else ()
    kept = [row for row in range(rows) if row not in dropped]
    vectors = np.array([[ordinal, row, 0, 0] for row in kept], np.float32)
    schema = vectors_schema(pa.field("id", pa.string()), (), _DIM, _SPACE)
    columns = [
        pa.array([str(row) for row in kept]),
        pa.array([b"0" * 16] * len(kept), pa.binary(16)),
        vector_column(vectors, schema.field("vector")),
    ]
    file = store_table_by_content(store, pa.Table.from_arrays(columns, schema=schema), f"vectors/{ordinal}")
    return vector_unit(ordinal, file, dropped=dropped)


def unit_with_copies(store: Store) -> CorpusUnit:
    rows = pa.array(np.arange(len(_SOURCES))[::-1].copy())
    table = pa.table({"row": rows, "source": to_addresses(_SOURCES[::-1, 0], _SOURCES[::-1, 1])})
    copies = store_table_by_content(store, table, "copies")
    return CorpusUnit(name="new", ordinal=11, path="new", rows=99, bytes=1, sha256="0", copies=copies)


@pytest.mark.parametrize("remote", [False, True])
def test_a_remote_unit_that_gives_few_rows_is_not_opened(tmp_path: Path, remote: bool):
    store = open_store(f"memory://{uuid.uuid4().hex}" if remote else tmp_path)
    sources = [write_vectors(store, ordinal) for ordinal in (3, 7, 9)]
    if remote:
        store.delete(sources[1].path)  # so that opening it would fail
    known = find_known(store, unit_with_copies(store), sources, _SPACE, "cpu")
    assert known is not None
    expected = [row for row, (unit, _) in enumerate(_SOURCES) if unit == 3 or (unit == 7 and not remote)]
    assert known.rows.tolist() == expected
    np.testing.assert_array_equal(known.vectors[:, :2], _SOURCES[expected])
    assert known.numerics == {"numerics": len(expected)}


def test_a_faster_encoder_and_a_larger_unit_need_more_rows_to_copy():
    local, remote = open_store("/nowhere"), open_store("memory://nowhere")
    small, large = (
        vector_unit(0, FileRef(path="unit", rows=1, bytes=size, sha256="0")) for size in (1 << 20, 1 << 26)
    )
    assert is_copying_faster(local, large, 1, "cuda")
    assert is_copying_faster(remote, small, 20, "cpu")
    assert not is_copying_faster(remote, small, 20, "cuda")
    assert not is_copying_faster(remote, large, 20, "cpu")
