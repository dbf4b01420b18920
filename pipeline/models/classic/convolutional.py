"""Convolutional encoders: InferSent's hierarchical ConvNet (Conneau et al. 2017, section 3.2).

x_0 are the word vectors, x_l = relu(conv1d(x_(l - 1), kernel 3, padding 1)), and the vector of a text is the
maximum over its words of each x_l, side by side.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.models.classic.base import WordBackbone, WordModel, WordShape
from pipeline.models.classic.new_vocabulary import new_vocabulary, write_new_encoder, write_pooling
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.word_vectors import CONVOLUTIONAL
from pipeline.models.layers.linear import Linear, TrainableLinear
from pipeline.models.layers.ngrams import neighbourhoods
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.pooling import TABLE_STATE
from pipeline.settings.weights import ConvolutionalSettings
from pipeline.text.tokens.tokens import Tokens

FORMAT = 1  # version of the folders; raise it when they are written differently
_REACH = 1  # words on each side of a kernel of three


@dataclass(frozen=True, kw_only=True)
class ConvolutionalShape(WordShape):
    """Shape of a convolutional encoder. The last hidden state has the outputs of all layers."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    embedding_size: int
    learned_words: bool
    dropout: float = 0.0

    @property
    def width(self) -> int:
        """Channels of a layer."""
        return self.hidden_size // self.num_hidden_layers


class ConvolutionalBackbone(WordBackbone):
    """The states of the layers; the last state has the outputs of all layers side by side.

    The maximum of the last state over the words is therefore the maximum of each layer, side by side.
    """

    name, model_type, shape_type = "a convolutional encoder", CONVOLUTIONAL, ConvolutionalShape

    def __init__(self, shape: ConvolutionalShape, path: str) -> None:
        super().__init__(shape, path)
        self.width, self.depth = shape.hidden_size, shape.num_hidden_layers + 1
        input_sizes = [shape.word_dim, *[shape.width] * (shape.num_hidden_layers - 1)]
        self.convolutions = nn.ModuleList(
            TrainableLinear((2 * _REACH + 1) * size, shape.width) for size in input_sizes
        )

    def _layer_states(self, x: Tensor, tokens: Tokens, wanted: set[int]) -> dict[int, Tensor]:
        owners = self._put(tokens.owners)
        outputs: list[Tensor] = []
        for convolution in self.layer_convolutions():
            x = self.dropout(x) if outputs else x
            x = self._run_layer(self._layer, convolution, x, owners)
            outputs.append(x)
        return dict(enumerate([*outputs, torch.cat(outputs, dim=1)], start=1))

    def draw(self) -> None:
        """Draw new weights as torch.nn.Conv1d does."""
        super().draw()
        for convolution in self.layer_convolutions():
            convolution.reset_parameters()  # uniform up to 1 / sqrt(inputs); inputs: values of three words

    def layer_convolutions(self) -> Iterable[TrainableLinear]:
        """Return the linear maps of the layers, (width, 3 * inner) each; see `neighbourhoods`."""
        return cast(Iterable[TrainableLinear], self.convolutions)

    @staticmethod
    def _layer(convolution: nn.Module, x: Tensor, owners: Tensor) -> Tensor:
        return F.relu(cast(Tensor, convolution(neighbourhoods(x, owners, _REACH))))


class ConvolutionalModel(WordModel):
    """Convolutional encoder on a device, for buffers of `arithmetic.max_tokens` tokens."""

    def __init__(self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic) -> None:
        backbone = ConvolutionalBackbone.load(folder, checkpoint)
        super().__init__(backbone, arithmetic, arithmetic.torch_dtype)
        self._words = backbone.word_table
        self._stack = [
            Linear(layer.weight, layer.bias, rows=arithmetic.max_tokens, activation="relu")
            for layer in backbone.layer_convolutions()
        ]

    def forward(
        self, tokens: Tokens, wanted: set[int], max_tokens: int
    ) -> tuple[dict[int, Tensor], np.ndarray]:
        """Compute the hidden states (max_tokens, d); texts begin at token 0, and padding fills the rest."""
        ids, texts = np.zeros(max_tokens, np.int64), np.full(max_tokens, len(tokens))
        ids[: len(tokens.ids)], texts[: len(tokens.ids)] = tokens.ids, tokens.owners
        owners = self.put(texts)
        x = F.embedding(self.put(ids), self._words)
        states, outputs = {TABLE_STATE: x, 0: x}, []
        for number, layer in enumerate(self._stack, start=1):
            x = states[number] = layer(neighbourhoods(x, owners, _REACH))
            outputs.append(x)
        states[self.layers] = torch.cat(outputs, dim=1)
        return {number: states[number] for number in wanted}, tokens.offsets[:-1]


def write_convolutional_folder(
    settings: ConvolutionalSettings, counts: Counter[str], folder: Path, *, seed: int
) -> None:
    """Write the folder of a new convolutional encoder, with the pooling max.

    Args:
        settings: shape of the encoder, and the file of word vectors, if any.
        counts: counts of the words to learn vectors for; not used with a file of word vectors.
        folder: folder to write to.
        seed: seed of the weights.

    Raises:
        ConfigError: `settings.words` names no file of word vectors.
        ModelError: the file of word vectors cannot be read, or `counts` is empty.
    """
    assert settings.width is not None, "the caller asks for a new encoder"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        words = new_vocabulary(settings, counts)
        shape = ConvolutionalShape(
            hidden_size=settings.width * settings.layers,
            num_hidden_layers=settings.layers,
            vocab_size=len(words.tokens),
            embedding_size=words.dim(settings),
            learned_words=words.table is None,
        )
        backbone = ConvolutionalBackbone.new(shape, str(folder))
    write_new_encoder(backbone, words, FORMAT, folder)
    write_pooling(folder, shape.hidden_size, "max")
