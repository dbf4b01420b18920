"""Trainable convolutional encoders: InferSent's hierarchical ConvNet (Conneau et al. 2017, section 3.2).

x_0 are the word vectors, x_l = relu(conv1d(x_(l - 1), kernel 3, padding 1)), and the vector of a text is the
maximum over its words of each x_l, side by side.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.linear import TrainableLinear
from pipeline.models.layers.pooling import TABLE_STATE, Segments, find_segments
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.trainable.backbones import Backbone, ForwardRequest

_KERNEL = 3  # words
_TABLE_RANGE = 0.1  # new word vectors are uniform in [-0.1, 0.1], as those of recurrent encoders
_REQUIRED_KEYS = ("hidden_size", "num_hidden_layers", "vocab_size", "embedding_size", "learned_words")


@dataclass(frozen=True)
class ConvolutionalShape:
    """Shape of a convolutional encoder, as in its config.json."""

    width: int
    """channels of a layer"""
    layers: int
    vocabulary: int
    word_dim: int
    learned: bool
    """True if word vectors are trained with the rest"""
    dropout: float
    """dropout rate of the input of each layer"""

    @property
    def output_width(self) -> int:
        """Number of values of the last hidden state, which has the outputs of all layers."""
        return self.width * self.layers


def convolutional_of(folder: EncoderFolder, dropout: float | None = None) -> ConvolutionalShape:
    """Read the shape from config.json.

    Args:
        folder: the encoder's folder.
        dropout: rate of dropout; None: the rate in config.json.

    Raises:
        ModelError: a value is missing.
    """
    config, file = folder.config, str(folder.transformer_path / "config.json")
    if missing := [key for key in _REQUIRED_KEYS if key not in config]:
        raise ModelError(
            file, f"the keys {', '.join(_REQUIRED_KEYS)}", f"no {missing[0]}", "restore the file"
        )
    layers = int(config["num_hidden_layers"])
    return ConvolutionalShape(
        width=int(config["hidden_size"]) // layers,
        layers=layers,
        vocabulary=int(config["vocab_size"]),
        word_dim=int(config["embedding_size"]),
        learned=bool(config["learned_words"]),
        dropout=float(config.get("dropout", 0.0)) if dropout is None else dropout,
    )


class ConvolutionalBackbone(Backbone):
    """Word vectors (hidden state 0), layers (states 1, 2, ...), and the outputs of all layers side by side.

    The maximum of the last state over the words is therefore the maximum of each layer, side by side.
    """

    def __init__(self, shape: ConvolutionalShape, path: str) -> None:
        super().__init__()
        self.shape, self._path = shape, path
        self.width, self.layers = shape.output_width, shape.layers + 1
        self.embeddings = nn.ModuleDict(
            {"word_embeddings": nn.Embedding(shape.vocabulary, shape.word_dim)}
        ).requires_grad_(shape.learned)
        input_sizes = [shape.word_dim, *[shape.width] * (shape.layers - 1)]
        self.convolutions = nn.ModuleList(
            TrainableLinear(_KERNEL * size, shape.width) for size in input_sizes
        )
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return hidden states (T, d) of the wanted numbers, and the rows of each text in them.

        Raises:
            ModelError: the request has positions, which a convolutional encoder does not use.
        """
        if request.positions is not None:
            raise ModelError(
                self._path,
                "an encoder with position embeddings, for views with permuted positions",
                "a convolutional encoder",
                "use another view",
            )
        tokens, lengths = request.tokens, request.tokens.lengths
        is_first, is_last = (self._put(ends) for ends in text_ends(tokens.offsets, len(tokens.ids)))
        words = F.embedding(self._put(tokens.ids), self.word_table)
        x = self.dropout(words)
        if request.at_embedding is not None:
            x = request.at_embedding(x, find_segments(tokens.offsets[:-1], lengths, 0, self._put))
        states, outputs = {TABLE_STATE: words, 0: x}, []
        for number, convolution in enumerate(self.layer_convolutions(), start=1):
            x = x if number == 1 else self.dropout(x)
            x = states[number] = self._run_layer(self._layer, convolution, x, is_first, is_last)
            outputs.append(x)
        states[self.layers] = torch.cat(outputs, dim=1)
        segments = find_segments(tokens.offsets[:-1], lengths, request.skip, self._put, tokens.kept)
        return {number: states[number] for number in request.wanted}, segments

    @property
    def word_table(self) -> Tensor:
        """Word vectors (vocabulary, word_dim)."""
        return self.embeddings.get_parameter("word_embeddings.weight")

    def draw(self) -> None:
        """Draw new weights from torch's generator, as torch.nn.Conv1d does; fixed word vectors stay."""
        if self.shape.learned:
            nn.init.uniform_(self.word_table, -_TABLE_RANGE, _TABLE_RANGE)
        for convolution in self.layer_convolutions():
            convolution.reset_parameters()  # uniform up to 1 / sqrt(inputs), three words' as in Conv1d

    def layer_convolutions(self) -> Iterable[TrainableLinear]:
        """Return the linear map of layer 1, 2, ...: (width, 3 * inner), of the word before, itself, after."""
        return cast(Iterable[TrainableLinear], self.convolutions)

    @staticmethod
    def _layer(convolution: nn.Module, x: Tensor, is_first: Tensor, is_last: Tensor) -> Tensor:
        return F.relu(cast(Tensor, convolution(neighbourhoods(x, is_first, is_last))))


def text_ends(offsets: np.ndarray, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the first and the last token of each text.

    Args:
        offsets: (n + 1,) first token of each text, and the end of the last.
        tokens: number T of tokens in the buffer; those after the last text are padding.

    Returns:
        is_first and is_last, (T,) bool.
    """
    ends = np.zeros((2, tokens), bool)
    ends[0, offsets[:-1]] = ends[1, offsets[1:] - 1] = True
    return ends[0], ends[1]


def neighbourhoods(x: Tensor, is_first: Tensor, is_last: Tensor) -> Tensor:
    """Put the token before, the token and the token after side by side: (T, 3 * d) for x (T, d).

    Tokens of other texts are zero, as the padding of a convolution, so that texts do not change each other.
    """
    before = F.pad(x, (0, 0, 1, 0))[:-1].masked_fill(is_first[:, None], 0.0)
    after = F.pad(x, (0, 0, 0, 1))[1:].masked_fill(is_last[:, None], 0.0)
    return torch.cat([before, x, after], dim=1)


def load_convolutional(
    folder: EncoderFolder, weights: Checkpoint, dropout: float | None = None
) -> ConvolutionalBackbone:
    """Load the backbone of a folder.

    Raises:
        ModelError: the weights do not match the configuration.
    """
    with torch.device("meta"):
        backbone = ConvolutionalBackbone(convolutional_of(folder, dropout), str(folder.path))
    weights.fill(backbone)
    return backbone
