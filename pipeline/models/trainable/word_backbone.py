"""Base of new encoders with layers over the words of a text, whose word vectors are learned or fixed."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.spec.pooling import TABLE_STATE, Segments, find_segments
from pipeline.models.trainable.backbones import Backbone, ForwardRequest
from pipeline.text.tokens.tokens import Tokens

_TABLE_RANGE = 0.1  # new word vectors are uniform in [-0.1, 0.1], as in Skip-Thought


@dataclass(frozen=True, kw_only=True)
class WordShape:
    """Word vectors of an encoder, as in its config.json, and its dropout."""

    vocabulary: int
    word_dim: int
    learned: bool
    """True if word vectors are trained with the rest"""
    dropout: float
    """dropout rate of the input of each layer"""


class WordBackbone(Backbone):
    """Word vectors (hidden state 0, after dropout), and layers over the words (states 1, 2, ...)."""

    name: ClassVar[str]
    """for messages, such as "a recurrent encoder" """

    def __init__(self, shape: WordShape, path: str) -> None:
        super().__init__()
        self._path, self._learned = path, shape.learned
        self.embeddings = nn.ModuleDict(
            {"word_embeddings": nn.Embedding(shape.vocabulary, shape.word_dim)}
        ).requires_grad_(shape.learned)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return hidden states (T, d) of the wanted numbers, and the rows of each text in them.

        Raises:
            ModelError: the request has positions, which these encoders do not use.
        """
        if request.positions is not None:
            raise ModelError(
                self._path,
                "an encoder with position embeddings, for views with permuted positions",
                self.name,
                "use another view",
            )
        tokens, starts, lengths = request.tokens, request.tokens.offsets[:-1], request.tokens.lengths
        words = F.embedding(self._put(tokens.ids), self.word_table)
        x: Tensor = self.dropout(words)
        if request.at_embedding is not None:
            x = request.at_embedding(x, find_segments(starts, lengths, 0, self._put))
        states = {TABLE_STATE: words, 0: x} | self._layer_states(x, tokens, request.wanted)
        segments = find_segments(starts, lengths, request.skip, self._put, tokens.kept)
        return {number: states[number] for number in request.wanted}, segments

    def _layer_states(self, x: Tensor, tokens: Tokens, wanted: set[int]) -> dict[int, Tensor]:
        """Compute the hidden states 1, 2, ... (T, d) from state 0 (T, word_dim), at least the wanted ones."""
        raise NotImplementedError

    @property
    def word_table(self) -> Tensor:
        """Word vectors (vocabulary, word_dim)."""
        return self.embeddings.get_parameter("word_embeddings.weight")

    def draw(self) -> None:
        """Draw new weights from torch's generator; fixed word vectors stay."""
        if self._learned:
            nn.init.uniform_(self.word_table, -_TABLE_RANGE, _TABLE_RANGE)
        self._draw_layers()

    def _draw_layers(self) -> None:
        """Draw new weights of the layers."""
        raise NotImplementedError
