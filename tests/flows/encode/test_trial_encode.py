"""Texts sampled by several tasks are those of lowest hash among all live rows."""

from hashlib import sha256

import numpy as np
import pyarrow as pa
import pytest

from pipeline.flows.encode import trial_encode
from pipeline.flows.encode.trial_encode import SampleTexts, sample_texts
from pipeline.flows.workers.interface import Workers
from pipeline.settings import ClusterSettings
from pipeline.stats.sample import sample_by_key
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.records.dead import Dead
from pipeline.store.records.units import CorpusUnit
from pipeline.store.records.write_once import store_table_by_content
from pipeline.store.rows.address import address_of
from pipeline.store.rows.schema import corpus_schema

_UNITS, _ROWS = 70, 20  # more units than one task reads


def key_of(text: str) -> bytes:
    return sha256(text.encode()).digest()[:16]


def write_unit(store: Store, ordinal: int, rows: int = _ROWS) -> tuple[CorpusUnit, list[str]]:
    texts = [f"text {row} of unit {ordinal}{'.' * (row % 3)}" for row in range(rows)]
    columns = [
        pa.array([f"{ordinal}-{row}" for row in range(rows)]),
        pa.array(texts, pa.large_string()),
        pa.array([key_of(text) for text in texts], pa.binary(16)),
        pa.array(["file"] * rows),
        pa.array(range(rows), pa.int64()),
    ]
    table = pa.Table.from_arrays(columns, schema=corpus_schema(pa.string()))
    file = store_table_by_content(store, table, f"units/corpus/{ordinal}")
    return CorpusUnit(name=str(ordinal), ordinal=ordinal, **dict(file)), texts


@pytest.mark.parametrize("units", [0, 1, _UNITS])
@pytest.mark.parametrize(("count", "characters"), [(30, 1), (5, 21), (5, 1_000)])
def test_texts_are_those_of_lowest_hash(cluster: Workers, tmp_path, units: int, count: int, characters: int):
    store, rng = open_store(tmp_path), np.random.default_rng(0)
    written = [write_unit(store, ordinal) for ordinal in range(units)]
    dead = {(ordinal, int(row)) for ordinal in range(units) for row in rng.choice(_ROWS, 3, replace=False)}
    addresses = np.array(sorted(address_of(*each) for each in dead), dtype=np.int64)
    live = [
        text
        for unit, texts in written
        for row, text in enumerate(texts)
        if (unit.ordinal, row) not in dead and len(text) >= characters
    ]
    chosen = sample_by_key([key_of(text) for text in live], 4 * count) if live else []
    expected = sorted((live[number] for number in chosen), key=key_of)[:count]
    sample = SampleTexts(store, count, characters, Dead(addresses).store_in(store, "dead"))
    found = sample_texts(cluster, ClusterSettings(), sample, [unit for unit, _ in written])
    assert list(found) == expected


def test_many_units_are_sampled_at_rows_of_equal_distance(
    cluster: Workers, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    """Rows 0, 1/7, 2/7 ... of all rows are in the units that texts come from, so none is read but these."""
    monkeypatch.setattr(trial_encode, "MAX_SAMPLED_UNITS", 7)
    monkeypatch.setattr(trial_encode, "_GROUP_UNITS", 2)
    store = open_store(tmp_path)
    written = [write_unit(store, ordinal, rows=1 + ordinal % 5) for ordinal in range(50)]
    rows = [(unit, text) for unit, texts in written for text in texts]
    ordinals = {rows[len(rows) * number // 7][0].ordinal for number in range(7)}
    for unit, _ in written:
        if unit.ordinal not in ordinals:
            store.delete(unit.path)
    expected = sorted((text for unit, text in rows if unit.ordinal in ordinals), key=key_of)
    found = sample_texts(cluster, ClusterSettings(), SampleTexts(store, 1_000), [unit for unit, _ in written])
    assert list(found) == expected
    assert len(ordinals) == 7
