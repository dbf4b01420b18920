"""Paragraph Vector (Le & Mikolov 2014): the vector of each row predicts the words of its text."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.errors import DataError, ModelError
from pipeline.losses.words import sampled_word_prediction
from pipeline.models.classic.paragraph import ROWS, ParagraphBackbone
from pipeline.objectives import OBJECTIVES, AddsRowTerms, Batch, Loss, View
from pipeline.objectives.draws import numpy_generator
from pipeline.text.tokens.tokens import Tokens


class _Predictions(NamedTuple):
    """Words that the rows of a step predict: for each row with a known word, `ParagraphSettings.words`."""

    tokens: Tokens
    """texts of the rows"""
    rows: np.ndarray
    """(M,) int64 position of each word's row within the batch of the step"""
    at: np.ndarray
    """(M,) int64 position of each word within the ids of `tokens`"""
    negatives: np.ndarray
    """(M, K) int64 ids of the negatives drawn for each word"""


@OBJECTIVES.register("paragraph_vector")
class ParagraphVector(AddsRowTerms):
    """Negative log-likelihood of words of each text, given the row's own vector; the mean over rows.

    In each step, words are drawn from every row's text, and the models predict them by negative sampling:
    PV-DM from the row's vector and the words before, PV-DBOW from the row's vector alone.
    `train.paragraph_vectors` creates the models and has all options. A row has one vector in all epochs,
    which is trained with the models and is not part of the result: the encoder makes the vector of any text,
    known or new, by gradient steps with the models frozen. The objective has no views: its loss is a row
    term. For vectors of words alone use `word2vec`.
    """

    columns = ("text",)
    min_rows = 1
    numbers_rows = True

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder)
        backbone, folder = self.encoder.backbone, self.encoder.folder
        if not isinstance(backbone, ParagraphBackbone):
            raise ModelError(
                str(folder.path),
                "paragraph vectors, for the objective paragraph_vector",
                f"another kind of encoder, {folder.config.get('model_type')}",
                "train new ones (train.paragraph_vectors.dim)",
            )
        start = torch.empty(int(folder.config[ROWS]), backbone.width)
        self.paragraphs = nn.Parameter(start.uniform_(-0.5 / backbone.dim, 0.5 / backbone.dim))
        self._predictions: _Predictions | None = None  # set for the current step, from `views` to `row_terms`

    def views(self, batch: Batch) -> Sequence[View]:
        """Draw the words of the whole batch, so that they do not depend on chunks; return no views.

        Raises:
            DataError: the batch has rows that the encoder's folder was not made for.
        """
        if batch.rows.max() >= len(self.paragraphs):
            raise DataError(
                "train.data",
                f"at most {len(self.paragraphs):,} rows, for which the encoder's folder was made",
                f"row {batch.rows.max():,} (counted from 0)",
                "train new paragraph vectors (train.paragraph_vectors.dim)",
            )
        tokens, settings = batch.tokens("text"), self._backbone.settings
        rng = numpy_generator()
        rows_with_words = np.flatnonzero(tokens.lengths)
        rows = np.repeat(rows_with_words, settings.words)
        at = tokens.offsets[rows] + (rng.random(len(rows)) * tokens.lengths[rows]).astype(np.int64)
        negatives = self._backbone.draw_words(rng.random((len(rows), settings.negatives)))
        self._predictions = _Predictions(tokens, batch.step_indices[rows], at, negatives)
        return ()

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        assert self._predictions is not None, "views comes first"
        tokens, positions, at, negatives = self._predictions
        rows = batch.own_rows(positions)
        rows, at, negatives = rows[rows >= 0], at[rows >= 0], negatives[rows >= 0]
        if not len(rows):  # without any known word, the loss and all gradients are 0
            return Loss.of(words=torch.stack([each.sum() for each in self.parameters()]).sum() * 0)
        device = self.paragraphs.device
        vectors = self.paragraphs[torch.from_numpy(batch.rows[rows]).to(device)]  # (M, width)
        words = torch.from_numpy(tokens.ids[at].astype(np.int64)).to(device)
        drawn = torch.from_numpy(negatives).to(device)
        losses = {}
        for name, paragraphs in self._backbone.parts(vectors).items():
            predictor = self._backbone.predictor(name)
            mean_per_word = sampled_word_prediction(
                predictor.hidden(paragraphs, self._backbone.contexts(name, tokens, at)),
                predictor.output,
                words=words,
                rows=torch.arange(len(words), device=device),
                negatives=drawn,
                bias=predictor.bias,
            )
            losses[name] = mean_per_word * (len(words) / len(batch))
        return Loss.of(**losses)

    def tokens_beside_views(self, batch: Batch) -> int:
        return 0 if self._predictions is None else len(self._predictions.tokens.ids)

    @property
    def _backbone(self) -> ParagraphBackbone:
        return cast(ParagraphBackbone, self.encoder.backbone)
