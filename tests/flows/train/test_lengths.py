"""train.max_length truncates the texts of a training, and encoder.max_length those of its product."""

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
from tests.flows.train.test_rank import rank_of, train
from tests.flows.train.training import training_arguments


@pytest.mark.parametrize("trained", [None, 12])
@pytest.mark.parametrize("encoded", [None, 40, 66])
def test_the_length_of_training_texts_does_not_limit_the_product(
    tmp_path: Path, encoder: Path, trained: int | None, encoded: int | None
):
    long = write_long(tmp_path / "sentences.parquet")
    lengths = {"train.max_length": trained, "encoder.max_length": encoded}
    given = (f"{name}={length}" for name, length in lengths.items() if length)
    rank = rank_of(tmp_path, encoder, "train.max_steps=1", *given)
    train(rank)
    (line,) = (line for line in read_metrics(rank.run.store) if line.loss is not None)
    assert line.tokens_per_s is not None
    tokens = 2 * 8 * (trained or encoded or 64)
    assert line.tokens_per_s * line.seconds == pytest.approx(tokens), "two views of eight long texts"
    library = SentenceTransformer(rank.run.encoder, device="cpu")
    product = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings(), "cpu")
    assert library.max_seq_length == product.max_length == rank.run.encoder_length() == (encoded or 64)
    state = load_state(next(Path(rank.run.encoder).parent.glob("checkpoints/*.pt")))["objective"]
    module = load_trainable(open_folder(rank.encoder)).eval()
    names = (name for name in state if name.startswith("encoder."))
    module.load_state_dict({name.removeprefix("encoder."): state[name] for name in names})
    whole = load_tokenizer(encoder, encoded or 64)(long)
    with torch.no_grad():
        np.testing.assert_allclose(product.encode(long), module(whole), atol=1e-5)
    np.testing.assert_allclose(product.encode(long), library.encode(long), atol=1e-5)


def write_long(file: Path) -> list[str]:
    """Texts of more tokens than any encoder here reads."""
    texts = [" ".join(sentences(30, seed)) for seed in range(16)]
    pq.write_table(pa.table({"text": texts}), file)
    return texts


def test_texts_are_measured_at_the_length_of_the_product(tmp_path: Path, encoder: Path):
    write_long(tmp_path / "sentences.parquet")
    changes = ((), ("train.max_length=12",), ("train.max_length=12", "encoder.max_length=12"))
    starts = []  # metrics before the first step
    for number, given in enumerate(changes):
        rank = rank_of(tmp_path, encoder, f"train.name=run{number}", "train.max_steps=1", *given)
        train(rank)
        starts.append(next(line.same_rows for line in read_metrics(rank.run.store) if line.same_rows))
    assert starts[1] == starts[0]
    assert starts[2] != starts[0]


@pytest.mark.parametrize(("length", "said"), [(12, True), (64, False)])
def test_the_command_mentions_both_lengths_if_they_differ(
    tmp_path: Path, encoder: Path, manta: Callable[..., CommandResult], length: int, said: bool
):
    given = ("train.max_steps=1", f"train.max_length={length}")
    train(rank_of(tmp_path, encoder, *given))
    ended = manta("train", *training_arguments(tmp_path, encoder), *given)
    assert ended.code == 0
    assert ("reads    64 tokens of a text; the training read 12" in ended.out.splitlines()) == said
