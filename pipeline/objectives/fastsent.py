"""FastSent (Hill et al. 2016): the vector of a sentence predicts the words of its neighbours."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.losses.words import sampled_word_prediction, word_prediction
from pipeline.models.classic.word_table import draw_vectors
from pipeline.objectives import OBJECTIVES, AddsRowTerms, Batch, Loss, View
from pipeline.objectives.draws import (
    cumulative_noise,
    draw_negatives,
    numpy_generator,
    vocabulary_counts,
)

_LARGE_VOCABULARY = 20_000  # warn above this many words: a softmax over all of them takes most of a step


class _Targets(NamedTuple):
    """The words that the rows of a step predict."""

    words: np.ndarray
    """(M,) int64 ids"""
    rows: np.ndarray
    """(M,) int64 position of each word's row within the batch of the step"""
    negatives: np.ndarray
    """(M, K) int64 ids of the negatives drawn for each word; K is 0 without negative sampling"""


@OBJECTIVES.register("fastsent")
class FastSent(AddsRowTerms):
    """Sum of -log softmax(V s)_w over words w of the sentences before and after; s is a sentence's vector.

    The published model sums word vectors: a new table (`train.word_table`) has the pooling sum. The output
    vectors V are trained with it, and not part of the result. A word that occurs twice counts twice; special
    tokens do not count. The loss is the mean over rows.

    `autoencode` adds the words of the sentence itself (FastSent+AE). `negatives` is the number of negative
    samples for each word, drawn in proportion to the power 0.75 of their probabilities (Mikolov et al. 2013);
    this needs the word counts that `train.word_table` stores beside its vectors. With null, the softmax over
    the whole vocabulary is computed. `skip_thought` predicts the same words in their order.
    """

    columns = ("previous", "text", "next")
    min_rows = 1

    def __init__(
        self,
        encoder: nn.Module,
        *,
        autoencode: bool = False,
        negatives: Annotated[int, Field(ge=1)] | None = None,
    ) -> None:
        super().__init__(encoder)
        self._predicted_roles = self.columns if autoencode else ("previous", "next")
        self.negatives = negatives
        tokenizer = self.encoder.folder.tokenizer()
        self._special_counts = len(tokenizer.prefix), len(tokenizer.suffix)
        vocabulary_size, width = len(self.encoder.backbone.word_table), self.dim
        self.output = nn.Parameter(draw_vectors(torch.empty(vocabulary_size, width)))
        self._cumulative: np.ndarray | None = None
        if negatives is not None:
            remedy = "train new word vectors (train.word_table.dim), or set negatives to null"
            self._cumulative = cumulative_noise(vocabulary_counts(self.encoder, remedy))
        self._targets: _Targets | None = None  # set for the current step, from `views` to `row_terms`

    def views(self, batch: Batch) -> Sequence[View]:
        """Draw the negatives of the whole batch, so that they do not depend on chunks."""
        self._targets = self._collect(batch)
        return (View(self.encoder, batch.tokens("text")),)

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        assert self._targets is not None, "views comes first"
        rows = batch.own_rows(self._targets.rows)
        words, negatives = self._targets.words[rows >= 0], self._targets.negatives[rows >= 0]
        rows = rows[rows >= 0]
        (vectors,), device = outputs, self.output.device
        predicted = {"words": torch.from_numpy(words).to(device), "rows": torch.from_numpy(rows).to(device)}
        if self.negatives is None:
            return Loss.of(words=word_prediction(vectors, self.output, **predicted))
        drawn = torch.from_numpy(negatives).to(device)
        return Loss.of(words=sampled_word_prediction(vectors, self.output, **predicted, negatives=drawn))

    def warnings(self) -> list[str]:
        if self.negatives is not None or len(self.output) <= _LARGE_VOCABULARY:
            return []
        return [
            f"fastsent: each step computes a softmax over {len(self.output):,} words; set negatives to 5 for "
            "negative sampling"
        ]

    def _collect(self, batch: Batch) -> _Targets:
        """Return the words that each row of the batch predicts, and draw their negatives."""
        words, rows = [], []
        for role in self._predicted_roles:
            tokens = batch.tokens(role)
            is_word = ~tokens.outside_text(self._special_counts)
            words.append(tokens.ids[is_word].astype(np.int64))
            rows.append(np.repeat(batch.step_indices, tokens.lengths)[is_word])
        count = sum(map(len, words))
        negatives = np.empty((count, 0), np.int64)
        if self._cumulative is not None:
            negatives = draw_negatives(self._cumulative, (count, self.negatives or 0), numpy_generator())
        return _Targets(np.concatenate(words), np.concatenate(rows), negatives)
