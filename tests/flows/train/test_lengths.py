"""train.max_length truncates the texts of a training, and encoder.max_length those of the trained encoder."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sentence_transformers import SentenceTransformer

from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.train.checkpoint import load_state
from pipeline.train.metrics import read_metrics
from tests.conftest import CommandResult
from tests.flows.conftest import sentences
from tests.flows.train.training import rank_of, train, training_arguments


def write_long(file: Path) -> list[str]:
    """Write texts of more tokens than the encoders of these tests read."""
    texts = [" ".join(sentences(30, seed)) for seed in range(16)]
    pq.write_table(pa.table({"text": texts}), file)
    return texts


@pytest.mark.parametrize("train_length", [None, 12])
@pytest.mark.parametrize("encoder_length", [None, 40, 66])
def test_the_length_of_training_texts_does_not_limit_the_trained_encoder(
    tmp_path: Path, encoder: Path, train_length: int | None, encoder_length: int | None
):
    long = write_long(tmp_path / "sentences.parquet")
    lengths = {"train.max_length": train_length, "encoder.max_length": encoder_length}
    overrides = (f"{name}={length}" for name, length in lengths.items() if length)
    rank = rank_of(tmp_path, encoder, "train.max_steps=1", *overrides)
    train(rank)
    (line,) = (line for line in read_metrics(rank.run.store) if line.loss is not None)
    assert line.tokens_per_s is not None
    texts_of_step = 2 * 8  # two views of eight texts
    tokens = texts_of_step * (train_length or encoder_length or 64)
    assert line.tokens_per_s * line.seconds == pytest.approx(tokens)
    library = SentenceTransformer(rank.run.encoder, device="cpu")
    trained = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings(), "cpu")
    found_lengths = library.max_seq_length, trained.max_length, rank.run.encoder_length()
    assert found_lengths == 3 * (encoder_length or 64,)
    state = load_state(next(Path(rank.run.encoder).parent.glob("checkpoints/*.pt")))["objective"]
    module = load_trainable(open_folder(rank.encoder)).eval()
    names = (name for name in state if name.startswith("encoder."))
    module.load_state_dict({name.removeprefix("encoder."): state[name] for name in names})
    tokens_of_texts = load_tokenizer(encoder, encoder_length or 64)(long)
    with torch.no_grad():
        np.testing.assert_allclose(trained.encode(long), module(tokens_of_texts), atol=1e-5)
    np.testing.assert_allclose(trained.encode(long), library.encode(long), atol=1e-5)


def test_metrics_of_the_same_rows_are_measured_at_the_length_of_the_encoder(tmp_path: Path, encoder: Path):
    write_long(tmp_path / "sentences.parquet")

    def metrics_before_the_first_step(name: str, *overrides: str) -> dict[str, float]:
        rank = rank_of(tmp_path, encoder, f"train.name={name}", "train.max_steps=1", *overrides)
        train(rank)
        return next(line.same_rows for line in read_metrics(rank.run.store) if line.same_rows)

    whole = metrics_before_the_first_step("whole")
    short = ("train.max_length=12", "encoder.max_length=12")
    assert metrics_before_the_first_step("trained", short[0]) == whole
    assert metrics_before_the_first_step("encoded", *short) != whole


@pytest.mark.parametrize(("length", "is_mentioned"), [(12, True), (64, False)])
def test_the_command_mentions_both_lengths_if_they_differ(
    tmp_path: Path, encoder: Path, manta: Callable[..., CommandResult], length: int, is_mentioned: bool
):
    overrides = ("train.max_steps=1", f"train.max_length={length}")
    train(rank_of(tmp_path, encoder, *overrides))
    result = manta("train", *training_arguments(tmp_path, encoder), *overrides)
    assert result.code == 0
    lines = result.out.splitlines()
    assert ("reads    64 tokens of a text; the training read 12" in lines) == is_mentioned
