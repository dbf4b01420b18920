"""word2vec as an objective: which words predict which, how words are drawn, and the loss of a prediction."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.frequencies import FREQUENCIES
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.new_word_table import write_word_table_folder
from pipeline.objectives import Batch
from pipeline.objectives.word2vec import Word2Vec
from pipeline.settings import EncoderSettings
from pipeline.settings.weights import WordTableSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.folders import save_folder
from tests.objectives.tiny import batch_of, gradients

COUNTS = Counter({"zero": 81, "one": 16, "two": 1})
TEXTS = ["zero one two one", "two", "unknown zero unknown two", ""]
PAIRS = {  # of TEXTS, within one word: (row, word in the middle, word beside it)
    (0, 0, 1),
    (0, 1, 0),
    (0, 1, 2),
    (0, 2, 1),
    (2, 0, 2),
    (2, 2, 0),
}


@pytest.fixture
def folder(tmp_path: Path) -> EncoderFolder:
    """Word vectors of three words in two dimensions."""
    torch.set_num_threads(1)
    write_word_table_folder(WordTableSettings(dim=2), COUNTS, tmp_path / "words", seed=0)
    return open_folder(EncoderSettings(path=str(tmp_path / "words")))


def objective_of(folder: EncoderFolder, **options: object) -> Word2Vec:
    """word2vec with fixed vectors, which keeps all words."""
    objective = Word2Vec(load_trainable(folder), **({"subsample": None} | options)).double()
    with torch.no_grad():
        objective.encoder.backbone.word_table.copy_(torch.tensor([[1, 0], [0, 1], [1, 1]]))
        objective.output.copy_(torch.tensor([[1, 0], [0, 0.5], [-1, 1]]))
    return objective


def batch(folder: EncoderFolder, *texts: str) -> Batch:
    return replace(batch_of({"text": list(texts)}), tokenize=folder.tokenizer())


def test_skipgram_predicts_every_word_of_the_window_from_the_word_in_the_middle(folder: EncoderFolder):
    objective = objective_of(folder, model="skipgram", window=1)
    objective.views(batch(folder, *TEXTS))
    found = objective._predictions
    assert found.inputs.shape == (8, 1)
    assert found.is_input.all()
    assert {
        *zip(found.rows.tolist(), found.inputs[:, 0].tolist(), found.words.tolist(), strict=True)
    } == PAIRS


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
def test_the_loss_is_the_mean_over_rows_of_the_negative_sampling_of_each_prediction(
    folder: EncoderFolder, model: str
):
    """Against a loop over the text, with the vectors above and the negatives of the step."""
    objective = objective_of(folder, model=model, window=1, negatives=2)
    rows = batch(folder, *TEXTS)
    torch.manual_seed(0)
    loss = loss_and_backward(objective, rows).loss.total.item()
    table, output = ([[1, 0], [0, 1], [1, 1]], [[1, 0], [0, 0.5], [-1, 1]])
    negatives, expected = iter(objective._predictions.negatives.tolist()), 0.0
    for ids in ([0, 1, 2, 1], [0, 2]):
        for at, middle in enumerate(ids):
            near = [ids[other] for other in (at - 1, at + 1) if 0 <= other < len(ids)]
            predictions = [(middle, near)] if model == "cbow" else [(word, [middle]) for word in near]
            for word, inputs in predictions:
                hidden = np.mean([table[each] for each in inputs], axis=0)
                expected += math.log(1 + math.exp(-np.dot(output[word], hidden)))
                expected += sum(math.log(1 + math.exp(np.dot(output[n], hidden))) for n in next(negatives))
    assert loss == pytest.approx(expected / len(TEXTS), abs=1e-12)
    assert next(negatives, None) is None


def test_a_frequent_word_is_kept_with_the_probability_of_the_paper_and_its_neighbours_move_together(
    folder: EncoderFolder,
):
    objective = objective_of(folder, model="skipgram", window=1, subsample=0.1)
    torch.manual_seed(0)
    objective.views(batch(folder, *["one zero two"] * 2_000))
    pairs = Counter(
        zip(objective._predictions.inputs[:, 0].tolist(), objective._predictions.words.tolist(), strict=True)
    )
    zero, one = (math.sqrt(0.1 / (count / 98)) for count in (81, 16))  # "two" is below 0.1: always kept
    expected = {(0, 2): zero, (1, 0): zero * one, (1, 2): (1 - zero) * one}
    for (left, right), probability in expected.items():
        assert pairs[left, right] == pairs[right, left]
        assert pairs[left, right] / 2_000 == pytest.approx(probability, abs=0.03)


def test_negatives_are_drawn_by_the_counts_to_the_power_of_three_quarters(folder: EncoderFolder):
    objective = objective_of(folder, negatives=1_000)
    torch.manual_seed(0)
    objective.views(batch(folder, *TEXTS))
    drawn = objective._predictions.negatives
    assert drawn.shape == (6, 1_000)
    np.testing.assert_allclose(np.bincount(drawn.ravel()) / drawn.size, np.array([27, 8, 1]) / 36, atol=0.02)


def test_texts_without_neighbours_cost_nothing(folder: EncoderFolder):
    objective = objective_of(folder)
    assert loss_and_backward(objective, batch(folder, "two", "", "unknown")).loss.total.item() == 0
    assert not any(gradient.any() for gradient in gradients(objective).values())


def test_encoders_with_layers_and_vectors_without_counts_are_refused(folder: EncoderFolder, tmp_path: Path):
    bert = open_folder(EncoderSettings(path=str(save_folder(tmp_path / "bert", "bert"))))
    with pytest.raises(ModelError, match=r"another kind of encoder, bert.*train.word_table.dim"):
        Word2Vec(load_trainable(bert))
    (folder.path / FREQUENCIES).unlink()
    with pytest.raises(ModelError, match=r"word counts in frequencies.parquet.*found no such file"):
        Word2Vec(load_trainable(folder))
