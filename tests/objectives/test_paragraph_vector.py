"""Paragraph Vector as an objective: each row's vector predicts words drawn from its text."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import DataError, ModelError
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import Batch
from pipeline.objectives.paragraph_vector import ParagraphVector
from pipeline.settings import EncoderSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.classic.paragraphs import write_paragraphs
from tests.models.folder.wordfiles import write_words
from tests.objectives.tiny import batch_of, pop_gradients

TEXTS = ["the dog runs", "unknown", "the cat sleeps here", "now"]


@pytest.fixture
def objective(tmp_path: Path) -> ParagraphVector:
    return objective_of(write_paragraphs(tmp_path / "new"))


def objective_of(folder: Path) -> ParagraphVector:
    torch.manual_seed(0)
    return ParagraphVector(load_trainable(open_folder(EncoderSettings(path=str(folder))))).double()


def batch(objective: ParagraphVector, *rows: int) -> Batch:
    """Return the rows of those numbers, which name the vectors to train."""
    texts = batch_of({"text": [TEXTS[row] for row in rows]})
    return replace(texts, rows=np.array(rows), tokenize=objective.encoder.folder.tokenizer())


def test_with_output_vectors_of_zero_a_word_and_each_of_its_negatives_cost_log_two(objective):
    with torch.no_grad():
        objective._backbone.predictor("dbow").output.zero_()
    loss = loss_and_backward(objective, batch(objective, 0, 1, 2, 3)).loss
    # Three of four rows have known words. Each draws three, and two negatives for each of these.
    assert loss.parts["dbow"].item() == pytest.approx(3 / 4 * 3 * 3 * math.log(2))
    assert loss.total.item() == pytest.approx(sum(part.item() for part in loss.parts.values()))
    assert set(loss.parts) == {"dm", "dbow"}


def test_only_vectors_of_the_batch_with_known_words_get_a_gradient(objective):
    loss_and_backward(objective, batch(objective, 3, 1, 0))
    found = pop_gradients(objective)["paragraphs"]
    assert found.shape == (6, 10)
    assert found.any(dim=1).tolist() == [True, False, False, True, False, False]
    assert found[0].view(2, 5).any(dim=1).tolist() == [True, True]  # the halves of both models


def test_words_are_drawn_from_the_text_of_their_row(objective):
    rows = batch(objective, 2, 0)
    drawn = set()
    for seed in range(30):
        torch.manual_seed(seed)
        objective.views(rows)
        predictions = objective._predictions
        ids = predictions.tokens.ids[predictions.at]
        drawn |= set(zip(predictions.rows.tolist(), ids.tolist(), strict=True))
    tokens = rows.tokens("text")
    assert drawn == set(zip(tokens.owners.tolist(), tokens.ids.tolist(), strict=True))


def test_a_batch_without_a_known_word_costs_nothing(objective):
    result = loss_and_backward(objective, batch(objective, 1, 1))
    assert result.loss.total.item() == 0
    assert not any(gradient.any() for gradient in pop_gradients(objective).values())


def test_rows_that_have_no_vector_and_other_encoders_are_refused(
    objective, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"at most 6 rows.*found row 6 \(counted from 0\)"):
        objective.views(replace(batch(objective, 0), rows=np.array([6])))
    words = write_words(tmp_path / "words.txt", ("the", "dog"), np.ones((2, 3), np.float32))
    with pytest.raises(
        ModelError, match=r"another kind of encoder, manta-words.*train.paragraph_vectors.dim"
    ):
        objective_of(words)
