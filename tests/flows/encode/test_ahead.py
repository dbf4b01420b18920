"""With a GPU, vectors are written while the next ones are computed; the encoder here claims to have one."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.device import Device
from pipeline.flows.encode.unit import EncodeUnit, _UnitEncoding
from pipeline.flows.encode.worker_stats import WorkerStats
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.open_store import open_store
from tests.gpu.files import write_unit
from tests.gpu.scale import texts_of
from tests.models.folders import save_folder


@pytest.fixture
def encoding(tmp_path: Path) -> _UnitEncoding:
    """The encoding of a unit of several batches."""
    settings = EncoderSettings(path=str(save_folder(tmp_path, "bert")))
    store, encoder = open_store(tmp_path / "store"), load_encoder(settings, EncodeSettings(), "cpu")
    unit = write_unit(store, 0, texts_of(5_000, 1, 4))
    task = EncodeUnit(store, settings, EncodeSettings(), encoder.space_id, "id")
    return _UnitEncoding(task, encoder, unit, WorkerStats())


def write(encoding: _UnitEncoding, file: Path) -> bytes:
    encoding._write_vectors(encoding.encoder, file, {}, lambda rows: None)
    return file.read_bytes()


def test_the_file_is_the_same(encoding: _UnitEncoding, tmp_path: Path):
    expected = write(encoding, tmp_path / "one")
    encoding.encoder.arithmetic = replace(encoding.encoder.arithmetic, device=Device("cuda", 0))
    assert write(encoding, tmp_path / "other") == expected


def test_no_thread_goes_on_after_an_error_of_writing(encoding: _UnitEncoding, tmp_path: Path):
    encoding.encoder.arithmetic = replace(encoding.encoder.arithmetic, device=Device("cuda", 0))
    encoding.encoder.dim += 1  # so that the vectors do not fit into the schema
    with pytest.raises(Exception, match=r".") as caught:
        write(encoding, tmp_path / "file")
    assert "manta-prefetch" not in {thread.name for thread in threading.enumerate()}, caught.value
