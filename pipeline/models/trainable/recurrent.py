"""Trainable recurrent encoders: word vectors, learned or fixed, and layers of one or two directions.

Kiros et al. 2015 (Skip-Thought), Conneau et al. 2017 (InferSent), Logeswaran & Lee 2018 (QuickThoughts).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.attention_pooling import AttentionPooling
from pipeline.models.layers.linear import TrainableLinear
from pipeline.models.layers.recurrence import CELLS, Cell, recurrence
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.trainable.word_backbone import WordBackbone, WordShape
from pipeline.text.tokens.budget import longest_first
from pipeline.text.tokens.tokens import Tokens

_REQUIRED_KEYS = (
    "cell",
    "hidden_size",
    "directions",
    "num_hidden_layers",
    "vocab_size",
    "embedding_size",
    "learned_words",
)


@dataclass(frozen=True, kw_only=True)
class RecurrentShape(WordShape):
    """Shape of a recurrent encoder, as in its config.json."""

    cell: str
    width: int
    """units of one direction"""
    directions: int
    layers: int
    contexts: int = 0
    """number of weighted sums of the attention pooling layer; 0: there is none"""

    @property
    def layer_width(self) -> int:
        """Number of values of a layer's state."""
        return self.width * self.directions

    @property
    def output_width(self) -> int:
        """Number of values of the last hidden state."""
        return self.layer_width * max(1, self.contexts)


def recurrent_shape(folder: EncoderFolder, dropout: float | None = None) -> RecurrentShape:
    """Read the shape from config.json.

    Args:
        folder: the encoder's folder.
        dropout: rate of dropout; None: the rate in config.json.

    Raises:
        ModelError: a value is missing or unknown.
    """
    config, file = folder.config, str(folder.transformer_path / "config.json")
    if missing := [key for key in _REQUIRED_KEYS if key not in config]:
        raise ModelError(
            file, f"the keys {', '.join(_REQUIRED_KEYS)}", f"no {missing[0]}", "restore the file"
        )
    if config["cell"] not in CELLS or config["directions"] not in (1, 2):
        raise ModelError(
            file,
            f"one of the cells {', '.join(CELLS)}, and 1 or 2 directions",
            f"the cell {config['cell']} and {config['directions']} directions",
            "restore the file",
        )
    contexts = int(config.get("contexts", 0))
    return RecurrentShape(
        cell=config["cell"],
        width=int(config["hidden_size"]) // (int(config["directions"]) * max(1, contexts)),
        contexts=contexts,
        directions=int(config["directions"]),
        layers=int(config["num_hidden_layers"]),
        vocabulary=int(config["vocab_size"]),
        word_dim=int(config["embedding_size"]),
        learned=bool(config["learned_words"]),
        dropout=float(config.get("dropout", 0.0)) if dropout is None else dropout,
    )


