"""Skip-Thought (Kiros et al. 2015): the vector of a sentence lets two decoders write its neighbours."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.losses import word_prediction
from pipeline.models.folder.concatenated import check_same_reading
from pipeline.models.folder.folder import open_folder
from pipeline.models.layers.recurrence import CELLS
from pipeline.models.layers.transfer import to_device
from pipeline.models.trainable.decoder import ConditionalDecoder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, TrainedModel, View
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.tokens import Tokens

_OUTPUT_RANGE = (
    0.1  # new output vectors are uniform in [-0.1, 0.1], as all non-recurrent weights of the paper
)
_LARGE_VOCABULARY = 30_000  # words; the paper has 20,000, and the output takes most of a step


@OBJECTIVES.register("skip_thought")
class SkipThought(Objective):
    """Sum of -log P(w_t | w_<t, v) over the words of the sentences before and after, v the sentence's vector.

    Each of the two has a GRU decoder of its own, as wide as v, whose gates also get v. It reads the sentence
    from the start token on, with the right words as input, and predicts each next word to the end token. P is
    a softmax over the vocabulary; both decoders share its output vectors, and the word vectors that they read
    are those of the encoder. The loss is the mean over rows. Decoders and output vectors are not part of the
    result.

    The published models are a GRU of one direction (uni-skip), of two directions (bi-skip), and both side by
    side (combine-skip): `beside` is the encoder folder of a model that was trained on the same rows before.
    The result has its vectors behind those of the trained encoder.
    """

    columns = ("previous", "text", "next")
    min_rows = 1
    needs_folder = True
    _beside: TrainableEncoder | None = None

    def __init__(self, encoder: nn.Module, *, beside: str | None = None) -> None:
        super().__init__(encoder)
        _require_ends(self.encoder)
        vocabulary_size, word_dim = self.encoder.backbone.word_table.shape
        self.decoders = nn.ModuleDict(
            {
                role: ConditionalDecoder(
                    CELLS["gru"], inner=word_dim, width=self.dim, condition=self.dim
                ).draw()
                for role in ("previous", "next")
            }
        )
        self.output = nn.Parameter(
            torch.empty(vocabulary_size, self.dim).uniform_(-_OUTPUT_RANGE, _OUTPUT_RANGE)
        )
        if beside is not None:
            trained = load_trainable(open_folder(EncoderSettings(path=beside)))
            check_same_reading(self.encoder.folder, trained.folder)
            self.set_unregistered("_beside", trained.eval().requires_grad_(False))

    def views(self, batch: Batch) -> Sequence[View]:
        return (View(self.encoder, batch.tokens("text")),)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        """Return no loss: no row needs another, so all of it is a row term."""
        return Loss.of()

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
            f"skip_thought: each step computes a softmax over {len(self.output):,} words for every word of "
            "both neighbours; the paper has a vocabulary of 20,000 (train.recurrent.vocabulary)"
        ]

    def trained_model(self) -> TrainedModel:
        if self._beside is None:
            return TrainedModel(self.encoder)
        return TrainedModel(self.encoder, twin=self._beside.to(self.output.device))

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
        )
        return mean * (len(states) / len(tokens))  # from the mean over words to that over texts


def _require_ends(encoder: TrainableEncoder) -> None:
    """Raise ModelError unless each text is between one start token and one end token."""
    tokenizer = encoder.folder.tokenizer()
    if (len(tokenizer.prefix), len(tokenizer.suffix)) != (1, 1) or tokenizer.mask is not None:
        raise ModelError(
            str(encoder.folder.path),
            "an encoder with one token before and one after each text, for the decoders of skip_thought",
            f"{len(tokenizer.prefix)} before and {len(tokenizer.suffix)} after"
            + ("" if tokenizer.mask is None else ", those of a template"),
            "train a new recurrent encoder (train.recurrent.cell=gru)",
        )
