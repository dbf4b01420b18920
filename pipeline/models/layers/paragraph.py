"""Prediction of words from the vector of their paragraph (Paragraph Vector, Le & Mikolov 2014).

The gradients of inference are computed without matrix products, value by value and in sums of a fixed order,
so that a paragraph's bits do not depend on the other paragraphs of a batch.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.models.layers.recurrence import elementwise
from pipeline.settings.weights import ParagraphSettings
from pipeline.text.tokens.tokens import Tokens

_REGISTER = 64  # values; a multiple of what any vector instruction computes at once


class WordPredictor(nn.Module):
    """One of the two models of Paragraph Vector: scores b + U h of all words.

    Its parameters are output (vocabulary, width of h) and bias (vocabulary,). With a window (PV-DM) there are
    also words (vocabulary + 1, d), the vectors of words in contexts, of which the last one stands for the
    words before the start of a paragraph. Without a window (PV-DBOW), h is the paragraph's vector.

    Args:
        vocabulary: number of words.
        dim: dimension d of a paragraph's vector and of a word's.
        window: number of words in a context; 0 for PV-DBOW.
        average: h is the mean of the paragraph's vector and those of the context's words; otherwise they are
            concatenated.
    """

    def __init__(self, vocabulary: int, dim: int, window: int, *, average: bool) -> None:
        super().__init__()
        self.dim, self.window, self.average = dim, window, average
        width = dim if average else dim * (1 + window)  # without a window both are d
        self.output = nn.Parameter(torch.empty(vocabulary, width))
        self.bias = nn.Parameter(torch.empty(vocabulary))
        if window:
            self.words = nn.Parameter(torch.empty(vocabulary + 1, dim))

    def hidden(self, paragraphs: Tensor, contexts: Tensor) -> Tensor:
        """Compute h (M, width) of predicted words.

        Args:
            paragraphs: (M, d) vector of each word's paragraph.
            contexts: (M, window) ids of the words before it; the vocabulary's size stands for none.
        """
        if not self.window:
            return paragraphs
        words = F.embedding(contexts, self.words)  # (M, window, d)
        if not self.average:
            return torch.cat([paragraphs, words.flatten(1)], dim=1)
        known = words * self._is_word(contexts)[..., None]
        return (paragraphs + sum_in_order(known, 1)) / self._count_averaged(contexts)[:, None]

    def gradient(self, paragraphs: Tensor, candidates: Tensor, contexts: Tensor) -> Tensor:
        """Compute the gradient, by the paragraphs' vectors, of the loss of negative sampling.

        The loss of a paragraph is the sum over its W predicted words; see `sampled_word_prediction`.

        Args:
            paragraphs: (n, d).
            candidates: (n, W, 1 + K) ids of the predicted words, each followed by its K negatives.
            contexts: (n, W, window), as in `hidden`.

        Returns:
            (n, d)
        """
        count = candidates.shape[1]
        flat_contexts = contexts.flatten(0, 1)
        h = self.hidden(paragraphs.repeat_interleave(count, dim=0), flat_contexts)  # (n * W, width)
        rows = F.embedding(candidates.flatten(0, 1), self.output)  # (n * W, 1 + K, width)
        scores = sum_in_order(rows * h[:, None], 2) + self.bias[candidates.flatten(0, 1)]
        errors = _sigmoid(scores)
        errors[:, 0] -= 1
        if self.window and self.average:
            errors = errors / self._count_averaged(flat_contexts)[:, None]
        # h is the mean of the vectors, or begins with the paragraph's
        gradients = rows[..., : self.dim] * errors[..., None]
        return sum_in_order(gradients.view(len(paragraphs), -1, self.dim), 1)

    def draw(self) -> None:
        """Draw vectors of n components between -0.5 / n and 0.5 / n, as word2vec does; the bias is 0."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                width = parameter.shape[-1]
                parameter.zero_() if name == "bias" else parameter.uniform_(-0.5 / width, 0.5 / width)

    def _is_word(self, contexts: Tensor) -> Tensor:
        return contexts < len(self.bias)

    def _count_averaged(self, contexts: Tensor) -> Tensor:
        """Count the vectors that are averaged, the paragraph's and those of known words: (M,)."""
        return 1 + self._is_word(contexts).sum(dim=1)


def predictors_of(settings: ParagraphSettings, vocabulary: int) -> nn.ModuleDict:
    """Create the models of the settings, by name, with weights that are not initialized."""
    assert settings.dim is not None, "the caller has paragraph vectors"
    windows = {"dm": settings.window, "dbow": 0}
    return nn.ModuleDict(
        {
            name: WordPredictor(
                vocabulary, settings.dim, windows[name], average=settings.context == "average"
            )
            for name in settings.models
        }
    )


def contexts_of(tokens: Tokens, at: np.ndarray, window: int, padding: int) -> np.ndarray:
    """Return the ids of the `window` words before each word in its text, (..., window) int64.

    Args:
        tokens: the texts.
        at: (...) positions of the words within `tokens.ids`.
        window: number of words.
        padding: id that stands for the words before a text.
    """
    back = np.arange(window, 0, -1)
    indices = at[..., None] - back
    exists = tokens.positions[at][..., None] >= back
    return np.where(exists, tokens.ids[np.maximum(indices, 0)], padding).astype(np.int64)


def sum_in_order(x: Tensor, dim: int) -> Tensor:
    """Sum over a dimension by halves, with additions value by value, whose order depends on its length only.

    The order of torch's own sums may depend on the other dimensions, and on the number of threads.
    """
    while (length := x.shape[dim]) > 1:
        half = length // 2
        halves = x.narrow(dim, 0, half) + x.narrow(dim, half, half)
        x = torch.cat([halves, x.narrow(dim, length - 1, 1)], dim) if length % 2 else halves
    return x.squeeze(dim)


def _sigmoid(x: Tensor) -> Tensor:
    """Compute the sigmoid by vector instructions for all values, which round alike."""
    flat = F.pad(x.flatten(), (0, -x.numel() % _REGISTER))
    return elementwise(torch.sigmoid, flat)[: x.numel()].view(x.shape)
