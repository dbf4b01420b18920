"""IS-BERT from its config to an encoder."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.word_vectors import words_of
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.new_transformer import write_transformer_folder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.settings.weights import TransformerSettings
from pipeline.train.metrics import read_metrics
from tests.flows.conftest import sentences
from tests.flows.train.training import Stop, losses, rank_of_config, train, write_sentences

CONFIG = Path(__file__).parents[3] / "jobs/configs/train/is-bert.yaml"


def test_the_config_trains_an_encoder_with_its_convolutions(tmp_path: Path, encoder: Path):
    rank = rank_of_config(
        CONFIG,
        tmp_path,
        "run",
        f"encoder.path={encoder}",
        f"train.data={write_sentences(tmp_path / 'sentences.parquet')}",
        "train.max_length=24",
        "train.optimizer.learning_rate=1e-3",
    )
    assert rank.plan.steps == 3
    train(rank)
    lines = read_metrics(rank.run.store)
    assert set(lines[-1].parts) == {"jensen_shannon"}
    assert all(line.uniformity is not None and -8 < line.uniformity <= 0 for line in lines if line.step)
    product = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings(), "cpu")
    assert (product.folder.pooling, product.dim) == (("ngrams",), open_folder(rank.encoder).dim)
    vectors = product.encode(sentences(8, seed=3))
    assert (vectors >= 0).all(), "means of rectified features"
    assert vectors.std(axis=0).max() > 0


def test_a_stopped_training_resumes_to_the_same_bits(tmp_path: Path, encoder: Path):
    write_sentences(tmp_path / "sentences.parquet")
    vectors = []
    for name, stops in (("whole", []), ("parts", [2])):
        rank = rank_of_config(
            CONFIG,
            tmp_path,
            name,
            f"encoder.path={encoder}",
            f"train.data={tmp_path / 'sentences.parquet'}",
            "train.checkpoint={steps: 1, minutes: null}",
        )
        for stop in stops:
            with pytest.raises(Stop):
                train(rank, stop)
        train(rank)
        product = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings(), "cpu")
        vectors.append(product.encode(sentences(8, seed=3)))
    np.testing.assert_array_equal(*vectors)


def write_new_transformer(folder: Path, texts: list[str]) -> Path:
    """Write a new Transformer of two layers for the words of `texts`, without pooling."""
    counts = Counter(word for text in texts for word in words_of(text))
    settings = TransformerSettings(width=96, layers=2, heads=4, vocabulary=8_000)
    write_transformer_folder(settings, counts, folder, seed=0)
    (folder / "modules.json").unlink()
    return folder


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_its_loss_falls_on_real_text(tmp_path: Path):
    """A new Transformer learns to find the n-grams of a sentence; the score on STS-B is measured beside."""
    data = Path(os.environ["MANTA_EVAL_DATA"])
    texts = pq.read_table(data / "captions" / "flickr30k_captions.parquet")["text"].to_pylist()[:20_000]
    pq.write_table(pa.table({"text": texts}), tmp_path / "captions.parquet")
    rank = rank_of_config(
        CONFIG,
        tmp_path,
        "real",
        f"encoder.path={write_new_transformer(tmp_path / 'new', texts)}",
        f"train.data={tmp_path / 'captions.parquet'}",
        "train.max_length=32",
        "train.optimizer.learning_rate=0.0005",
        "train.max_steps=300",
        "train.checkpoint={steps: 300, minutes: null}",
        f"train.dev={{uri: {data / 'sts' / 'STSB-dev.parquet'}, steps: 100}}",
    )
    train(rank)
    curve = losses(tmp_path / "trainings" / "real")
    scores = {line.step: line.dev for line in read_metrics(rank.run.store) if line.dev is not None}
    print(f"loss {np.mean(curve[:20]):.2f} to {np.mean(curve[-20:]):.2f}; STS-B dev {scores}")
    assert np.mean(curve[-20:]) < 0.7 * np.mean(curve[:20])
    assert list(scores) == [0, 100, 200, 300]
    assert len(set(scores.values())) == 4
