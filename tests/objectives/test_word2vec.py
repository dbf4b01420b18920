"""word2vec as an objective: the pairs of words that predict each other, the draws, and the loss."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import Batch
from pipeline.objectives.word2vec import Word2Vec
from pipeline.settings import EncoderSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.folders import save_folder
from tests.objectives.three_words import (
    OUTPUT_VECTORS,
    WORD_VECTORS,
    new_word_table,
    rows_of,
    set_known_vectors,
)
from tests.objectives.tiny import pop_gradients

TEXTS = ["zero one two one", "two", "unknown zero unknown two", ""]
NEIGHBOURS = {  # of TEXTS: (row, word in the middle, word beside it)
    (0, 0, 1),
    (0, 1, 0),
    (0, 1, 2),
    (0, 2, 1),
    (2, 0, 2),
    (2, 2, 0),
}


@pytest.fixture
def folder(tmp_path: Path) -> EncoderFolder:
    return new_word_table(tmp_path / "words")


def objective_of(folder: EncoderFolder, *, subsample: float | None = None, **options: object) -> Word2Vec:
    """Build word2vec with known vectors; by default, no word is left out."""
    objective = Word2Vec(load_trainable(folder), subsample=subsample, **options).double()
    set_known_vectors(objective)
    return objective


def batch(folder: EncoderFolder, *texts: str) -> Batch:
    return rows_of(folder, {"text": list(texts)})


def test_skipgram_predicts_every_word_of_the_window_from_the_word_in_the_middle(folder: EncoderFolder):
    objective = objective_of(folder, model="skipgram", window=1)
    objective.views(batch(folder, *TEXTS))
    found = objective._predictions
    assert found.inputs.shape == (8, 1)
    assert found.is_input.all()
    pairs = set(zip(found.rows.tolist(), found.inputs[:, 0].tolist(), found.words.tolist(), strict=True))
    assert pairs == NEIGHBOURS


def test_cbow_predicts_each_word_from_all_words_of_the_window(folder: EncoderFolder):
    objective = objective_of(folder, window=2)
    objective.views(batch(folder, *TEXTS))
    found = objective._predictions
    inputs = [ids[near].tolist() for ids, near in zip(found.inputs, found.is_input, strict=True)]
    assert list(zip(found.rows.tolist(), found.words.tolist(), inputs, strict=True)) == [
        (0, 0, [1, 2]),
        (0, 1, [0, 2, 1]),
        (0, 2, [0, 1, 1]),
        (0, 1, [1, 2]),
        (2, 0, [2]),
        (2, 2, [0]),
    ]


@pytest.mark.parametrize("model", ["cbow", "skipgram"])
def test_the_loss_is_the_mean_over_rows_of_the_negative_sampling_losses_of_their_predictions(
    folder: EncoderFolder, model: str
):
    """Compare with a loop over the words, with the negatives that the step has drawn."""
    objective = objective_of(folder, model=model, window=1, negatives=2)
    rows = batch(folder, *TEXTS)
    torch.manual_seed(0)
    loss = loss_and_backward(objective, rows).loss.total.item()
    negatives, expected = iter(objective._predictions.negatives.tolist()), 0.0
    for ids in ([0, 1, 2, 1], [0, 2]):  # the known words of the rows that have two or more
        for position, middle in enumerate(ids):
            near = [ids[other] for other in (position - 1, position + 1) if 0 <= other < len(ids)]
            predictions = [(middle, near)] if model == "cbow" else [(word, [middle]) for word in near]
            for word, inputs in predictions:
                hidden = np.mean([WORD_VECTORS[each] for each in inputs], axis=0)
                expected += math.log(1 + math.exp(-np.dot(OUTPUT_VECTORS[word], hidden)))
                for negative in next(negatives):
                    expected += math.log(1 + math.exp(np.dot(OUTPUT_VECTORS[negative], hidden)))
    assert loss == pytest.approx(expected / len(TEXTS), abs=1e-12)
    assert next(negatives, None) is None


def test_subsampling_keeps_words_with_the_papers_probability_and_joins_the_words_around_dropped_ones(
    folder: EncoderFolder,
):
    objective = objective_of(folder, model="skipgram", window=1, subsample=0.1)
    torch.manual_seed(0)
    objective.views(batch(folder, *["one zero two"] * 2_000))
    pairs = Counter(
        zip(objective._predictions.inputs[:, 0].tolist(), objective._predictions.words.tolist(), strict=True)
    )
    zero, one = (math.sqrt(0.1 / (count / 98)) for count in (81, 16))  # "two" is rarer than 0.1: always kept
    probabilities = {(0, 2): zero, (1, 0): zero * one, (1, 2): (1 - zero) * one}
    for (left, right), probability in probabilities.items():
        assert pairs[left, right] == pairs[right, left]
        assert pairs[left, right] / 2_000 == pytest.approx(probability, abs=0.03)


def test_negatives_are_drawn_by_the_counts_to_the_power_of_three_quarters(folder: EncoderFolder):
    objective = objective_of(folder, negatives=1_000)
    torch.manual_seed(0)
    objective.views(batch(folder, *TEXTS))
    drawn = objective._predictions.negatives
    assert drawn.shape == (6, 1_000)
    expected = np.array([27, 8, 1]) / 36  # 81, 16 and 1 to the power of 3/4
    np.testing.assert_allclose(np.bincount(drawn.ravel()) / drawn.size, expected, atol=0.02)


def test_texts_without_neighbours_cost_nothing(folder: EncoderFolder):
    objective = objective_of(folder)
    assert loss_and_backward(objective, batch(folder, "two", "", "unknown")).loss.total.item() == 0
    assert not any(gradient.any() for gradient in pop_gradients(objective).values())


def test_encoders_with_layers_and_vectors_without_counts_are_refused(folder: EncoderFolder, tmp_path: Path):
    bert = open_folder(EncoderSettings(path=str(save_folder(tmp_path / "bert", "bert"))))
    with pytest.raises(ModelError, match=r"another kind of encoder, bert.*train.word_table.dim"):
        Word2Vec(load_trainable(bert))
    (folder.path / FREQUENCIES).unlink()
    with pytest.raises(ModelError, match=r"word counts in frequencies.parquet.*found no such file"):
        Word2Vec(load_trainable(folder))
