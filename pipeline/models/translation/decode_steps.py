"""Forward pass of a translation model, one token of many translations at a time."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class Course(Protocol):
    """State of the translations of one batch: the encoder's states and the decoder's cache."""

    def scores(self, tokens: Tensor) -> Tensor:
        """Append the latest tokens (n,) and return the logits (n, V) of the next ones."""

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these, (m,) indices in increasing order."""


class Stepper(Protocol):
    """Model that decodes step by step."""

    def begin(self, ids: Tensor, mask: Tensor, copies: int) -> Course:
        """Encode the texts and start their translations.

        Args:
            ids: (n, L) source tokens.
            mask: (n, L), 1 for tokens and 0 for padding.
            copies: translations of each text; the rows of one text are adjacent.
        """


@dataclass
class GeneralCourse:
    """Decoding through the model's own forward pass and cache, for any architecture."""

    model: Any
    states: Tensor
    mask: Tensor
    cache: Any

    def scores(self, tokens: Tensor) -> Tensor:
        """Append the latest tokens (n,) and return the logits (n, V) of the next ones."""
        from transformers.modeling_outputs import BaseModelOutput

        scores: Tensor = self.model(
            decoder_input_ids=tokens[:, None],
            encoder_outputs=BaseModelOutput(last_hidden_state=self.states),
            attention_mask=self.mask,
            past_key_values=self.cache,
            use_cache=True,
            return_dict=True,
        ).logits[:, -1]
        return scores

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these, (m,) indices in increasing order."""
        self.states, self.mask = self.states.index_select(0, rows), self.mask.index_select(0, rows)
        self.cache.reorder_cache(rows)


class GeneralStepper:
    """Stepper of any encoder-decoder model of transformers."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def begin(self, ids: Tensor, mask: Tensor, copies: int) -> GeneralCourse:
        """Encode the texts and start `copies` translations of each; see `Stepper.begin`."""
        from transformers import DynamicCache, EncoderDecoderCache

        states = encoded(self._model, ids, mask)
        if copies > 1:
            states, mask = states.repeat_interleave(copies, 0), mask.repeat_interleave(copies, 0)
        return GeneralCourse(self._model, states, mask, EncoderDecoderCache(DynamicCache(), DynamicCache()))


def encoded(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Last hidden states of the encoder, (n, L, d), for ids and mask (n, L)."""
    states: Tensor = model.get_encoder()(
        input_ids=ids, attention_mask=mask, return_dict=True
    ).last_hidden_state
    return states
