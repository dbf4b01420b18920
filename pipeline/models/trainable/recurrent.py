"""Trainable recurrent encoders: word vectors, learned or fixed, and layers of one or two directions.

Kiros et al. 2015 (Skip-Thought), Conneau et al. 2017 (InferSent), Logeswaran & Lee 2018 (QuickThoughts).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.attention_pooling import AttentionPooling
from pipeline.models.layers.linear import TrainableLinear
from pipeline.models.layers.pooling import TABLE_STATE, Segments, find_segments
from pipeline.models.layers.recurrence import CELLS, Cell, recurrence
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.trainable.backbones import Backbone, ForwardRequest
from pipeline.text.tokens.budget import longest_first

_TABLE_RANGE = 0.1  # new word vectors are uniform in [-0.1, 0.1], as in Skip-Thought
_REQUIRED_KEYS = (
    "cell",
    "hidden_size",
    "directions",
    "num_hidden_layers",
    "vocab_size",
    "embedding_size",
    "learned_words",
)


@dataclass(frozen=True)
class RecurrentShape:
    """Shape of a recurrent encoder, as in its config.json."""

    cell: str
    width: int
    """units of one direction"""
    directions: int
    layers: int
    vocabulary: int
    word_dim: int
    learned: bool
    """True if word vectors are trained with the rest"""
    dropout: float
    """dropout rate of the input of each layer"""
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


def recurrent_of(folder: EncoderFolder, dropout: float | None = None) -> RecurrentShape:
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
    """One direction of a layer: weights of the inputs, with biases if the cell has any, and of the states."""

    def __init__(self, cell: Cell, inner: int, width: int) -> None:
        super().__init__()
        self.cell, self.width = cell, width
        self.input = TrainableLinear(inner, cell.gates * width, bias=cell.has_biases)
        self.recurrent = nn.Parameter(torch.empty(cell.gates * width, width))

    def forward(self, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Return the (T, width) states of packed steps x (T, inner)."""
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


class RecurrentBackbone(Backbone):
    """Word vectors (hidden state 0), and layers whose directions are concatenated (states 1, 2, ...).

    The attention pooling layer, if any, gives one more state.
    """

    def __init__(self, shape: RecurrentShape, path: str) -> None:
        super().__init__()
        self.shape, self._path = shape, path
        self.width, self.layers = shape.output_width, shape.layers + bool(shape.contexts)
        self.embeddings = nn.ModuleDict(
            {"word_embeddings": nn.Embedding(shape.vocabulary, shape.word_dim)}
        ).requires_grad_(shape.learned)
        input_sizes, cell = [shape.word_dim, *[shape.layer_width] * (shape.layers - 1)], CELLS[shape.cell]
        self.directions = nn.ModuleList(
            nn.ModuleList(Direction(cell, size, shape.width) for _ in range(shape.directions))
            for size in input_sizes
        )
        self.attentive = AttentionPooling(shape.layer_width, shape.contexts) if shape.contexts else None

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return hidden states (T, d) of the wanted numbers, and the rows of each text in them.

        Raises:
            ModelError: the request has positions, which a recurrent encoder does not use.
        """
        if request.positions is not None:
            raise ModelError(
                self._path,
                "an encoder with position embeddings, for views with permuted positions",
                "a recurrent encoder",
                "use another view",
            )
        tokens, lengths = request.tokens, request.tokens.lengths
        steps = Steps.of(lengths, self._put)
        words = F.embedding(self._put(tokens.ids), self.word_table)
        x = F.dropout(words, self.shape.dropout, self.training)
        if request.at_embedding is not None:
            x = request.at_embedding(x, find_segments(tokens.offsets[:-1], lengths, 0, self._put))
        states = {TABLE_STATE: words, 0: x}
        for number in range(1, min(self.shape.layers, max(0, *request.wanted)) + 1):
            x = x if number == 1 else F.dropout(x, self.shape.dropout, self.training)
            x = states[number] = self._run_layer(self._layer, number, x, steps)
        if self.attentive is not None and self.layers in request.wanted:
            states[self.layers] = self.attentive(x, self._put(lengths))
        segments = find_segments(tokens.offsets[:-1], lengths, request.skip, self._put, tokens.kept)
        return {number: states[number] for number in request.wanted}, segments

    @property
    def has_dropout(self) -> bool:
        """True if two passes over one text differ in train()."""
        return self.shape.dropout > 0

    @property
    def word_table(self) -> Tensor:
        """Word vectors (vocabulary, word_dim)."""
        return self.embeddings.get_parameter("word_embeddings.weight")

    def draw(self) -> None:
        """Draw new weights from torch's generator; fixed word vectors stay."""
        if self.shape.learned:
            nn.init.uniform_(self.word_table, -_TABLE_RANGE, _TABLE_RANGE)
        for number in range(1, self.shape.layers + 1):
            for direction in self.layer_directions(number):
                direction.draw()
        if self.attentive is not None:
            self.attentive.draw()

    def layer_directions(self, number: int) -> list[Direction]:
        """Return the directions of layer 1, 2, ..."""
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
    """number of texts that have each step"""
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
    """Permute rows. The gradient is a permutation, too; indexing would add up gradients row by row."""

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
        backbone = RecurrentBackbone(recurrent_of(folder, dropout), str(folder.path))
    weights.fill(backbone)
    return backbone
