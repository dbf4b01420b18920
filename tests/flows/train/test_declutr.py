"""DeCLUTR from its config to an encoder: spans of documents and masked words train it."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForMaskedLM

from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import TrainedModel
from pipeline.settings import EncoderSettings
from pipeline.train.metrics import read_metrics
from tests.flows.conftest import sentences
from tests.flows.train.training import losses, rank_of_config, train

CONFIG = Path(__file__).parents[3] / "jobs/configs/train/declutr.yaml"


@pytest.fixture(autouse=True)
def _own_cache(cache: Path) -> None:
    """New encoders are built in a cache of the test's own."""


def write_documents(file: Path, documents: int = 32) -> Path:
    """Write documents of eight made-up sentences."""
    texts = [" ".join(sentences(8, seed)) for seed in range(documents)]
    pq.write_table(pa.table({"text": texts}), file)
    return file


def write_real_documents(file: Path, words: int = 128) -> Path:
    """Write the real documents of the evaluation data that have at least that many words."""
    table = pq.read_table(Path(os.environ["MANTA_EVAL_DATA"]) / "running" / "documents.parquet")
    grouped = table.group_by("doc_id", use_threads=False).aggregate([("text", "list")])
    joined = pc.binary_join(grouped["text_list"].combine_chunks(), " ").to_pylist()
    pq.write_table(pa.table({"text": [text for text in joined if len(text.split()) >= words]}), file)
    return file


def test_the_config_trains_spans_and_masked_words(tmp_path: Path, encoder: Path):
    rank = rank_of_config(
        CONFIG,
        tmp_path,
        "run",
        f"encoder.path={encoder}",
        f"train.data={write_documents(tmp_path / 'documents.parquet')}",
        "train.max_length=40",
    )
    assert rank.plan.steps == 2
    train(rank)
    assert set(read_metrics(rank.run.store)[-1].parts) == {"declutr.nt_xent", "masked_lm.masked_lm"}
    trained = open_folder(EncoderSettings(path=rank.run.encoder))
    assert trained.space_id != open_folder(rank.encoder).space_id
    assert AutoModelForMaskedLM.from_pretrained(trained.path).get_output_embeddings() is not None


@pytest.mark.slow
@pytest.mark.skipif(
    "MANTA_EVAL_DATA" not in os.environ, reason="MANTA_EVAL_DATA names the folder of evaluation data"
)
def test_it_learns_on_real_text(tmp_path: Path):
    """Train a new deep averaging network, which cannot predict masked words. The score on STS-B rises too."""
    sts = Path(os.environ["MANTA_EVAL_DATA"]) / "sts" / "STSB-dev.parquet"
    rank = rank_of_config(
        CONFIG,
        tmp_path,
        "real",
        f"train.data={write_real_documents(tmp_path / 'documents.parquet')}",
        "train.dan={width: 128, word_dim: 100, buckets: 16384, vocabulary: 5000}",
        "encoder.pooling=null",
        "train.objective={name: declutr, options: {shortest: 4, longest: 32}}",
        "train.max_length=32",
        "train.order.batch_rows=64",
        "train.optimizer={name: adam, learning_rate: 0.002}",
        "train.schedule={name: constant}",
        "train.max_steps=400",
        "train.epochs=10",
        "train.checkpoint={steps: 400, minutes: null}",
        f"train.dev={{uri: {sts}, steps: 100}}",
    )
    train(rank)
    curve, score = losses(tmp_path / "trainings" / "real"), rank.run.result().metrics["dev"]
    start = rank.dev.score(TrainedModel(load_trainable(open_folder(rank.encoder))))
    assert np.mean(curve[-20:]) < 0.7 * np.mean(curve[:20])
    assert score > start + 2
