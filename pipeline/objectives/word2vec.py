"""word2vec (Mikolov et al. 2013): words predict the words around them, by CBOW or by Skip-gram."""

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.losses.words import sampled_word_prediction
from pipeline.models.classic.word_table import WordTable, draw_vectors
from pipeline.objectives import OBJECTIVES, AddsRowTerms, Batch, Loss, PositiveFloat, View
from pipeline.objectives.draws import (
    cumulative_noise,
    draw_negatives,
    numpy_generator,
    vocabulary_counts,
)
from pipeline.text.tokens.tokens import Tokens

_REMEDY = "train new word vectors (train.word_table.dim)"


class _WordPredictions(NamedTuple):
    """The words that a step predicts, each with the words that predict it."""

    rows: np.ndarray
    """(M,) int64 position of each predicted word's row within the batch of the step"""
    words: np.ndarray
    """(M,) int64 ids of the predicted words"""
    inputs: np.ndarray
    """(M, C) int64 ids of the words that predict; C is 1 for Skip-gram, at most 2 `window` for CBOW"""
    is_input: np.ndarray
    """(M, C) bool: False for an entry beyond the ends of the text; each row has an entry that is True"""
    negatives: np.ndarray
    """(M, K) int64 ids of the negatives drawn for each predicted word"""


@OBJECTIVES.register("word2vec")
class Word2Vec(AddsRowTerms):
    """Negative log-likelihood of words, given words of the same text that are near them.

    With `model: cbow` each word is predicted from the mean of the vectors of all words within `window`; with
    `skipgram` each of these words is predicted from the word in their middle. The window is the same for all
    words, whereas the program of word2vec draws a smaller one for most. An occurrence of a word is left out
    with probability 1 - sqrt(subsample / f), where f is the word's proportion of all words; this is drawn in
    each step, before windows are taken. With `subsample` null, no word is left out. `negatives` words are
    drawn for each predicted one, in proportion to their counts to the power of 0.75. The loss is the mean
    over rows of the sum over predicted words.

    It trains word vectors alone (`train.word_table`); output vectors are trained with them, and are not part
    of the result. The objective has no views: its loss is a row term. For vectors of texts use `fastsent` or
    `paragraph_vector`.
    """

    columns = ("text",)
    min_rows = 1

    def __init__(
        self,
        encoder: nn.Module,
        *,
        model: Literal["cbow", "skipgram"] = "cbow",
        window: Annotated[int, Field(ge=1)] = 5,
        negatives: Annotated[int, Field(ge=1)] = 5,
        subsample: PositiveFloat | None = 1e-3,
    ) -> None:
        super().__init__(encoder)
        backbone, folder = self.encoder.backbone, self.encoder.folder
        if not isinstance(backbone, WordTable):
            raise ModelError(
                str(folder.path),
                "word vectors, for the objective word2vec",
                f"another kind of encoder, {folder.config.get('model_type')}",
                _REMEDY,
            )
        self.model, self.window, self.negatives = model, window, negatives
        counts = vocabulary_counts(self.encoder, _REMEDY)
        self._cumulative = cumulative_noise(counts)
        self._kept = None if subsample is None else _keep_probabilities(counts, subsample)
        self.output = nn.Parameter(draw_vectors(torch.empty(len(counts), backbone.width)))
        # State of the current step, from `views` to `row_terms`.
        self._predictions: _WordPredictions | None = None
        self._tokens = 0

    def views(self, batch: Batch) -> Sequence[View]:
        """Draw the words of the whole batch, so that they do not depend on chunks; return no views."""
        rng, tokens = numpy_generator(), batch.tokens("text")
        self._tokens = len(tokens.ids)
        ids, owners = self._subsampled(tokens, rng)
        nearby, is_near = _windows(ids, owners, self.window)
        if self.model == "skipgram":  # one prediction for each pair of words
            centres, sides = np.nonzero(is_near)
            owners, words, inputs = owners[centres], nearby[centres, sides], ids[centres][:, None]
            is_input = np.ones_like(inputs, bool)
        else:
            chosen = is_near.any(axis=1)
            owners, words, inputs, is_input = owners[chosen], ids[chosen], nearby[chosen], is_near[chosen]
        negatives = draw_negatives(self._cumulative, (len(words), self.negatives), rng)
        self._predictions = _WordPredictions(batch.step_indices[owners], words, inputs, is_input, negatives)
        return ()

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        assert self._predictions is not None, "views comes first"
        chosen = np.isin(self._predictions.rows, batch.step_indices)
        table = self.encoder.backbone.word_table
        if not chosen.any():  # every text has fewer than two words
            return Loss.of(words=(table.sum() + self.output.sum()) * 0)
        words, inputs, is_input, negatives = (
            torch.from_numpy(values[chosen]).to(table.device) for values in self._predictions[1:]
        )
        weights = is_input / is_input.sum(dim=1, keepdim=True)
        hidden = torch.einsum("mc,mcd->md", weights.to(table.dtype), F.embedding(inputs, table))
        mean_per_word = sampled_word_prediction(
            hidden,
            self.output,
            words=words,
            rows=torch.arange(len(words), device=table.device),
            negatives=negatives,
        )
        return Loss.of(words=mean_per_word * (len(words) / len(batch)))

    def tokens_beside_views(self, batch: Batch) -> int:
        return self._tokens

    def _subsampled(self, tokens: Tokens, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Leave out frequent words at random; return ids (n,) and rows (n,) of the words that remain."""
        ids, owners = tokens.ids.astype(np.int64), tokens.owners
        if self._kept is None:
            return ids, owners
        chosen = rng.random(len(ids)) < self._kept[ids]
        return ids[chosen], owners[chosen]


def _keep_probabilities(counts: np.ndarray, subsample: float) -> np.ndarray:
    """Return (vocabulary,) probabilities sqrt(subsample / f) to keep a word (Mikolov et al. 2013, eq. 5).

    Words with a value above 1, and words of the vocabulary without a count, are always kept.
    """
    proportions = counts / counts.sum()
    return np.sqrt(np.divide(subsample, proportions, out=np.ones(len(counts)), where=proportions > 0))


def _windows(ids: np.ndarray, owners: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the words within `window` of each word.

    Args:
        ids: (n,) ids of the words of all texts, one text after another.
        owners: (n,) the text of each word.
        window: number of words on each side.

    Returns:
        (n, 2 window) ids, and (n, 2 window) bool: False for an entry that is not in the word's text.
    """
    offsets = np.array([offset for offset in range(-window, window + 1) if offset])
    at = np.arange(len(ids))[:, None] + offsets
    inside = (at >= 0) & (at < len(ids))
    at = np.where(inside, at, 0)
    return ids[at], inside & (owners[at] == owners[:, None])
