"""A model's forward pass, one token of many translations at a time."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class Course(Protocol):
    """Translations that are being written."""

    def scores(self, tokens: Tensor) -> Tensor:
        """(n, V) logits of what comes after `tokens` (n,), the last ones written."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone, (m,) in rising order."""
        ...


class Stepper(Protocol):
    """A model that begins courses."""

    def begin(self, ids: Tensor, mask: Tensor, copies: int, longest: int) -> Course:
        """Of `copies` translations of each text in ids (n, L), mask (n, L) 1 for its tokens; of at most `longest` tokens."""
        ...


@dataclass
class GeneralCourse:
    """Through the model's own forward pass and cache, whatever its architecture."""

    model: Any
    states: Tensor
    mask: Tensor
    cache: Any

    def scores(self, tokens: Tensor) -> Tensor:
        from transformers.modeling_outputs import BaseModelOutput

        given = {
            "encoder_outputs": BaseModelOutput(last_hidden_state=self.states),
            "attention_mask": self.mask,
            "past_key_values": self.cache,
        }
        scores: Tensor = self.model(
            decoder_input_ids=tokens[:, None], use_cache=True, return_dict=True, **given
        ).logits[:, -1]
        return scores

    def keep(self, rows: Tensor) -> None:
        self.states, self.mask = self.states.index_select(0, rows), self.mask.index_select(0, rows)
        self.cache.reorder_cache(rows)


class GeneralStepper:
    """Any encoder-decoder of transformers."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def begin(self, ids: Tensor, mask: Tensor, copies: int, longest: int) -> GeneralCourse:
        from transformers import DynamicCache, EncoderDecoderCache

        states = encoded(self._model, ids, mask)
        if copies > 1:
            states, mask = states.repeat_interleave(copies, 0), mask.repeat_interleave(copies, 0)
        return GeneralCourse(self._model, states, mask, EncoderDecoderCache(DynamicCache(), DynamicCache()))


def encoded(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """(n, L, d): the encoder's last states."""
    states: Tensor = model.get_encoder()(
        input_ids=ids, attention_mask=mask, return_dict=True
    ).last_hidden_state
    return states
