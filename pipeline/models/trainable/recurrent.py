"""Recurrent encoders: word vectors, learned or fixed, through layers of one or two directions (Kiros et al.
2015; Conneau et al. 2017; Logeswaran & Lee 2018).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.attention_pooling import AttentionPooling
from pipeline.models.layers.linear import TrainableLinear
from pipeline.models.layers.pooling import TABLE_STATE, Segments, segments
from pipeline.models.layers.recurrence import CELLS, Cell, recurrence
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.trainable.backbones import Backbone, ForwardRequest
from pipeline.text.tokens.budget import longest_first

_TABLE_RANGE = 0.1  # new word vectors are uniform in [-0.1, 0.1], as in Skip-Thought
_KEYS = (
    "cell",
    "hidden_size",
    "directions",
    "num_hidden_layers",
    "vocab_size",
    "embedding_size",
    "learned_words",
)


@dataclass(frozen=True)
class Recurrent:
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
    """of the input of each layer"""
    contexts: int = 0
    """number of weighted sums of an attention readout; 0 without one"""

    @property
    def size(self) -> int:
        """Number of values of a layer's state."""
        return self.width * self.directions

    @property
    def last(self) -> int:
        """Number of values of the last state."""
        return self.size * max(1, self.contexts)


def recurrent_of(folder: EncoderFolder, dropout: float | None = None) -> Recurrent:
    """Read the shape from config.json; `dropout` replaces its rate. ModelError if a value is missing or
    unknown.
    """
    config, where = folder.config, str(folder.beside_config("config.json"))
    if missing := [key for key in _KEYS if key not in config]:
        raise ModelError(where, f"the keys {', '.join(_KEYS)}", f"no {missing[0]}", "restore the file")
    if config["cell"] not in CELLS or config["directions"] not in (1, 2):
        raise ModelError(
            where,
            f"a cell among {', '.join(CELLS)}, in 1 or 2 directions",
            f"{config['cell']} in {config['directions']}",
            "restore the file",
        )
    contexts = int(config.get("contexts", 0))
    return Recurrent(
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
    """Weights of one cell: for its inputs, with biases if the cell has any, and for its states."""

    def __init__(self, cell: Cell, inner: int, width: int) -> None:
        super().__init__()
        self.cell, self.width = cell, width
        self.input = TrainableLinear(inner, cell.gates * width, bias=cell.biased)
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
            if self.cell.biased:
                for parameter in self.parameters():
                    parameter.uniform_(-(self.width**-0.5), self.width**-0.5)
                return
            for gate in self.input.weight.split(self.width):
                nn.init.xavier_uniform_(gate)
            for gate in self.recurrent.split(self.width):
                nn.init.orthogonal_(gate)


class RecurrentBackbone(Backbone):
    """Word vectors (hidden state 0), and layers whose directions are concatenated (states 1, 2, ...).

    An attention readout, if any, is one more state.
    """

    def __init__(self, shape: Recurrent, where: str) -> None:
        super().__init__()
        self.shape, self._where = shape, where
        self.width, self.layers = shape.last, shape.layers + bool(shape.contexts)
        self.embeddings = nn.ModuleDict(
            {"word_embeddings": nn.Embedding(shape.vocabulary, shape.word_dim)}
        ).requires_grad_(shape.learned)
        inner, cell = [shape.word_dim, *[shape.size] * (shape.layers - 1)], CELLS[shape.cell]
        self.directions = nn.ModuleList(
            nn.ModuleList(Direction(cell, size, shape.width) for _ in range(shape.directions))
            for size in inner
        )
        self.attentive = AttentionPooling(shape.size, shape.contexts) if shape.contexts else None

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Return hidden states (T, d) of the wanted numbers, and the rows of each text in them.

        Raises:
            ModelError: the request has positions, which a recurrent encoder does not use.
        """
        if request.positions is not None:
            raise ModelError(
                self._where,
                "an encoder with positions, for tokens out of their order",
                "a recurrent one",
                "use another view",
            )
        tokens, lengths = request.tokens, request.tokens.lengths
        steps = Steps.of(lengths, self._put)
        words = F.embedding(self._put(tokens.ids), self.words)
        x = F.dropout(words, self.shape.dropout, self.training)
        if request.at_embedding is not None:
            x = request.at_embedding(x, segments(tokens.offsets[:-1], lengths, 0, self._put))
        states = {TABLE_STATE: words, 0: x}
        for number in range(1, min(self.shape.layers, max(0, *request.wanted)) + 1):
            x = x if number == 1 else F.dropout(x, self.shape.dropout, self.training)
            x = states[number] = self._run(number, x, steps)
        if self.attentive is not None and self.layers in request.wanted:
            states[self.layers] = self.attentive(x, self._put(lengths))
        where = segments(tokens.offsets[:-1], lengths, request.skip, self._put, tokens.kept)
        return {number: states[number] for number in request.wanted}, where

    @property
    def has_dropout(self) -> bool:
        """True if two passes over one text differ in train()."""
        return self.shape.dropout > 0

    @property
    def words(self) -> Tensor:
        """(vocabulary, word_dim) word vectors."""
        return self.embeddings.get_parameter("word_embeddings.weight")

    def draw(self) -> None:
        """Draw new weights from torch's generator; fixed word vectors stay."""
        if self.shape.learned:
            nn.init.uniform_(self.words, -_TABLE_RANGE, _TABLE_RANGE)
        for number in range(1, self.shape.layers + 1):
            for direction in self.of_layer(number):
                direction.draw()
        if self.attentive is not None:
            self.attentive.draw()

    def of_layer(self, number: int) -> list[Direction]:
        """Return the directions of layer 1, 2, ..."""
        return list(cast(Iterable[Direction], self.directions[number - 1]))

    def _run(self, number: int, x: Tensor, steps: "Steps") -> Tensor:
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(self._layer, number, x, steps, use_reentrant=False)
        return self._layer(number, x, steps)

    def _layer(self, number: int, x: Tensor, steps: "Steps") -> Tensor:
        states = [
            permuted(direction(permuted(x, there, back), steps.sizes), back, there)
            for direction, there, back in zip(self.of_layer(number), steps.there, steps.back, strict=False)
        ]
        return torch.cat(states, dim=1)


@dataclass(frozen=True)
class Steps:
    """Order of the tokens in which a direction reads them: step by step, longer texts first.

    Both orders are for reading forwards and for reading backwards.
    """

    sizes: tuple[int, ...]
    """number of texts that have each step"""
    there: tuple[Tensor, Tensor]
    """(T,) index of the token that is read at each position"""
    back: tuple[Tensor, Tensor]
    """(T,) position at which each token is read"""

    @classmethod
    def of(cls, lengths: np.ndarray, put: Callable[[np.ndarray], Tensor]) -> "Steps":
        """Return the order for texts of these numbers of tokens, each at least one."""
        ranks = np.empty(len(lengths), np.int64)
        ranks[longest_first(lengths)] = np.arange(len(lengths))
        sizes = len(lengths) - np.cumsum(np.bincount(lengths))[:-1]
        starts = np.cumsum(sizes) - sizes
        owners = np.repeat(np.arange(len(lengths)), lengths)
        onward = np.arange(len(owners)) - (np.cumsum(lengths) - lengths)[owners]
        forwards, backwards = (
            starts[step] + ranks[owners] for step in (onward, lengths[owners] - 1 - onward)
        )
        there = put(np.argsort(forwards)), put(np.argsort(backwards))
        return cls(tuple(sizes.tolist()), there, (put(forwards), put(backwards)))


class _Permuted(torch.autograd.Function):
    """Permute rows. The gradient is a permutation too, whereas that of indexing adds row by row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.back = back
        return x[there]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.back], None, None


def permuted(x: Tensor, there: Tensor, back: Tensor) -> Tensor:
    """Return the rows there[0], there[1], ... of x; `back` is the inverse permutation."""
    rows: Tensor = _Permuted.apply(x, there, back)
    return rows


def load_recurrent(
    folder: EncoderFolder, weights: Checkpoint, dropout: float | None = None
) -> RecurrentBackbone:
    """Load the backbone of a folder. ModelError if its weights do not match its configuration."""
    with torch.device("meta"):
        backbone = RecurrentBackbone(recurrent_of(folder, dropout), str(folder.path))
    weights.fill(backbone)
    return backbone
