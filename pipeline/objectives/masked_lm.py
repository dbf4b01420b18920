"""Masked language modelling as an auxiliary loss (Gao et al. 2021, section 4; Devlin et al. 2019)."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, JsonValue
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.losses.classification import mask_tokens, masked_lm
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.mlm_head import can_be_saved, has_language_head, load_language_head
from pipeline.objectives import OBJECTIVES, AddsRowTerms, Batch, Loss, MasksWords, Roles, TrainedModel, View
from pipeline.objectives.draws import numpy_generator
from pipeline.settings.training import TextRole
from pipeline.text.tokens.templates import mask_token
from pipeline.text.tokens.tokens import Tokens


@OBJECTIVES.register("masked_lm")
class MaskedLanguageModelling(AddsRowTerms, MasksWords):
    """Mean cross-entropy of the masked words of a batch, in a separate pass over a copy of the texts.

    `role` names the column of the texts. A proportion `rate` of the tokens that are not special is chosen; of
    these 80 % are masked, 10 % become another word, 10 % stay as they are. The head that predicts them is
    loaded from the encoder's folder; if there is none, it is new. Its output table is the encoder's table of
    word embeddings. With `tied` False it has a table of its own, which starts as the folder's, or as a copy
    of the word embeddings if the folder has none. The trained head is saved with the encoder, as
    transformers' AutoModelForMaskedLM reads it; inference does not use it. The objective has no views: its
    loss is a row term. Added to SimCSE with weight 0.1, it slightly improves transfer tasks and slightly
    lowers STS scores (Gao et al. 2021).
    """

    columns = ("text",)
    min_rows = 1
    allows_truncation = True  # its loss compares no vectors

    def __init__(
        self,
        encoder: nn.Module,
        *,
        role: TextRole = "text",
        rate: Annotated[float, Field(gt=0, le=1)] = 0.15,
        tied: bool = True,
    ) -> None:
        super().__init__(encoder)
        self.columns, self.role, self.rate = (role,), role, rate
        tokenizer = self.encoder.folder.tokenizer()
        vocabulary = tokenizer.vocabulary()
        self._special_counts = len(tokenizer.prefix), len(tokenizer.suffix)
        self._vocabulary_size, self._mask_id = len(vocabulary), _mask_id(self.encoder, vocabulary)
        self.head = load_language_head(self.encoder, tied=tied)
        # State of the current step, from `views` to `row_terms`.
        self._masked = self._original = Tokens(
            np.empty(0, np.int32), np.zeros(1, np.int64), np.empty(0, bool)
        )
        self._chosen_per_rank = 0.0  # mean number of chosen tokens of a rank
        self._row_by_index = dict[int, int]()  # position within the batch of the step -> row of the tokens

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> Roles:
        return Roles((str(options.get("role", "text")),))

    def views(self, batch: Batch) -> Sequence[View]:
        """Mask the words of the whole batch, so that they do not depend on chunks; return no views."""
        self._original = batch.tokens(self.role)
        self._masked = self.mask(self._original, numpy_generator())
        self._row_by_index = {index: row for row, index in enumerate(batch.step_indices.tolist())}
        return ()

    def mask(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        ids, chosen = mask_tokens(
            tokens.ids,
            ~tokens.outside_text(self._special_counts),
            mask_id=self._mask_id,
            vocabulary_size=self._vocabulary_size,
            rng=rng,
            rate=self.rate,
        )
        return Tokens(ids, tokens.offsets, tokens.truncated, kept=chosen, types=tokens.types)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        """Count the chosen tokens of all ranks; the loss itself is a row term."""
        assert self._masked.kept is not None
        chosen = torch.tensor([float(self._masked.kept.sum())], device=self.head.bias.device)
        self._chosen_per_rank = float(batch.peers.gather(chosen).mean())
        return Loss.of()

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        rows = np.array([self._row_by_index[index] for index in batch.step_indices.tolist()])
        summed = -self.summed_log_likelihood(self._masked.of_rows(rows), self._original.of_rows(rows).ids)
        # Row terms are averaged over rows and ranks; scaled, they are the mean over all chosen tokens.
        scale = len(self._original) / (len(rows) * (self._chosen_per_rank or 1.0))
        return Loss.of(masked_lm=summed * scale)

    def tokens_beside_views(self, batch: Batch) -> int:
        return len(self._masked.ids)

    def summed_log_likelihood(self, masked: Tokens, ids: np.ndarray) -> Tensor:
        assert masked.kept is not None
        states = self.encoder.states(masked)
        positions = np.flatnonzero(masked.kept)
        labels = torch.from_numpy(ids[positions].astype(np.int64)).to(states.device)
        chosen_states = states[torch.from_numpy(positions).to(states.device)]
        with self.encoder.backbone.autocast():
            logits = self.head(chosen_states, self.encoder.backbone.word_table)
        return -masked_lm(logits, labels)

    def trained_model(self) -> TrainedModel:
        return TrainedModel(self.encoder, language_head=self.head)

    def warnings(self) -> list[str]:
        warnings = []
        if not has_language_head(self.encoder):
            warnings.append(
                "masked_lm: the encoder's folder has no language model head, so a new one starts with random "
                "weights; use a checkpoint that has one"
            )
        if not can_be_saved(self.encoder.folder):
            warnings.append(
                "masked_lm: the trained encoder is saved without the language model head, because the names "
                f"of its tensors are not known for {self.encoder.folder.config.get('model_type')}"
            )
        return warnings


def _mask_id(encoder: TrainableEncoder, vocabulary: Mapping[str, int]) -> int:
    """Return the id of the mask token; ModelError if the vocabulary has none."""
    token = mask_token(encoder.folder.transformer_path, vocabulary)
    if token is None:
        raise ModelError(
            str(encoder.folder.path),
            "a tokenizer with a mask token, for masked_lm",
            "none",
            "leave masked_lm out, or use an encoder such as BERT",
        )
    return vocabulary[token]
