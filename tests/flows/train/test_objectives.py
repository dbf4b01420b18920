"""Objectives with queues, twins and views, from their options to the encoder that comes of them: what a
worker does, in this process.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForMaskedLM

from pipeline.flows.train.rank import TrainRank
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import TrainedModel
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.flows.conftest import sentences
from tests.flows.train.test_rank import Stop, rank_of, train
from tests.flows.train.training import write_sts

ROWS, SHORT = 40, ("train.max_steps=4", "train.checkpoint={steps: 2, minutes: null}")
CASES = {
    "consert": "{name: consert, options: {views: [feature_cutoff, shuffle]}}",
    "adversarial": "{name: consert, options: {views: [token_cutoff, adversarial]}}",
    "declutr": "[{name: declutr, weight: 0.5, options: {shortest: 1, longest: 4}}, masked_lm]",
    "pser": "{name: pser, options: {kl_on: similarity}}",
    "tension": "contrastive_tension",
    "cert": "{name: cert, options: {queue: 20, width: 8, pairs: false}}",
    "pairs": "{name: cert, options: {queue: 20, width: 8, momentum: 0.9}}",
    "r_drop": "r_drop",
    "joint": "[classification, {name: consert, weight: 0.15}]",
    "quickthoughts": "{name: quickthoughts, options: {inference: first}}",
    "side by side": "quickthoughts",
    "fastsent": "fastsent",
    "masked words": "[simcse, {name: masked_lm, weight: 0.1, options: {tied: false}}]",
    "next sentence": "{name: simcse, options: {positive: next3, second: copy}}",
    "skip_thought": "skip_thought",
    "input_response": "input_response",
}


def rank_for(name: str, folder: Path, encoder: Path, run: str = "run") -> TrainRank:
    """Rows with all roles that any of them reads."""
    texts = sentences(ROWS, 5)
    roles = {
        role: texts[index:] + texts[:index]
        for index, role in enumerate(("text", "anchor", "positive", "premise", "hypothesis"))
    }
    numbers = {
        "label": np.arange(ROWS) % 3,
        "document": ["a"] * 20 + ["b"] * 20,
        "position": np.arange(ROWS) % 20,
    }
    pq.write_table(pa.table(roles | numbers), folder / "rows.parquet")
    return rank_of(
        folder,
        encoder,
        f"train.data={folder / 'rows.parquet'}",
        f"train.objective={CASES[name]}",
        f"train.name={run}",
        *SHORT,
    )


@pytest.mark.parametrize("name", CASES)
def test_every_objective_trains_and_saves_an_encoder(name: str, tmp_path: Path, encoder: Path):
    torch.manual_seed(0)
    rank = rank_for(name, tmp_path, encoder)
    train(rank)
    product = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings(), "cpu")
    start = load_encoder(EncoderSettings(path=str(encoder)), EncodeSettings(), "cpu")
    texts = sentences(8, seed=3)
    vectors, before = product.encode(texts), start.encode(texts)
    halves = np.split(vectors, 2, axis=1) if name == "side by side" else [vectors]
    for half in halves:
        assert half.shape == before.shape
        assert np.abs(half - before).max() > 1e-5
    assert rank.run.result().space_id == product.space_id
    assert rank.run.encoder_length() == product.max_length


def test_the_product_of_masked_words_is_a_language_model_of_transformers(tmp_path: Path, encoder: Path):
    rank = rank_for("masked words", tmp_path, encoder)
    train(rank)
    folder = open_folder(EncoderSettings(path=rank.run.encoder)).path
    model = AutoModelForMaskedLM.from_pretrained(folder)
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert not model.config.tie_word_embeddings
    assert (inputs - outputs).abs().max() > 1e-5


def test_of_two_encoders_the_better_one_on_dev_is_the_product(tmp_path: Path, encoder: Path):
    dev = f"train.dev={{uri: {write_sts(tmp_path / 'sts.parquet')}, steps: 4, keep: last}}"
    figures, spaces = {}, {}
    for inference in ("first", "second", "best"):
        objective = f"{{name: contrastive_tension, options: {{inference: {inference}}}}}"
        rank = rank_of(
            tmp_path,
            encoder,
            f"train.objective={objective}",
            f"train.name={inference}",
            "train.optimizer.learning_rate=0.003",
            dev,
            *SHORT,
        )
        train(rank)
        figures[inference] = rank.dev.score(
            TrainedModel(load_trainable(open_folder(EncoderSettings(path=rank.run.encoder))))
        )
        spaces[inference] = rank.run.result().space_id
    assert figures["first"] != figures["second"]
    assert figures["best"] == max(figures.values())
    assert spaces["best"] == spaces["first" if figures["first"] > figures["second"] else "second"]


@pytest.mark.parametrize("name", ["cert", "declutr", "side by side", "masked words", "next sentence"])
def test_queues_and_second_encoders_resume_to_the_same_bits(name: str, tmp_path: Path, encoder: Path):
    whole, parts = rank_for(name, tmp_path, encoder), rank_for(name, tmp_path, encoder, "parts")
    train(whole)
    with pytest.raises(Stop):
        train(parts, 3)
    train(parts)
    spaces = [open_folder(EncoderSettings(path=rank.run.encoder)).space_id for rank in (whole, parts)]
    assert spaces[0] == spaces[1]
