"""Masked language modelling as an auxiliary loss (Gao et al. 2021, section 4; Devlin et al. 2019)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, JsonValue
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.losses import mask_words, masked_lm
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.mlm_head import has_language_head, load_language_head
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, View
from pipeline.text.tokens.templates import mask_token
from pipeline.text.tokens.tokens import Tokens, frame_masks

Role = Literal["text", "sentence1", "sentence2", "premise", "hypothesis", "anchor", "positive", "negative"]
_SEEDS = (1 << 63) - 1


@OBJECTIVES.register("masked_lm")
class MaskedLanguageModelling(Objective):
    """Mean cross-entropy of the masked words of a batch, in a separate pass over a copy of the texts.

    `rate` of the tokens that are not special are chosen; of these 80 % are masked, 10 % become another word,
    10 % stay as they are. The head is that of the folder if it has one, else a new one on the encoder's word
    embeddings; inference does not use it. The objective has no views: its loss is a row term. Beside SimCSE,
    with weight 0.1, it improves transfer tasks a little and STS scores drop a little (Gao et al. 2021).
    """

    columns = ("text",)
    min_rows = 1
    allows_truncation = True  # it compares no vectors
    needs_folder = True

    def __init__(
        self, encoder: nn.Module, *, role: Role = "text", rate: Annotated[float, Field(gt=0, le=1)] = 0.15
    ) -> None:
        super().__init__(encoder)
        self.columns, self.role, self.rate = (role,), role, rate
        tokenizer = self.encoder.folder.tokenizer()
        self._special = len(tokenizer.prefix), len(tokenizer.suffix)
        self._vocabulary = len(tokenizer.vocabulary())
        self._mask_id = _mask_id(self.encoder, tokenizer.vocabulary())
        self.head = load_language_head(self.encoder)
        self._masked = self._plain = Tokens(np.empty(0, np.int32), np.zeros(1, np.int64), np.empty(0, bool))
        self._masked_words = 0.0  # per rank, on average
        self._row_of = dict[int, int]()  # index within the batch of the step -> row of the masked tokens

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (str(options.get("role", "text")),), ()

    def views(self, batch: Batch) -> Sequence[View]:
        """Mask the words of the whole batch, so that they do not depend on chunks; return no views."""
        plain = batch.tokens(self.role)
        around = plain.around  # special tokens, and those of a template
        if around is None:
            around = frame_masks(plain.offsets, *self._special, 0)[1]
        ids, chosen = mask_words(
            plain.ids,
            ~around,
            mask_id=self._mask_id,
            words=self._vocabulary,
            rng=np.random.default_rng(int(torch.randint(_SEEDS, ()).item())),
            rate=self.rate,
        )
        self._row_of = {index: row for row, index in enumerate(_indices(batch))}
        self._plain, self._masked = plain, Tokens(ids, plain.offsets, plain.truncated, kept=chosen)
        return ()

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        assert self._masked.kept is not None
        own = torch.tensor([float(self._masked.kept.sum())], device=self.head.bias.device)
        self._masked_words = float(batch.peers.gather(own).mean())
        return Loss.of()

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        rows = np.array([self._row_of[index] for index in _indices(batch)])
        masked, words = self._masked.of_rows(rows), self._plain.of_rows(rows).ids
        assert masked.kept is not None
        states, chosen = self.encoder.states(masked), np.flatnonzero(masked.kept)
        at, labels = (
            torch.from_numpy(each).to(states.device) for each in (chosen, words[chosen].astype(np.int64))
        )
        total = masked_lm(self.head(states[at], self.encoder.backbone.words), labels, total=1)
        # Scaled so that the mean over rows is the mean over masked words.
        return Loss.of(masked_lm=total * (len(self._plain) / (len(rows) * max(self._masked_words, 1.0))))

    def warnings(self) -> list[str]:
        if has_language_head(self.encoder):
            return []
        return [
            "masked_lm: the encoder's folder has no language model head, so a new one starts with random "
            "weights; use a checkpoint that has one"
        ]


def _indices(batch: Batch) -> list[int]:
    return list(range(len(batch))) if batch.indices is None else batch.indices.tolist()


def _mask_id(encoder: TrainableEncoder, vocabulary: Mapping[str, int]) -> int:
    name = mask_token(encoder.folder.beside_config(""), vocabulary)
    if name is None:
        raise ModelError(
            str(encoder.folder.path),
            "a tokenizer with a mask token, for masked_lm",
            "none",
            "leave masked_lm out, or use an encoder such as BERT",
        )
    return vocabulary[name]
