"""Prediction of words matches hand computations and its definition."""

import math

import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax

from pipeline.errors import Defect, ModelError
from pipeline.losses.words import sampled_word_prediction, word_prediction

TABLE = torch.tensor([[1.0, 0], [0, 0.5], [-1, 1]], dtype=torch.float64)
SENTENCE = torch.tensor([[2.0, 1]], dtype=torch.float64)  # of the words 0 and 2 of [[1, 0], [0, 1], [1, 1]]
RNG = np.random.default_rng(0)
VECTORS, OUTPUT = (torch.from_numpy(RNG.normal(size=shape)) for shape in ((4, 3), (7, 3)))
WORDS, ROWS = torch.tensor([0, 6, 6, 2, 5]), torch.tensor([0, 0, 0, 3, 1])
NEGATIVES = torch.from_numpy(RNG.integers(0, 7, (5, 2)))


@pytest.mark.parametrize(("words", "loss"), [([1, 2], 4.982623), ([1, 2, 0, 2], 8.465245)])
def test_the_loss_of_three_words_matches_a_hand_computation(words: list[int], loss: float):
    """The words of the neighbours, then also those of the sentence itself."""
    rows = torch.zeros(len(words), dtype=torch.int64)
    found = word_prediction(SENTENCE, TABLE, words=torch.tensor(words), rows=rows)
    assert found.item() == pytest.approx(loss, abs=1e-6)


def test_the_softmax_matches_its_definition():
    logs = log_softmax(VECTORS.numpy() @ OUTPUT.numpy().T, axis=1)
    expected = -sum(logs[row, word] for row, word in zip(ROWS, WORDS, strict=True)) / 4
    assert word_prediction(VECTORS, OUTPUT, words=WORDS, rows=ROWS).item() == pytest.approx(expected)


def test_negative_sampling_matches_its_definition():
    scores = VECTORS.numpy() @ OUTPUT.numpy().T
    expected = 0.0
    for word, row, drawn in zip(WORDS, ROWS, NEGATIVES, strict=True):
        expected -= np.log(expit(scores[row, word])) + np.log(expit(-scores[row, drawn])).sum()
    found = sampled_word_prediction(VECTORS, OUTPUT, words=WORDS, rows=ROWS, negatives=NEGATIVES)
    assert found.item() == pytest.approx(expected / 4)


def test_equal_scores_give_the_logarithm_of_the_number_of_choices():
    zeros = torch.zeros_like(VECTORS)
    found = word_prediction(zeros, OUTPUT, words=WORDS, rows=ROWS).item()
    assert found == pytest.approx(5 / 4 * math.log(7))
    found = sampled_word_prediction(zeros, OUTPUT, words=WORDS, rows=ROWS, negatives=NEGATIVES).item()
    assert found == pytest.approx(5 / 4 * 3 * math.log(2))


def test_gradients_match_finite_differences():
    given = VECTORS.clone().requires_grad_(), OUTPUT.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s, v: word_prediction(s, v, words=WORDS, rows=ROWS), given)
    assert torch.autograd.gradcheck(
        lambda s, v: sampled_word_prediction(s, v, words=WORDS, rows=ROWS, negatives=NEGATIVES), given
    )


def test_vectors_without_words_cost_nothing():
    none = torch.empty(0, dtype=torch.int64)
    assert word_prediction(VECTORS, OUTPUT, words=none, rows=none).item() == 0
    negatives = torch.empty((0, 5), dtype=torch.int64)
    found = sampled_word_prediction(VECTORS, OUTPUT, words=none, rows=none, negatives=negatives)
    assert found.item() == 0


def test_half_precision_is_computed_in_float32():
    vectors, output = VECTORS.bfloat16(), OUTPUT.bfloat16()
    expected = word_prediction(vectors.float(), output.float(), words=WORDS, rows=ROWS)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(word_prediction(vectors, output, words=WORDS, rows=ROWS), expected)
        sampled = sampled_word_prediction(vectors, output, words=WORDS, rows=ROWS, negatives=NEGATIVES)
    assert sampled.dtype == torch.float32
    exact = sampled_word_prediction(
        vectors.float(), output.float(), words=WORDS, rows=ROWS, negatives=NEGATIVES
    )
    assert torch.equal(sampled, exact)


def test_wrong_shapes_and_values_are_refused():
    with pytest.raises(Defect, match="rows of shape"):
        word_prediction(VECTORS, OUTPUT, words=WORDS, rows=ROWS[:2])
    with pytest.raises(Defect, match="negatives of shape"):
        sampled_word_prediction(VECTORS, OUTPUT, words=WORDS, rows=ROWS, negatives=NEGATIVES[:2])
    with pytest.raises(ModelError, match="1 of 4 rows with NaN"):
        word_prediction(VECTORS.index_fill(0, torch.tensor([1]), math.nan), OUTPUT, words=WORDS, rows=ROWS)
