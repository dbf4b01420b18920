"""word2vec from its config to nights: word vectors are trained, resumed, stored and searched."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.flows.train.rank import TrainRank
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.flows.conftest import sentences
from tests.flows.train.training import (
    assert_nights_store_and_search,
    assert_resumes_to_the_same_bits,
    losses,
    rank_of_config,
    train,
)

CONFIG = Path(__file__).parents[3] / "jobs/configs/train/word2vec.yaml"
MODELS = ("cbow", "skipgram")
KINDS = (  # frequent words of captions, by meaning
    "red blue green yellow white black orange pink",
    "two three four five six several",
    "man woman boy girl child lady person",
    "shirt jacket hat pants dress coat jeans",
    "street road sidewalk park beach field grass",
    "sits stands walks runs jumps rides",
)


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """New word vectors are built in a cache of the test's own."""


def rank_for(folder: Path, name: str = "run", *overrides: str) -> TrainRank:
    """Return the training of the config, made small: 12 steps over 96 rows."""
    pq.write_table(pa.table({"text": sentences(96)}), folder / "texts.parquet")
    small = (
        f"train.data={folder / 'texts.parquet'}",
        "train.word_table.dim=12",
        "train.order.batch_rows=16",
        "train.epochs=2",
    )
    return rank_of_config(CONFIG, folder, name, *small, *overrides)


def objective_override(model: str) -> str:
    return f"train.objective={{name: word2vec, options: {{model: {model}, subsample: 0.1}}}}"


@pytest.mark.parametrize("model", MODELS)
def test_a_stopped_training_resumes_to_the_same_bits_and_learns(model: str, tmp_path: Path):
    whole, parts = (rank_for(tmp_path, name, objective_override(model)) for name in ("run", "parts"))
    assert whole.plan.steps == 12
    assert_resumes_to_the_same_bits(whole, parts, 6)
    result = whole.run.result()
    assert result.metrics["end_loss"] < result.metrics["start_loss"]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_nights_extend_releases_by_sums_of_word_vectors(tmp_path: Path):
    rank = rank_for(tmp_path)
    train(rank)
    folder = open_folder(EncoderSettings(path=rank.run.encoder))
    assert (folder.family, folder.pooling) == ("words", ("sum",))
    assert_nights_store_and_search(tmp_path, rank, rows=(120, 150))


def test_the_text_file_in_the_folder_gives_vectors_of_the_same_directions(tmp_path: Path):
    """The encoder of the folder sums the word vectors, and that of the text file averages them."""
    rank = rank_for(tmp_path)
    train(rank)
    summed, averaged = (
        load_encoder(EncoderSettings(path=path), EncodeSettings()).encode(sentences(10))
        for path in (rank.run.encoder, f"{rank.run.encoder}/word2vec.txt")
    )
    cosines = (summed * averaged).sum(1) / np.linalg.norm(summed, axis=1) / np.linalg.norm(averaged, axis=1)
    np.testing.assert_allclose(cosines, 1, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
@pytest.mark.parametrize("model", MODELS)
def test_words_of_one_kind_become_neighbours_on_real_captions(model: str, tmp_path: Path):
    """The loss falls, and the nearest word is of the same kind more often than with random vectors.

    STS would not show it: sums of random vectors already compare the words that two sentences share, and a
    training on so little text does not improve on that.
    """
    captions = Path(os.environ["MANTA_EVAL_DATA"]) / "captions" / "flickr30k_captions.parquet"
    pq.write_table(pq.read_table(captions).select(["text"]).slice(0, 20_000), tmp_path / "captions.parquet")
    rank = rank_for(
        tmp_path,
        "real",
        f"train.data={tmp_path / 'captions.parquet'}",
        "train.word_table={dim: 64, vocabulary: 3000}",
        f"train.objective={{name: word2vec, options: {{model: {model}, subsample: 0.0001}}}}",
        "train.order.batch_rows=256",
        "train.optimizer={name: adam, learning_rate: 0.01}",
        "train.max_steps=300",
        "train.epochs=5",
    )
    train(rank)
    curve = losses(tmp_path / "trainings" / "real")
    assert np.mean(curve[-20:]) < 0.8 * np.mean(curve[:20])
    start, trained = (
        proportion_of_same_kind(load_encoder(EncoderSettings(path=path), EncodeSettings()))
        for path in (rank.encoder.path, rank.run.encoder)
    )
    assert trained > start + 0.2


def proportion_of_same_kind(encoder: Encoder) -> float:
    """Return the proportion of KINDS' words whose nearest other word, by cosine, is of the same kind."""
    words = [word for kind in KINDS for word in kind.split()]
    kinds = np.repeat(np.arange(len(KINDS)), [len(kind.split()) for kind in KINDS])
    vectors = encoder.encode(words)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -1)
    return float((kinds[cosines.argmax(axis=1)] == kinds).mean())
