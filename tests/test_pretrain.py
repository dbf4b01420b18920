"""The texts and the start of a pretraining are written once, and an earlier encoder can be the start."""

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings
from tests.benchmarks.pretrain import prepare
from tests.flows.conftest import sentences
from tests.models.folders import folder_of_language_model

SIZES = {"language": "english", "rows": None, "pieces": 300, "layers": 1, "width": 64}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty sentences in the three files of English, of which ten are in two files."""
    top, texts = tmp_path_factory.mktemp("data"), sentences(60)
    parts = (texts[:30], texts[20:40], texts[40:])
    for file, part in zip(
        ("captions/shards", "running/documents.parquet", "wiki/sentences.parquet"), parts, strict=True
    ):
        (top / file).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"text": part}), top / file)
    return top


def texts_of(folder: Path) -> list[list[str]]:
    return [pq.read_table(folder / name)["text"].to_pylist() for name in ("texts.parquet", "dev.parquet")]


def test_a_sentence_is_trained_on_or_held_out(data: Path, tmp_path: Path):
    prepare(tmp_path / "new", data, argparse.Namespace(**SIZES, start=None))
    trained, held_out = texts_of(tmp_path / "new")
    assert sorted({*trained, *held_out}) == sorted(set(sentences(60)))
    assert len(trained) + len(held_out) == len({*trained, *held_out})
    assert held_out


def test_an_encoder_is_trained_further_on_the_same_sentences(data: Path, tmp_path: Path):
    earlier = folder_of_language_model(tmp_path / "earlier")
    prepare(tmp_path / "new", data, argparse.Namespace(**SIZES, start=None))
    prepare(tmp_path / "more", data, argparse.Namespace(**SIZES, start=earlier))
    assert texts_of(tmp_path / "more") == texts_of(tmp_path / "new")
    spaces = {
        open_folder(EncoderSettings(path=str(path), pooling="mean")).space_id
        for path in (earlier, tmp_path / "more" / "start")
    }
    assert len(spaces) == 1


def test_an_earlier_preparation_is_kept(data: Path, tmp_path: Path):
    folder, given = tmp_path / "new", argparse.Namespace(**SIZES, start=None)
    prepare(folder, data, given)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    prepare(folder, data, given)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
