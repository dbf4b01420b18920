"""Multi-task training from the config of the Universal Sentence Encoder: three tasks with their own rows."""

import os
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.flows.train.rank import TrainRank
from pipeline.flows.train.train import open_training
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import TrainedModel
from pipeline.settings import Job
from pipeline.settings.training import ObjectiveSettings, SourceSettings, TrainSettings
from pipeline.train.metrics import read_metrics
from tests.flows.train.test_use import write_conversations
from tests.flows.train.training import (
    assert_resumes_to_the_same_bits,
    losses,
    rank_of_config,
    train,
    write_books,
    write_caption_pairs,
    write_running_text,
)
from tests.train.topics import write_nli

CONFIG = Path(__file__).parents[3] / "jobs/configs/train/use-multitask.yaml"
NAMES = ("sentences", "conversations", "inference")
PARTS = {
    "sentences": {"skip_thought.previous", "skip_thought.next"},
    "conversations": {"input_response.info_nce"},
    "inference": {"classification.cross_entropy"},
}


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """New encoders are built in a cache of the test's own."""


def data_of(*files: Path) -> str:
    """Return the override that makes the files the sources of the three tasks."""
    sources = (f"{{uri: {file}, name: {name}}}" for file, name in zip(files, NAMES, strict=True))
    return f"train.data=[{', '.join(sources)}]"


def rank_for(folder: Path, name: str = "run", *overrides: str) -> TrainRank:
    """Return the training of the config, made small: 18 steps, six of each task."""
    files = (
        write_books(folder / "books.parquet"),
        write_conversations(folder / "conversations.parquet"),
        write_nli(folder / "nli.parquet"),
    )
    small = (
        data_of(*files),
        "train.dan={width: 16, word_dim: 8, buckets: 512}",
        "train.order.batch_rows=16",
        "train.optimizer.learning_rate=0.01",
        "train.max_steps=18",
    )
    return rank_of_config(CONFIG, folder, name, *small, *overrides)


def test_each_step_trains_one_task_and_a_stopped_training_resumes_to_the_same_bits(tmp_path: Path):
    whole, parts = rank_for(tmp_path), rank_for(tmp_path, "parts")
    sources = [batch.source for batch in islice(whole.plan.order.batches(0), 18)]
    assert Counter(sources) == dict.fromkeys(NAMES, 6)
    assert_resumes_to_the_same_bits(whole, parts, 7)
    found = [set(line.parts) for line in read_metrics(whole.run.store) if line.parts]
    assert found == [PARTS[source] for source in sources]
    curve = np.array(losses(tmp_path / "trainings" / "run"))
    for name in NAMES:
        own = curve[[source == name for source in sources]]
        assert own[-2:].mean() < own[:2].mean(), name


def test_words_of_all_sources_are_known(tmp_path: Path):
    known = open_folder(rank_for(tmp_path).encoder).tokenizer().vocabulary()
    for file, column in (("books", "text"), ("conversations", "positive"), ("nli", "hypothesis")):
        words = pq.read_table(tmp_path / f"{file}.parquet")[column][5].as_py().split()
        assert set(words) <= set(known), file


def test_definitions_of_trainings_name_sources_only_if_objectives_are_bound_to_them(tmp_path: Path):
    """Trainings that were defined before these settings existed keep their names."""
    bound = rank_for(tmp_path).run.definition
    assert [source["name"] for source in bound["data"]] == list(NAMES)
    assert [term["source"] for term in bound["train"]["objective"]] == list(NAMES)
    data = SourceSettings(uri=str(write_conversations(tmp_path / "pairs.parquet")))
    plain = TrainSettings(data=(data,), objective=(ObjectiveSettings(name="supervised"),), root=str(tmp_path))
    settings = plain.model_copy(update={"word_table": plain.word_table.model_copy(update={"dim": 4})})
    definition = open_training(Job(train=settings))[1].definition
    assert "name" not in definition["data"][0]
    assert definition["train"]["objective"] == [{"name": "supervised", "weight": 1.0, "options": {}}]


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_it_learns_on_real_text(tmp_path: Path):
    """Train on running text, pairs of captions and SNLI. The score on STS-B rises too."""
    data = Path(os.environ["MANTA_EVAL_DATA"])
    files = (
        write_running_text(tmp_path / "real.parquet", 30_000),
        write_caption_pairs(tmp_path / "captions.parquet"),
        data / "nli" / "snli.parquet",
    )
    rank = rank_for(
        tmp_path,
        "real",
        data_of(*files),
        "train.dan={width: 64, word_dim: 64, buckets: 16384, vocabulary: 2000}",
        "train.order.batch_rows=64",
        "train.max_length=30",
        "train.optimizer.learning_rate=0.002",
        "train.max_steps=450",
        "train.checkpoint={steps: 450, minutes: null}",
        f"train.dev={{uri: {data / 'sts' / 'STSB-dev.parquet'}, steps: 150}}",
    )
    train(rank)
    curve = np.array(losses(tmp_path / "trainings" / "real"))
    sources = [batch.source for batch in islice(rank.plan.order.batches(0), 450)]
    for name in NAMES:
        own = curve[[source == name for source in sources]]
        assert own[-20:].mean() < 0.97 * own[:20].mean(), name
    start = rank.dev.score(TrainedModel(load_trainable(open_folder(rank.encoder))))
    assert rank.run.result().metrics["dev"] > start
