"""A unit during which the GPU runs out of memory has vectors of one numerics_id, and the change is said."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

from pipeline.flows.encode.unit import EncodeUnit, _UnitEncoding
from pipeline.flows.encode.worker_stats import WorkerStats
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from tests.gpu.files import write_unit
from tests.gpu.scale import texts_of
from tests.models.folders import save_folder


def encoding_of(store: Store, folder: Path, max_tokens: int) -> _UnitEncoding:
    settings, encode = EncoderSettings(path=str(folder)), EncodeSettings(max_tokens=max_tokens)
    encoder = load_encoder(settings, encode, "cpu")
    unit = write_unit(store, 0, texts_of(1_000, 1, 4))
    task = EncodeUnit(store, settings, encode, encoder.space_id, "id")
    return _UnitEncoding(task, encoder, unit, WorkerStats())


def test_all_vectors_of_a_unit_come_from_passes_of_one_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = save_folder(tmp_path, "bert")
    small = encoding_of(open_store(tmp_path / "small"), folder, 128)
    expected = small.run(isolated=False)
    large = encoding_of(open_store(tmp_path / "large"), folder, 256)
    numerics, embedding, passes = large.encoder.numerics_id, F.embedding, []

    def scarce(ids, table):
        passes.append(len(ids))
        if len(passes) > 8 and len(ids) > 128:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return embedding(ids, table)

    monkeypatch.setattr(F, "embedding", scarce)
    record = large.run(isolated=False)
    assert passes.count(256) >= 8, "memory ran out in the middle of the unit"
    assert record.numerics_id == expected.numerics_id != numerics
    first, second = (
        pq.read_table(str(store.local(unit.path)))["vector"]
        for store, unit in ((small.task.store, expected), (large.task.store, record))
    )
    assert first == second
    [sentence] = large.stats.warnings
    assert "encode.max_tokens=256" in sentence
    assert "set encode.max_tokens=128" in sentence
