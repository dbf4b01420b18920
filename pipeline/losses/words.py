"""Losses of predicting a bag of words from a vector: softmax over the vocabulary, or negative sampling."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.losses.checks import at_least_float32, check_representations, require_shape
from pipeline.losses.contrastive import inner_products


def word_prediction(
    vectors: Tensor, table: Tensor, *, words: Tensor, rows: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Mean over vectors s of the sum of -log softmax(V s + b)_w over the words w of s.

    Source: FastSent, Hill et al. 2016, section 2.2, without b; Paragraph Vector, Le & Mikolov 2014, eq. 1.
    For large vocabularies use `sampled_word_prediction`.

    Args:
        vectors: (N, D) vectors s.
        table: (vocabulary, D) output vectors V.
        words: (M,) int64 words to predict; a word may occur several times.
        rows: (M,) int64 index of each word's vector.
        bias: (vocabulary,) b; None for 0.

    Returns:
        Scalar: M / N log(vocabulary) if all scores are equal.

    Raises:
        ModelError: values that are not finite.
        Defect: wrong shapes.

    >>> vectors, table = torch.zeros(1, 2), torch.ones(4, 2)
    >>> words, rows = torch.tensor([0, 3, 3]), torch.tensor([0, 0, 0])
    >>> round(word_prediction(vectors, table, words=words, rows=rows).item(), 4)  # 3 log 4
    4.1589
    """
    vectors, table = check_representations("word prediction", vectors=vectors, table=table)
    require_shape("word prediction", "rows", rows, len(words))
    scores = inner_products(vectors, table)  # (N, vocabulary)
    log_probabilities = F.log_softmax(scores if bias is None else scores + bias, dim=1)
    return -log_probabilities[rows, words].sum() / len(vectors)


def sampled_word_prediction(
    vectors: Tensor,
    table: Tensor,
    *,
    words: Tensor,
    rows: Tensor,
    negatives: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Mean over vectors s, summed over the words w of s, of -log sigmoid(y_w) - sum_n log sigmoid(-y_n).

    The scores are y = V s + b; n runs over the negatives of w.

    Source: negative sampling, "Distributed Representations of Words and Phrases and their Compositionality",
    Mikolov et al. 2013, eq. 4. For a softmax over all words use `word_prediction`.

    Args:
        vectors: (N, D) vectors s.
        table: (vocabulary, D) output vectors V.
        words: (M,) int64 words to predict; a word may occur several times.
        rows: (M,) int64 index of each word's vector.
        negatives: (M, K) int64 negatives n drawn for each word.
        bias: (vocabulary,) b; None for 0.

    Returns:
        Scalar: M / N (K + 1) log 2 if all scores are 0.

    Raises:
        ModelError: values that are not finite.
        Defect: wrong shapes.

    >>> vectors, table = torch.zeros(1, 2), torch.ones(4, 2)
    >>> words, rows, negatives = torch.tensor([0]), torch.tensor([0]), torch.tensor([[1, 2]])
    >>> loss = sampled_word_prediction(vectors, table, words=words, rows=rows, negatives=negatives)
    >>> round(loss.item(), 4)  # 3 log 2
    2.0794
    """
    (vectors,) = check_representations("word prediction", vectors=vectors)
    require_shape("word prediction", "rows", rows, len(words))
    require_shape("word prediction", "negatives", negatives, len(words), negatives.shape[-1])
    candidates = torch.cat([words[:, None], negatives], dim=1)  # (M, 1 + K)
    with torch.autocast(vectors.device.type, enabled=False):
        own = vectors.index_select(0, rows)[:, :, None]  # (M, D, 1)
        scores = (at_least_float32(F.embedding(candidates, table)) @ own).squeeze(-1)
        if bias is not None:
            scores = scores + bias[candidates]
    log_likelihood = F.logsigmoid(scores[:, 0]).sum() + F.logsigmoid(-scores[:, 1:]).sum()
    return -log_likelihood / len(vectors)
