"""Objectives with queues, second encoders and views, from their options to the trained encoder."""

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
from tests.flows.train.training import assert_resumes_to_the_same_bits, rank_of, train, write_sts

ROWS = 40
SHORT = ("train.max_steps=4", "train.checkpoint={steps: 2, minutes: null}")
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
    "guided": "{name: guided, options: {guide: GUIDE}}",
    "directions": "{name: supervised, options: {directions: [query_document, query_query], hardness: 2.0}}",
    "margins": "score_distillation",
    "distributions": "{name: score_distillation, options: {match: distribution, similarity: cosine}}",
}


def rank_for(name: str, folder: Path, encoder: Path, run: str = "run") -> TrainRank:
    """Return the training of a case, over rows with the roles of all cases."""
    texts = sentences(ROWS, 5)
    roles = {
        role: texts[index:] + texts[:index]
        for index, role in enumerate(("text", "anchor", "positive", "premise", "hypothesis"))
    }
    others = {
        "label": np.arange(ROWS) % 3,
        "document": ["a"] * 20 + ["b"] * 20,
        "position": np.arange(ROWS) % 20,
    }
    negatives = [[texts[-row], texts[row - 5]][: 1 + row % 2] for row in range(ROWS)]
    others |= {"negatives": negatives, "scores": [[3.0, *range(len(each))] for each in negatives]}
    pq.write_table(pa.table(roles | others), folder / "rows.parquet")
    return rank_of(
        folder,
        encoder,
        f"train.data={folder / 'rows.parquet'}",
        f"train.objective={CASES[name]}".replace("GUIDE", str(encoder)),
        f"train.name={run}",
        *SHORT,
    )


@pytest.mark.parametrize("name", CASES)
def test_every_objective_trains_and_saves_an_encoder(name: str, tmp_path: Path, encoder: Path):
    torch.manual_seed(0)
    rank = rank_for(name, tmp_path, encoder)
    train(rank)
    trained = load_encoder(EncoderSettings(path=rank.run.encoder), EncodeSettings(), "cpu")
    start = load_encoder(EncoderSettings(path=str(encoder)), EncodeSettings(), "cpu")
    texts = sentences(8, seed=3)
    after, before = trained.encode(texts), start.encode(texts)
    for vectors in np.split(after, 2, axis=1) if name == "side by side" else [after]:
        assert vectors.shape == before.shape
        assert np.abs(vectors - before).max() > 1e-5
    assert rank.run.result().space_id == trained.space_id
    assert rank.run.encoder_length() == trained.max_length


def test_an_encoder_trained_on_masked_words_is_a_language_model_of_transformers(
    tmp_path: Path, encoder: Path
):
    rank = rank_for("masked words", tmp_path, encoder)
    train(rank)
    folder = open_folder(EncoderSettings(path=rank.run.encoder)).path
    model = AutoModelForMaskedLM.from_pretrained(folder)
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert not model.config.tie_word_embeddings
    assert (inputs - outputs).abs().max() > 1e-5


def test_of_two_encoders_the_better_one_on_dev_is_saved(tmp_path: Path, encoder: Path):
    dev = f"train.dev={{uri: {write_sts(tmp_path / 'sts.parquet')}, steps: 4, keep: last}}"
    scores, spaces = {}, {}
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
        saved = load_trainable(open_folder(EncoderSettings(path=rank.run.encoder)))
        scores[inference] = rank.dev.score(TrainedModel(saved))
        spaces[inference] = rank.run.result().space_id
    assert scores["first"] != scores["second"]
    assert scores["best"] == max(scores["first"], scores["second"])
    assert spaces["best"] == spaces["first" if scores["first"] > scores["second"] else "second"]


@pytest.mark.parametrize("name", ["cert", "declutr", "side by side", "masked words", "next sentence"])
def test_queues_and_second_encoders_resume_to_the_same_bits(name: str, tmp_path: Path, encoder: Path):
    whole, parts = rank_for(name, tmp_path, encoder), rank_for(name, tmp_path, encoder, "parts")
    assert_resumes_to_the_same_bits(whole, parts, 3)
