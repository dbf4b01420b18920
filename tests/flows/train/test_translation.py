"""The NMT encoder from its config to nights: a new GRU is trained to be translated, resumed and searched."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.flows.train.rank import TrainRank
from pipeline.index.search import open_release
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.word_vectors import read_words
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from tests.flows.conftest import job_arguments, sentences, write_corpus
from tests.flows.train.test_rank import Stop, train
from tests.flows.train.training import losses, unstarted, word_entropy

CONFIG = Path(__file__).parents[3] / "jobs/configs/train/nmt.yaml"


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """New encoders are built in a cache of the test's own."""


def write_translations(file: Path) -> Path:
    """240 made-up sentences, and as their translations the words in reverse order with another ending."""
    texts = sentences(240)
    translations = [" ".join(f"{word}en" for word in reversed(text.rstrip(".").split())) for text in texts]
    pq.write_table(pa.table({"english": texts, "other": translations}), file)
    return file


def rank_for(folder: Path, name: str = "run", *overrides: str) -> TrainRank:
    """Return the training of the config, made small: 15 steps over 240 pairs."""
    file = write_translations(folder / "pairs.parquet")
    small = (
        f"train.data={{uri: {file}, columns: {{text: english, translation: other}}}}",
        "train.recurrent.width=12",
        "train.recurrent.word_dim=8",
        "train.order.batch_rows=16",
        "train.optimizer.learning_rate=0.02",
    )
    return unstarted(CONFIG, folder, name, *small, *overrides)


def test_a_stopped_training_resumes_to_the_same_bits_and_learns(tmp_path: Path):
    whole, parts = rank_for(tmp_path), rank_for(tmp_path, "parts")
    assert whole.plan.steps == 15
    train(whole)
    with pytest.raises(Stop):
        train(parts, 6)
    train(parts)
    spaces = [open_folder(EncoderSettings(path=rank.run.encoder)).space_id for rank in (whole, parts)]
    assert spaces[0] == spaces[1] != open_folder(whole.encoder).space_id
    result = whole.run.result()
    assert result.metrics["end_loss"] < 0.95 * result.metrics["start_loss"]


@pytest.mark.usefixtures("cluster")
def test_nights_store_and_search_the_vectors_of_the_product(tmp_path: Path):
    rank = rank_for(tmp_path)
    train(rank)
    product = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings())
    assert (product.folder.family, product.folder.pooling, product.folder.dim) == ("recurrent", ("last",), 12)
    assert {"dog", "dogen"} <= set(read_words(Path(rank.run.encoder)))  # one vocabulary
    arguments = (
        *job_arguments(tmp_path, Path(rank.run.encoder)),
        "gates.recall_at_10=",
        "gates.unknown_tokens=",
    )
    for rows in (100, 120):
        write_corpus(tmp_path / "corpus", rows)
        nightly(load_settings(Job, None, arguments), Stages())
        release = open_release(tmp_path / "releases")
        assert (len(release), release.space_id) == (rows, product.space_id)
    text = sentences(120)[110]
    np.testing.assert_allclose(release.encode([text]), product.encode([text]), atol=1e-5)
    assert release.search(text, k=3)["text"][0].as_py() == text


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_captions_are_translated_better_than_by_the_frequencies_of_words(tmp_path: Path):
    """English to German; no caption is read twice, so every step's loss is that of rows not trained on."""
    data = Path(os.environ["MANTA_EVAL_DATA"])
    pairs = pq.read_table(data / "parallel/multi30k.en-de.parquet", columns=["src", "tgt"])
    pq.write_table(pairs, tmp_path / "real.parquet")
    rank = rank_for(
        tmp_path,
        "real",
        f"train.data={{uri: {tmp_path / 'real.parquet'}, columns: {{text: src, translation: tgt}}}}",
        "train.recurrent={cell: gru, width: 64, directions: 1, word_dim: 32, vocabulary: 2000}",
        "train.order.batch_rows=64",
        "train.optimizer.learning_rate=0.01",
        "train.max_length=30",
        "train.max_steps=300",
        "train.checkpoint={steps: 150, minutes: null}",
    )
    train(rank)
    texts = pairs["tgt"].to_pylist()
    tokenizer = open_folder(EncoderSettings(path=rank.run.encoder)).tokenizer()
    entropy = word_entropy(tokenizer, texts, texts) / len(texts)
    found = losses(tmp_path / "trainings/real")
    assert found[0] > 1.3 * entropy
    assert np.mean(found[-20:]) < 0.9 * entropy
