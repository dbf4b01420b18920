"""Skip-Thought from its config to nights: a new GRU is trained, resumed, stored, joined and searched."""

import os
from itertools import islice
from pathlib import Path

import numpy as np
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
from tests.flows.train.training import (
    losses,
    unstarted,
    weights,
    word_entropy,
    write_books,
    write_running_text,
)

CONFIG = Path(__file__).parents[3] / "jobs/configs/train/skip-thought.yaml"


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """New encoders are built in a cache of the test's own."""


def rank_for(folder: Path, name: str = "run", *overrides: str) -> TrainRank:
    """Return the only rank of the config's training, made small: 14 steps over 228 triples."""
    small = (
        f"train.data={write_books(folder / 'books.parquet')}",
        "train.recurrent.width=12",
        "train.recurrent.word_dim=8",
        "train.order.batch_rows=16",
        "train.optimizer.learning_rate=0.02",
    )
    return unstarted(CONFIG, folder, name, *small, *overrides)


def encoder_at(path: str):
    return load_encoder(EncoderSettings(path=path), EncodeSettings())


def test_a_stopped_training_resumes_to_the_same_bits_and_learns(tmp_path: Path):
    whole, parts = rank_for(tmp_path), rank_for(tmp_path, "parts")
    assert whole.plan.steps == 14
    train(whole)
    with pytest.raises(Stop):
        train(parts, 6)
    train(parts)
    spaces = [open_folder(EncoderSettings(path=rank.run.encoder)).space_id for rank in (whole, parts)]
    assert spaces[0] == spaces[1] != open_folder(whole.encoder).space_id
    result = whole.run.result()
    assert result.metrics["end_loss"] < 0.95 * result.metrics["start_loss"]
    assert losses(tmp_path / "trainings" / "run")[-1] < losses(tmp_path / "trainings" / "run")[0]


def test_two_trainings_are_combined_side_by_side(tmp_path: Path):
    """uni-skip, then bi-skip with the first beside it: combine-skip."""
    short = "train.max_steps=3"
    uni = rank_for(tmp_path, "uni", short)
    train(uni)
    bi = ("train.recurrent.directions=2", "train.recurrent.width=6")
    objective = f"{{name: skip_thought, options: {{beside: {uni.run.encoder}}}}}"
    both = rank_for(tmp_path, "both", short, *bi, f"train.objective={objective}")
    train(both)
    alone = rank_for(tmp_path, "bi", short, *bi)
    train(alone)
    folder, texts = open_folder(EncoderSettings(path=both.run.encoder)), sentences(9, seed=3)
    assert [part.pooling for part in folder.parts] == [("ends",), ("last",)]
    assert folder.dim == 24
    expected = [encoder_at(rank.run.encoder).encode(texts) for rank in (alone, uni)]
    np.testing.assert_array_equal(encoder_at(both.run.encoder).encode(texts), np.hstack(expected))


def test_the_vocabulary_of_the_product_is_expanded(tmp_path: Path):
    """Expansion adds words after the last step: all other weights equal those of a training without it."""
    short = "train.max_steps=3"
    words = ("dog", "man", "woman", "zebra")
    lines = [f"{word} {number} {number**2 % 5}" for number, word in enumerate(words, start=1)]
    (tmp_path / "vectors.txt").write_text("\n".join(lines))
    plain = rank_for(tmp_path, "plain", short)
    expanded = rank_for(tmp_path, "expanded", short, f"train.expand.words={tmp_path / 'vectors.txt'}")
    assert "expand" not in plain.run.definition["train"]
    for rank in (plain, expanded):
        train(rank)
    before, after = (Path(rank.run.encoder) for rank in (plain, expanded))
    assert read_words(after) == [*read_words(before), "zebra"]
    for name, tensor in weights(before).items():
        np.testing.assert_array_equal(weights(after)[name][: len(tensor)], tensor)
    texts = ["A zebra.", "A dog."]
    known, unknown = encoder_at(str(after)).encode(texts), encoder_at(str(before)).encode(texts)
    assert np.abs(known - unknown)[0].max() > 1e-3
    np.testing.assert_array_equal(known[1], unknown[1])


@pytest.mark.usefixtures("cluster")
def test_nights_store_and_search_the_vectors_of_the_product(tmp_path: Path):
    rank = rank_for(tmp_path)
    train(rank)
    product = encoder_at(rank.run.encoder)
    folder = product.folder
    assert (folder.family, folder.pooling, folder.dim, folder.lower) == ("recurrent", ("last",), 12, True)
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
def test_real_text_is_predicted_better_than_by_the_frequencies_of_its_words(tmp_path: Path):
    """On rows that were not trained on; decoders that ignore their input have the entropy of the words."""
    real = write_running_text(tmp_path / "real.parquet")
    rank = rank_for(
        tmp_path,
        "real",
        f"train.data={real}",
        "train.recurrent={cell: gru, width: 48, directions: 1, word_dim: 32, vocabulary: 2000}",
        "train.order.batch_rows=64",
        "train.optimizer.learning_rate=0.01",
        "train.max_length=30",
        "train.max_steps=240",
        "train.checkpoint={steps: 120, minutes: null}",
    )
    train(rank)
    tokenizer = open_folder(EncoderSettings(path=rank.run.encoder)).tokenizer()
    tables = [batch.table for batch in islice(rank.plan.order.batches(rank.plan.steps), 4)]
    texts = [text for table in tables for role in ("previous", "next") for text in table[role].to_pylist()]
    found = rank.run.result().metrics
    counted = pq.read_table(real)["text"].to_pylist()
    entropy = word_entropy(tokenizer, counted, texts) / found["same_rows"]
    assert found["same_rows"] == 256, "rows that were measured before the training and after it"
    assert found["start_loss"] > 1.3 * entropy
    assert found["end_loss"] < 0.98 * entropy