class Direction(nn.Module):
    """One direction of a layer: a matrix for inputs, a matrix for states, and biases if the cell has any."""

    def __init__(self, cell: Cell, input_size: int, width: int) -> None:
        super().__init__()
        self.cell, self.width = cell, width
        self.input = TrainableLinear(input_size, cell.gates * width, bias=cell.has_biases)
        self.recurrent = nn.Parameter(torch.empty(cell.gates * width, width))

    def forward(self, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Return the states (T, width) of inputs x (T, input_size), which are in the order of `Steps`."""
        return recurrence(self.cell, self.input(x), self.recurrent, sizes)

    def draw(self) -> None:
        """Draw new weights.

        GRU: Xavier for inputs, orthogonal for states (Kiros et al. 2015). LSTM: uniform up to 1 /
        sqrt(width), as in torch.
        """
        with torch.no_grad():
            if self.cell.has_biases:
                for parameter in self.parameters():
                    parameter.uniform_(-(self.width**-0.5), self.width**-0.5)
                return
            for gate in self.input.weight.split(self.width):
                nn.init.xavier_uniform_(gate)
            for gate in self.recurrent.split(self.width):
                nn.init.orthogonal_(gate)


class RecurrentBackbone(WordBackbone):
    """Layers whose directions are concatenated; the attention pooling layer, if any, gives one more state."""

    name = "a recurrent encoder"

    def __init__(self, shape: RecurrentShape, path: str) -> None:
        super().__init__(shape, path)
        self.shape = shape
        self.width, self.depth = shape.output_width, shape.layers + bool(shape.contexts)
        input_sizes, cell = [shape.word_dim, *[shape.layer_width] * (shape.layers - 1)], CELLS[shape.cell]
        self.directions = nn.ModuleList(
            nn.ModuleList(Direction(cell, size, shape.width) for _ in range(shape.directions))
            for size in input_sizes
        )
        self.attentive = AttentionPooling(shape.layer_width, shape.contexts) if shape.contexts else None

    def _layer_states(self, x: Tensor, tokens: Tokens, wanted: set[int]) -> dict[int, Tensor]:
        steps, states = Steps.of(tokens.lengths, self._put), dict[int, Tensor]()
        for number in range(1, min(self.shape.layers, max(0, *wanted)) + 1):
            x = self.dropout(x) if states else x
            x = states[number] = self._run_layer(self._layer, number, x, steps)
        if self.attentive is not None and self.depth in wanted:
            states[self.depth] = self.attentive(x, self._put(tokens.lengths))
        return states

    def _draw_layers(self) -> None:
        for number in range(1, self.shape.layers + 1):
            for direction in self.layer_directions(number):
                direction.draw()
        if self.attentive is not None:
            self.attentive.draw()

    def layer_directions(self, number: int) -> list[Direction]:
        """Return the directions of a layer; numbers of layers start from 1."""
        return list(cast(Iterable[Direction], self.directions[number - 1]))

    def _layer(self, number: int, x: Tensor, steps: "Steps") -> Tensor:
        """Compute the states (T, d) of a layer, with its directions side by side."""
        states = []
        # not strict: a layer of one direction uses the first of the two orders
        for direction, order, inverse in zip(
            self.layer_directions(number), steps.orders, steps.inverses, strict=False
        ):
            by_step = direction(permute_rows(x, order, inverse), steps.sizes)
            states.append(permute_rows(by_step, inverse, order))
        return torch.cat(states, dim=1)


@dataclass(frozen=True)
class Steps:
    """Order in which a direction reads the tokens: step by step, and within a step longer texts first.

    Orders and inverses are pairs, for reading forwards and for reading backwards.
    """

    sizes: tuple[int, ...]
    """number of texts that are longer than 0, 1, 2, ... tokens"""
    orders: tuple[Tensor, Tensor]
    """(T,) index of the token that is read 1st, 2nd, ..."""
    inverses: tuple[Tensor, Tensor]
    """(T,) inverse permutations: the position at which each token is read"""

    @classmethod
    def of(cls, lengths: np.ndarray, put: Callable[[np.ndarray], Tensor]) -> "Steps":
        """Return the order for texts of these numbers of tokens, each at least one."""
        ranks = np.empty(len(lengths), np.int64)
        ranks[longest_first(lengths)] = np.arange(len(lengths))
        sizes = len(lengths) - np.cumsum(np.bincount(lengths))[:-1]
        starts = np.cumsum(sizes) - sizes
        owners = np.repeat(np.arange(len(lengths)), lengths)
        steps = np.arange(len(owners)) - (np.cumsum(lengths) - lengths)[owners]
        forwards = starts[steps] + ranks[owners]
        backwards = starts[lengths[owners] - 1 - steps] + ranks[owners]
        orders = put(np.argsort(forwards)), put(np.argsort(backwards))
        return cls(tuple(sizes.tolist()), orders, (put(forwards), put(backwards)))


class _PermuteRows(torch.autograd.Function):
    """Permute rows. The gradient is permuted back; that of indexing would be a slower sum for each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.inverse = inverse
        return x[order]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.inverse], None, None


def permute_rows(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Return the rows order[0], order[1], ... of x; `inverse` is the inverse permutation."""
    return cast(Tensor, _PermuteRows.apply(x, order, inverse))


def load_recurrent(
    folder: EncoderFolder, weights: Checkpoint, dropout: float | None = None
) -> RecurrentBackbone:
    """Load the backbone of a folder.

    Raises:
        ModelError: the weights do not match the configuration.
    """
    with torch.device("meta"):
        backbone = RecurrentBackbone(recurrent_shape(folder, dropout), str(folder.path))
    weights.fill(backbone)
    return backbone
