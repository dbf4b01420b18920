"""Forward pass of a translation model, one token of each translation of a batch at a time."""

from dataclasses import dataclass
from typing import Any, Protocol, cast

from torch import Tensor


class DecoderState(Protocol):
    """Translations of one batch that are being decoded: the encoder's states and the decoder's cache."""

    def next_logits(self, tokens: Tensor) -> Tensor:
        """Append the latest tokens (n,) and return the logits (n, V) of the next ones."""

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, (m,) indices in increasing order."""


class Stepper(Protocol):
    """Model that decodes step by step."""

    def begin(self, ids: Tensor, mask: Tensor, copies: int) -> DecoderState:
        """Encode the texts and start their translations.

        Args:
            ids: (n, L) source tokens.
            mask: (n, L), 1 for tokens and 0 for padding.
            copies: number of translations of each text; the rows of one text are adjacent.
        """


@dataclass
class GeneralState:
    """Translations that are decoded by the model's own forward pass and cache, for any architecture."""

    model: Any
    states: Tensor
    """(n, L, d) last hidden states of the encoder"""
    mask: Tensor
    """(n, L), 1 for tokens and 0 for padding"""
    cache: Any

    def next_logits(self, tokens: Tensor) -> Tensor:
        """Append the latest tokens (n,) and return the logits (n, V) of the next ones."""
        from transformers.modeling_outputs import BaseModelOutput

        output = self.model(
            decoder_input_ids=tokens[:, None],
            encoder_outputs=BaseModelOutput(last_hidden_state=self.states),
            attention_mask=self.mask,
            past_key_values=self.cache,
            use_cache=True,
            return_dict=True,
        )
        return cast(Tensor, output.logits[:, -1])

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, (m,) indices in increasing order."""
        self.states, self.mask = self.states.index_select(0, rows), self.mask.index_select(0, rows)
        self.cache.reorder_cache(rows)


@dataclass
class GeneralStepper:
    """Stepper of any encoder-decoder model of transformers."""

    model: Any

    def begin(self, ids: Tensor, mask: Tensor, copies: int) -> GeneralState:
        """Encode the texts and start `copies` translations of each; see `Stepper.begin`."""
        from transformers import DynamicCache, EncoderDecoderCache

        states = encode_source(self.model, ids, mask)
        if copies > 1:
            states, mask = states.repeat_interleave(copies, 0), mask.repeat_interleave(copies, 0)
        return GeneralState(self.model, states, mask, EncoderDecoderCache(DynamicCache(), DynamicCache()))


def encode_source(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Compute the last hidden states of the encoder, (n, L, d), for ids and mask (n, L)."""
    output = model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
    return cast(Tensor, output.last_hidden_state)
