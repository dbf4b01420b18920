"""Paragraph Vector: the published formulas, and closed-form gradients whose bits do not depend on a batch."""

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.losses.words import sampled_word_prediction, word_prediction
from pipeline.models.classic.paragraph import WordPredictor, contexts_of, sum_in_order
from pipeline.text.tokens.tokens import Tokens

# An example worked by hand: paragraph vector d, vectors of words 1 and 2, output weights U; the bias b is 0.
PARAGRAPH = torch.tensor([[0.2, -0.1]])
WORDS = torch.tensor([[0.5, 0.0], [0.1, 0.4]])
OUTPUT = torch.tensor([[1.0, 0], [0, 1], [1, 1]])
# Window, and whether words and paragraph are averaged.
KINDS = {"dbow": (0, False), "concatenate": (3, False), "average": (3, True)}


def target(word: int) -> dict[str, Tensor]:
    """Return the arguments of a loss that predicts one word from row 0."""
    return {"words": torch.tensor([word]), "rows": torch.tensor([0])}


def predictor_of(kind: str, vocabulary: int = 9, dim: int = 4) -> WordPredictor:
    window, average = KINDS[kind]
    predictor = WordPredictor(vocabulary, dim, window, average=average)
    with torch.no_grad():
        for parameter in predictor.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
    return predictor


def test_average_of_paragraph_and_words_equals_the_worked_example():
    predictor = WordPredictor(3, 2, 2, average=True)
    with torch.no_grad():
        predictor.words.copy_(torch.cat([torch.full((1, 2), 9.0), WORDS, torch.full((1, 2), 7.0)]))
    h = predictor.hidden(PARAGRAPH, torch.tensor([[1, 2]]))
    torch.testing.assert_close(h, torch.tensor([[0.266667, 0.1]]), atol=1e-6, rtol=0)
    assert word_prediction(h, OUTPUT, **target(2)).item() == pytest.approx(0.982365, abs=1e-6)
    alone = predictor.hidden(PARAGRAPH, torch.tensor([[3, 3]]))
    torch.testing.assert_close(alone, PARAGRAPH)  # words before the start are not averaged


def test_prediction_from_the_paragraph_alone_equals_the_worked_example():
    h = WordPredictor(3, 2, 0, average=False).hidden(PARAGRAPH, torch.empty(1, 0, dtype=torch.int64))
    assert word_prediction(h, OUTPUT, **target(0)).item() == pytest.approx(0.972919, abs=1e-6)
    sampled = sampled_word_prediction(h, OUTPUT, **target(0), negatives=torch.tensor([[2]]))
    assert sampled.item() == pytest.approx(1.342536, abs=1e-6)


def test_the_bias_is_added_to_the_scores():
    bias = torch.tensor([0.3, -0.2, 0.5])
    scores = (PARAGRAPH @ OUTPUT.T + bias)[0]
    assert word_prediction(PARAGRAPH, OUTPUT, **target(1), bias=bias).item() == pytest.approx(
        -torch.log_softmax(scores, 0)[1].item()
    )
    found = sampled_word_prediction(
        PARAGRAPH, OUTPUT, **target(1), negatives=torch.tensor([[2, 0]]), bias=bias
    )
    expected = torch.log1p(torch.exp(torch.stack([-scores[1], scores[2], scores[0]]))).sum()
    assert found.item() == pytest.approx(expected.item())


def test_concatenation_keeps_the_order_of_the_words():
    predictor = predictor_of("concatenate")
    h = predictor.hidden(torch.ones(1, 4), torch.tensor([[9, 2, 5]]))
    torch.testing.assert_close(h, torch.cat([torch.ones(1, 4), *predictor.words[[9, 2, 5]].split(1)], dim=1))


def draws(texts: int, words: int, window: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw paragraphs, candidates and contexts; some words of the contexts are before the start of a text."""
    generator = torch.Generator().manual_seed(0)
    paragraphs = torch.randn(texts, 4, generator=generator)
    candidates = torch.randint(9, (texts, words, 3), generator=generator)
    return paragraphs, candidates, torch.randint(10, (texts, words, window), generator=generator)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_the_loss(kind: str):
    predictor = predictor_of(kind).double()
    paragraphs, candidates, contexts = draws(5, 6, KINDS[kind][0])
    paragraphs = paragraphs.double().requires_grad_()
    pairs = candidates.flatten(0, 1)  # a predicted word and its negatives
    loss = sampled_word_prediction(
        predictor.hidden(paragraphs.repeat_interleave(6, 0), contexts.flatten(0, 1)),
        predictor.output,
        words=pairs[:, 0],
        rows=torch.arange(30),
        negatives=pairs[:, 1:],
        bias=predictor.bias,
    )
    (loss * 30).backward()
    found = predictor.gradient(paragraphs.detach(), candidates, contexts)
    torch.testing.assert_close(found, paragraphs.grad, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [4, 7])
def test_bits_of_a_gradient_do_not_depend_on_the_other_paragraphs(kind: str, dim: int):
    predictor = predictor_of(kind, dim=dim)
    _, candidates, contexts = draws(67, 5, KINDS[kind][0])
    paragraphs = torch.randn(67, dim, generator=torch.Generator().manual_seed(1))
    whole = predictor.gradient(paragraphs, candidates, contexts)
    for rows in (slice(0, 1), slice(3, 40), slice(66, 67), slice(None, None, 2)):
        part = predictor.gradient(paragraphs[rows], candidates[rows], contexts[rows])
        assert torch.equal(part, whole[rows])


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 13])
def test_sums_in_a_fixed_order_equal_those_of_torch(length: int):
    x = torch.randn(2, length, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(sum_in_order(x, 1), x.sum(1))


def test_contexts_end_before_the_word_and_begin_within_its_text():
    tokens = Tokens(np.arange(10, 17, dtype=np.int32), np.array([0, 3, 7]), np.zeros(2, bool))
    found = contexts_of(tokens, np.array([[0, 2], [3, 6]]), 2, padding=99)
    assert found.tolist() == [[[99, 99], [10, 11]], [[99, 99], [14, 15]]]
    assert contexts_of(tokens, np.array([4]), 0, padding=99).shape == (1, 0)
