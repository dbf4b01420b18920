"""Paragraph Vector from its config to a night: trained, resumed, stored and searched."""

import os
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.errors import ConfigError
from pipeline.flows.train.plan import check_settings
from pipeline.flows.train.rank import TrainRank
from pipeline.flows.train.train import open_training
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import TrainedModel
from pipeline.settings import EncoderSettings, Job
from tests.flows.conftest import sentences
from tests.flows.train.training import (
    assert_nights_store_and_search,
    assert_resumes_to_the_same_bits,
    losses,
    rank_of_config,
    train,
    write_sts,
)

CONFIG = Path(__file__).parents[3] / "jobs/configs/train/paragraph-vector.yaml"


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """New paragraph vectors are built in a cache of the test's own."""


def rank_for(folder: Path, name: str = "run", *overrides: str) -> TrainRank:
    """Return the training of the config, made small: 12 steps over 96 rows."""
    pq.write_table(pa.table({"text": sentences(96)}), folder / "texts.parquet")
    small = (
        f"train.data={folder / 'texts.parquet'}",
        "train.paragraph_vectors={dim: 6, window: 3, steps: 10}",
        "train.epochs=2",
    )
    return rank_of_config(CONFIG, folder, name, *small, *overrides)


def test_a_stopped_training_resumes_to_the_same_bits(tmp_path: Path):
    dev = f"train.dev={{uri: {write_sts(tmp_path / 'sts.parquet')}, steps: 6, keep: last}}"
    whole, parts = rank_for(tmp_path, "run", dev), rank_for(tmp_path, "parts", dev)
    assert whole.plan.steps == 12
    assert_resumes_to_the_same_bits(whole, parts, 6)
    assert losses(tmp_path / "trainings" / "run")[-1] < losses(tmp_path / "trainings" / "run")[0]


@pytest.mark.usefixtures("cluster")
def test_nights_store_and_search_the_vectors_of_the_trained_encoder(tmp_path: Path):
    rank = rank_for(tmp_path)
    train(rank)
    folder = open_folder(EncoderSettings(path=rank.run.encoder))
    assert (folder.dim, folder.family) == (12, "paragraph")
    assert_nights_store_and_search(tmp_path, rank, rows=(120,))


def test_several_sources_have_to_be_blended_so_that_rows_are_numbered_across_sources(tmp_path: Path):
    two = f"train.data=[{tmp_path / 'texts.parquet'}, {tmp_path / 'texts.parquet'}]"
    settings = rank_for(tmp_path, "two", two, "train.mixing=blend").settings
    check_settings(settings)
    with pytest.raises(ConfigError, match=r"blend, because paragraph_vector has weights for each row"):
        check_settings(settings.model_copy(update={"mixing": "alternate"}))


def test_each_row_of_blended_sources_has_a_vector_of_its_own(tmp_path: Path):
    two = f"train.data=[{tmp_path / 'texts.parquet'}, {tmp_path / 'texts.parquet'}]"
    rank = rank_for(tmp_path, "two", two, "train.mixing=blend", "train.epochs=1")
    assert open_folder(rank.encoder).config["paragraphs"] == 192
    rows = np.concatenate([batch.table["row"] for batch in islice(rank.plan.order.batches(0), 12)])
    assert sorted(rows) == list(range(192))


def test_definitions_of_trainings_without_paragraph_vectors_do_not_mention_them(tmp_path: Path):
    """Trainings that were defined before these settings existed keep their names."""
    run = rank_for(tmp_path, "new").run
    assert run.definition["train"]["paragraph_vectors"]["dim"] == 6
    data = (f"train.data={tmp_path / 'texts.parquet'}", f"train.root={tmp_path}")
    assert "paragraph_vectors" not in open_training(load_settings(Job, None, data))[1].definition["train"]


def test_two_new_encoders_are_refused():
    with pytest.raises(ConfigError, match=r"word_table\.dim is 9, and paragraph_vectors\.dim is 400"):
        load_settings(Job, CONFIG, ("train.word_table.dim=9",))


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_it_learns_on_real_text(tmp_path: Path):
    """Train on captions, which have few distinct words. The score on STS-B exceeds that of the start, too."""
    data = Path(os.environ["MANTA_EVAL_DATA"])
    captions = pq.read_table(data / "captions" / "flickr30k_captions.parquet")
    pq.write_table(captions.select(["text"]).slice(0, 6_000), tmp_path / "captions.parquet")
    rank = rank_for(
        tmp_path,
        "real",
        f"train.data={tmp_path / 'captions.parquet'}",
        "train.paragraph_vectors={dim: 50, window: 4, context: average, vocabulary: 2000, steps: 60}",
        "train.order.batch_rows=200",
        "train.optimizer={name: adam, learning_rate: 0.01}",
        "train.schedule.final=0.001",
        "train.epochs=12",
        f"train.dev={{uri: {data / 'sts' / 'STSB-dev.parquet'}, steps: 360}}",
    )
    train(rank)
    curve, score = losses(tmp_path / "trainings" / "real"), rank.run.result().metrics["dev"]
    start = rank.dev.score(TrainedModel(load_trainable(open_folder(rank.encoder))))
    assert np.mean(curve[-20:]) < 0.8 * np.mean(curve[:20])
    assert score > start + 10
