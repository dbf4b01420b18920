"""Trainable vectors of words or tokens, from which a text's vector is pooled, without layers in between."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.token_table import load_table
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.pooling import TABLE_STATE, Segments, find_segments
from pipeline.models.trainable.backbones import Backbone, ForwardRequest


class WordTable(Backbone):
    """Table of vectors of words or tokens (vocabulary, d). All hidden states are these vectors."""

    def __init__(self, path: str, table: Tensor, dropout: float) -> None:
        super().__init__()
        self._path, self._dropout = path, dropout
        self.width, self.depth = table.shape[1], 0
        self.embeddings = nn.ModuleDict(
            {"word_embeddings": nn.Embedding.from_pretrained(table, freeze=False)}
        )

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return the word vectors (tokens, d) as every wanted state, and the rows of each text in them.

        Raises:
            ModelError: the request has positions or changes the embeddings.
        """
        if request.positions is not None or request.at_embedding is not None:
            raise ModelError(
                self._path,
                "an encoder with layers, for views that permute positions or change embeddings",
                "word vectors",
                "use another view",
            )
        tokens = request.tokens
        starts, lengths = tokens.offsets[:-1], tokens.lengths
        words = F.embedding(self._put(tokens.ids), self.word_table)
        x = F.dropout(words, self._dropout, self.training)
        segments = find_segments(starts, lengths, request.skip, self._put, tokens.kept)
        states = {number: words if number == TABLE_STATE else x for number in request.wanted}
        return states, segments

    @property
    def has_dropout(self) -> bool:
        """True if two passes over one text differ in train()."""
        return self._dropout > 0

    @property
    def word_table(self) -> Tensor:
        """Word vectors (vocabulary, d)."""
        return self.embeddings.get_parameter("word_embeddings.weight")

    def draw(self) -> None:
        """Draw new word vectors from torch's generator."""
        with torch.no_grad():
            draw_vectors(self.word_table)


def draw_vectors(table: Tensor) -> Tensor:
    """Fill a table (vocabulary, d) as word2vec does, uniformly from -0.5 / d to 0.5 / d, and return it."""
    width = table.shape[1]
    return table.uniform_(-0.5 / width, 0.5 / width)


def load_word_table(folder: EncoderFolder, weights: Checkpoint, dropout: float | None = None) -> WordTable:
    """Load the table of a folder of word vectors or of static embeddings.

    Args:
        folder: the encoder's folder.
        weights: its weights.
        dropout: rate of dropout of the word vectors; None: no dropout.

    Raises:
        ModelError: the weights do not match the configuration, or `encoder.sif` would weight words, which
            a training does not do.
    """
    if folder.averaging.sif is not None:
        raise ModelError(
            "encoder.sif",
            "null, because a training gives all words equal weights",
            f"{folder.averaging.sif:g}",
            "set it to null, and set it again to encode with the trained word vectors",
        )
    table = load_table(folder, weights, folder.tokenizer())
    vectors = table.vectors(torch.arange(int(folder.config["vocab_size"])))
    return WordTable(str(folder.path), vectors.clone(), dropout or 0.0)
