"""The words behind masks, as a term beside another objective (Gao et al. 2021, section 4 and appendix; Devlin et al. 2019, section 3.1)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, cast

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
class MaskedLM(Objective):
    """What telling the words behind masks costs, in a pass of its own over a copy of the texts: the mean over all masked words of the batch.

    `rate` of the tokens that are not special are chosen; of these 80 % are masked, 10 % become another word, 10 % stay. The head is the folder's own where it has one,
    else a new one, with the encoder's word table; it belongs to the training alone. There are no views: it is made of row terms. Beside SimCSE, with weight 0.1, it
    helps transfer tasks a little and harms STS a little.
    """

    columns = ("text",)
    least_rows = 1
    truncates = True  # nothing: it compares no vectors
    reads_folder = True

    def __init__(
        self, encoder: nn.Module, *, role: Role = "text", rate: Annotated[float, Field(gt=0, le=1)] = 0.15
    ) -> None:
        super().__init__(encoder)
        self.columns, self.role, self.rate = (role,), role, rate
        trained = cast(TrainableEncoder, encoder)
        tokenizer = trained.folder.tokenizer()
        self._ends, self._vocabulary = (
            (len(tokenizer.prefix), len(tokenizer.suffix)),
            len(tokenizer.vocabulary()),
        )
        self._mask_id = _mask_id(trained, tokenizer.vocabulary())
        self.head = load_language_head(trained)
        self._masked = self._plain = Tokens(np.empty(0, np.int32), np.zeros(1, np.int64), np.empty(0, bool))
        self._words, self._at = (
            0.0,
            dict[int, int](),
        )  # masked ones of a rank, on average; where a row of the batch stands in these

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (str(options.get("role", "text")),), ()

    def views(self, batch: Batch) -> Sequence[View]:
        """None; the words of the whole batch are masked here, so that they are the same in any chunks."""
        plain = batch.tokens(self.role)
        drawn = np.random.default_rng(int(torch.randint(_SEEDS, ()).item()))
        around = (
            frame_masks(plain.offsets, *self._ends, 0)[1] if plain.around is None else plain.around
        )  # special tokens, and those of a template
        ids, chosen = mask_words(
            plain.ids, ~around, mask_id=self._mask_id, words=self._vocabulary, rng=drawn, rate=self.rate
        )
        self._at = {place: row for row, place in enumerate(_places(batch))}
        self._plain, self._masked = plain, Tokens(ids, plain.offsets, plain.truncated, kept=chosen)
        return ()

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        assert self._masked.kept is not None
        own = torch.tensor([float(self._masked.kept.sum())], device=self.head.bias.device)
        self._words = float(batch.peers.gather(own).mean())
        return Loss.of()

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        rows = np.array([self._at[place] for place in _places(batch)])
        masked, words = self._masked.of_rows(rows), self._plain.of_rows(rows).ids
        encoder = cast(TrainableEncoder, self.encoder)
        assert masked.kept is not None
        states, chosen = encoder.states(masked), np.flatnonzero(masked.kept)
        at, told = (
            torch.from_numpy(each).to(states.device) for each in (chosen, words[chosen].astype(np.int64))
        )
        cost = masked_lm(self.head(states[at], encoder.backbone.words), told, total=1)
        return Loss.of(
            masked_lm=cost * (len(self._plain) / (len(rows) * max(self._words, 1.0)))
        )  # whose mean by rows is that by words

    def doubts(self) -> list[str]:
        if has_language_head(cast(TrainableEncoder, self.encoder)):
            return []
        return [
            "masked_lm: the encoder's folder has no head of a language model, so a new one begins with random weights; start from a checkpoint that has its own"
        ]


def _places(batch: Batch) -> list[int]:
    return list(range(len(batch))) if batch.places is None else batch.places.tolist()


def _mask_id(encoder: TrainableEncoder, vocabulary: Mapping[str, int]) -> int:
    name = mask_token(encoder.folder.beside_config(""), vocabulary)
    if name is None:
        raise ModelError(
            str(encoder.folder.path),
            "a tokenizer with a mask token, for masked words",
            "none",
            "leave masked_lm out, or use an encoder such as BERT",
        )
    return vocabulary[name]
