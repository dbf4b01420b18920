"""Texts come in the order of their addresses, from a disk and an object store; damaged units are named."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.index.files.texts import MissingTexts, Texts
from pipeline.store.files.base import Store, sha256_of
from pipeline.store.files.open_store import open_store
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from tests.faults import FaultyProxy

ROWS = {0: 9_000, 3: 1, 7: 250}  # rows of each unit, by ordinal; the first unit is read in several batches


def text_of(ordinal: int, row: int) -> str:
    """Return the text of a row."""
    return f"text {row} of unit {ordinal}"


def store_units(store: Store, scratch: Path) -> list[VectorUnit]:
    """Store units of texts."""
    units = []
    for ordinal, rows in ROWS.items():
        texts = pa.array([text_of(ordinal, row) for row in range(rows)], pa.large_string())
        pq.write_table(
            pa.table({"id": pa.array(range(rows)), "text": texts, "long": ["x" * 50] * rows}),
            scratch / "unit",
            row_group_size=4_000,
        )
        reference = FileRef(
            path=f"units/corpus/{ordinal}.parquet",
            sha256=sha256_of(scratch / "unit"),
            bytes=(scratch / "unit").stat().st_size,
        )
        store.put(scratch / "unit", reference.path)
        vectors = {"path": "", "record": "", "sha256": "", "space_id": "", "numerics_id": ""}
        units.append(VectorUnit(ordinal=ordinal, rows=rows, corpus=reference, **vectors))
    return units


def addresses(*pairs: tuple[int, int]) -> np.ndarray:
    """Return addresses of rows."""
    return np.array([ordinal << 32 | row for ordinal, row in pairs], dtype=np.int64)


def test_texts_are_returned_in_the_order_of_addresses(tmp_path: Path):
    store = open_store(tmp_path / "root")
    texts = Texts(store, store_units(store, tmp_path))
    rng = np.random.default_rng(0)
    positions = [
        (int(ordinal), int(rng.integers(ROWS[int(ordinal)]))) for ordinal in rng.choice(list(ROWS), 300)
    ]
    positions += [(0, 0), (0, 8_999), (7, 249), (0, 0)]
    assert texts.take(addresses(*positions)).to_pylist() == [text_of(*pair) for pair in positions]
    assert texts.take(addresses()).to_pylist() == []


def test_only_needed_remote_units_are_copied_and_only_once(
    faulty: FaultyProxy, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    store = open_store(f"{s3}/{tmp_path.name}")
    texts = Texts(store, store_units(store, tmp_path))
    faulty.calls.clear()
    for _ in range(3):
        assert texts.take(addresses((7, 5), (0, 4_500))).to_pylist() == [text_of(7, 5), text_of(0, 4_500)]
    assert faulty.calls["GET"] == 2


def test_missing_and_damaged_units_are_named(tmp_path: Path):
    store = open_store(tmp_path / "root")
    units = store_units(store, tmp_path)
    with pytest.raises(MissingTexts, match="corpus unit 9, which an answer is from"):
        Texts(store, units).take(addresses((9, 0)))
    with pytest.raises(MissingTexts, match="expected a row with number 250, found fewer rows"):
        Texts(store, units).take(addresses((7, 3), (7, 250)))
    (tmp_path / "root" / "units" / "corpus" / "3.parquet").unlink()
    with pytest.raises(
        MissingTexts,
        match=r"3\.parquet: expected a corpus unit of the release, found no such file; search without texts",
    ):
        Texts(store, units).take(addresses((3, 0)))
    damaged = tmp_path / "root" / "units" / "corpus" / "7.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match="sha256"):
        Texts(store, units).take(addresses((7, 0)))
    with pytest.raises(MissingTexts, match="a Parquet file with a column text"):
        Texts(store, units, verify=False).take(addresses((7, 0)))
