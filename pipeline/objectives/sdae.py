"""Sequential denoising auto-encoder (SDAE, Hill, Cho & Korhonen 2016): a decoder writes the text again."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import nn

from pipeline.augment.corrupt import omit_words, swap_bigrams
from pipeline.objectives import OBJECTIVES, Batch, View
from pipeline.objectives.draws import numpy_generator
from pipeline.objectives.encoder_decoder import EncoderDecoder
from pipeline.settings.augment import Proportion
from pipeline.text.tokens.tokens import Tokens


@OBJECTIVES.register("sdae")
class SequentialDenoisingAutoEncoder(EncoderDecoder):
    """Negative log-likelihood of a text, written by a decoder from the vector of its corrupted words.

    Each step draws the noise N(S | p_o, p_x) again: every word is deleted with probability `omit` (p_o), but
    at least one is kept; then each of the pairs of words (0, 1), (2, 3) ... is exchanged with probability
    `swap` (p_x). These are the edits of the augmenter `corrupt`. Start and end token stay in their positions.
    With omit and swap 0 this is the sequential auto-encoder (SAE). The decoder has the recurrent cell
    `decoder`. For sentences in documents use `skip_thought`; for pairs of languages, `translation`.
    """

    columns = ("text",)

    def __init__(
        self,
        encoder: nn.Module,
        *,
        omit: Proportion = 0.1,
        swap: Proportion = 0.1,
        decoder: Literal["gru", "lstm"] = "lstm",
    ) -> None:
        super().__init__(encoder, written=("text",), cell=decoder)
        self.omit, self.swap = omit, swap

    def views(self, batch: Batch) -> Sequence[View]:
        """Corrupt the words of the whole batch, so that they do not depend on chunks."""
        return (View(self.encoder, self._corrupt(batch.tokens("text"))),)

    def _corrupt(self, tokens: Tokens) -> Tokens:
        """Draw the noise from torch's generator; each text has one start and one end token."""
        rng = numpy_generator()
        rows = []
        for first, *words, last in np.split(tokens.ids, tokens.offsets[1:-1]):
            kept = swap_bigrams(omit_words(words, self.omit, rng), self.swap, rng)
            rows.append([first, *kept, last])
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return Tokens(np.concatenate(rows, dtype=np.int32), offsets, tokens.truncated)
