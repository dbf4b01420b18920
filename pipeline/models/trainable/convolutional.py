"""Trainable convolutional encoders: InferSent's hierarchical ConvNet (Conneau et al. 2017, section 3.2).

x_0 are the word vectors, x_l = relu(conv1d(x_(l - 1), kernel 3, padding 1)), and the vector of a text is the
maximum over its words of each x_l, side by side.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.linear import TrainableLinear
from pipeline.models.layers.ngrams import neighbourhoods
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.trainable.word_backbone import WordBackbone, WordShape
from pipeline.text.tokens.tokens import Tokens

REACH = 1  # words on each side of a kernel of three
_REQUIRED_KEYS = ("hidden_size", "num_hidden_layers", "vocab_size", "embedding_size", "learned_words")


@dataclass(frozen=True, kw_only=True)
class ConvolutionalShape(WordShape):
    """Shape of a convolutional encoder, as in its config.json."""

    width: int
    """channels of a layer"""
    layers: int

    @property
    def output_width(self) -> int:
        """Number of values of the last hidden state, which has the outputs of all layers."""
        return self.width * self.layers


def convolutional_shape(folder: EncoderFolder, dropout: float | None = None) -> ConvolutionalShape:
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


class ConvolutionalBackbone(WordBackbone):
    """The states of the layers, and as the last state the outputs of all layers side by side.

    The maximum of the last state over the words is therefore the maximum of each layer, side by side.
    """

    name = "a convolutional encoder"

    def __init__(self, shape: ConvolutionalShape, path: str) -> None:
        super().__init__(shape, path)
        self.width, self.depth = shape.output_width, shape.layers + 1
        input_sizes = [shape.word_dim, *[shape.width] * (shape.layers - 1)]
        self.convolutions = nn.ModuleList(
            TrainableLinear((2 * REACH + 1) * size, shape.width) for size in input_sizes
        )

    def _layer_states(self, x: Tensor, tokens: Tokens, wanted: set[int]) -> dict[int, Tensor]:
        owners = self._put(tokens.owners)
        outputs: list[Tensor] = []
        for convolution in self.layer_convolutions():
            x = self.dropout(x) if outputs else x
            x = self._run_layer(self._layer, convolution, x, owners)
            outputs.append(x)
        return dict(enumerate([*outputs, torch.cat(outputs, dim=1)], start=1))

    def _draw_layers(self) -> None:
        """Draw new weights as torch.nn.Conv1d does."""
        for convolution in self.layer_convolutions():
            convolution.reset_parameters()  # uniform up to 1 / sqrt(inputs): the values of three words

    def layer_convolutions(self) -> Iterable[TrainableLinear]:
        """Return the linear map of layer 1, 2, ...: (width, 3 * inner), see `neighbourhoods`."""
        return cast(Iterable[TrainableLinear], self.convolutions)

    @staticmethod
    def _layer(convolution: nn.Module, x: Tensor, owners: Tensor) -> Tensor:
        return F.relu(cast(Tensor, convolution(neighbourhoods(x, owners, REACH))))


def load_convolutional(
    folder: EncoderFolder, weights: Checkpoint, dropout: float | None = None
) -> ConvolutionalBackbone:
    """Load the backbone of a folder.

    Raises:
        ModelError: the weights do not match the configuration.
    """
    with torch.device("meta"):
        backbone = ConvolutionalBackbone(convolutional_shape(folder, dropout), str(folder.path))
    weights.fill(backbone)
    return backbone
