"""Base class of objectives in which recurrent decoders write texts, given the vector of a text."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import JsonValue
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.losses.words import word_prediction
from pipeline.models.classic.recurrence import CELLS
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.transfer import to_device
from pipeline.models.trainable.decoder import ConditionalDecoder
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.objectives import AddsRowTerms, Batch, Loss, View
from pipeline.text.tokens.tokens import Tokens

# New output vectors are uniform in [-0.1, 0.1], as all non-recurrent weights of Skip-Thought are.
_OUTPUT_RANGE = 0.1
# Offset of the ranks in Zipf's law, by Mandelbrot (1953) for English words.
_RANK_OFFSET = 2.7
# warn above this many words: Skip-Thought has 20,000, and the output takes most of a step
_LARGE_VOCABULARY = 30_000


class EncoderDecoder(AddsRowTerms):
    """Sum of -log P(w_t | w_<t, v) over the words of texts; v is the vector of the text in the column `text`.

    Each role in `written` has its own decoder, as wide as v, whose gates also get v. It reads the text from
    the start token on (teacher forcing), and predicts each next word up to the end token. P is a softmax over
    the vocabulary. The decoders share its output vectors and biases, and read the encoder's word vectors. The
    loss is the mean over rows. Decoders, output vectors and biases are not part of the result.

    The published programs of Skip-Thought and SDAE have output biases, too. Here they start as logarithms of
    the frequencies that Zipf's law gives words by their rank, because vocabularies list frequent words first.
    Otherwise the first steps make v the same for all texts, because decoders that know no frequencies learn
    them through v.

    Args:
        encoder: the encoder to train, with a start and an end token around each text.
        written: roles of the texts to write.
        cell: recurrent cell of the decoders.
    """

    min_rows = 1

    def __init__(self, encoder: nn.Module, *, written: Sequence[str], cell: str) -> None:
        super().__init__(encoder)
        _require_ends(self.encoder)
        vocabulary_size, word_dim = self.encoder.backbone.word_table.shape
        self.decoders = nn.ModuleDict(
            {
                role: ConditionalDecoder(
                    CELLS[cell], inner=word_dim, width=self.dim, condition=self.dim
                ).draw()
                for role in written
            }
        )
        self.output = nn.Parameter(
            torch.empty(vocabulary_size, self.dim).uniform_(-_OUTPUT_RANGE, _OUTPUT_RANGE)
        )
        self.bias = nn.Parameter(_log_frequencies(vocabulary_size, self.encoder.folder.tokenizer().prefix))

    @classmethod
    def correction(cls, options: Mapping[str, JsonValue], encoder: EncoderFolder) -> str | None:
        return "output biases"

    def views(self, batch: Batch) -> Sequence[View]:
        return (View(self.encoder, batch.tokens("text")),)

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        (vectors,) = outputs
        return Loss.of(
            **{
                role: self._predict(decoder, vectors, batch.tokens(role))
                for role, decoder in self.decoders.items()
            }
        )

    def warnings(self) -> list[str]:
        if len(self.output) <= _LARGE_VOCABULARY:
            return []
        return [
            f"each step computes a softmax over {len(self.output):,} words for every word that a decoder "
            "writes; Skip-Thought has a vocabulary of 20,000 (train.recurrent.vocabulary)"
        ]

    def _predict(self, decoder: nn.Module, vectors: Tensor, tokens: Tokens) -> Tensor:
        """Mean over texts of the sum of -log P of their tokens, from the second to the end token."""
        read = tokens.positions < np.repeat(tokens.lengths - 1, tokens.lengths)
        table = self.encoder.backbone.word_table
        words = F.embedding(to_device(tokens.ids[read], table.device), table)
        states = decoder(words, vectors, tokens.lengths - 1)
        mean = word_prediction(
            states,
            self.output,
            words=to_device(tokens.ids[tokens.positions > 0].astype(np.int64), table.device),
            rows=torch.arange(len(states), device=table.device),
            bias=self.bias,
        )
        return mean * (len(states) / len(tokens))  # from the mean over words to the mean over texts


def _log_frequencies(count: int, never: Sequence[int]) -> Tensor:
    """Return logarithms (count,) of the frequencies of words in the order of their rank, by Zipf's law.

    Args:
        count: number of words.
        never: tokens that are never predicted, such as the start token; each gets the lowest frequency.
    """
    ranks = torch.arange(count, dtype=torch.float32)
    ranks[list(never)] = count - 1
    return F.log_softmax(-torch.log(ranks + _RANK_OFFSET), dim=0)


def _require_ends(encoder: TrainableEncoder) -> None:
    """Raise ModelError unless each text is between one start token and one end token."""
    tokenizer = encoder.folder.tokenizer()
    if (len(tokenizer.prefix), len(tokenizer.suffix)) != (1, 1) or tokenizer.mask is not None:
        raise ModelError(
            str(encoder.folder.path),
            "an encoder with one token before and one after each text, which its decoders read and predict",
            f"{len(tokenizer.prefix)} before and {len(tokenizer.suffix)} after"
            + ("" if tokenizer.mask is None else ", those of a template"),
            "train a new recurrent encoder (train.recurrent.cell=gru)",
        )
