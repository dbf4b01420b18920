"""Recurrent encoders: word vectors, learned or fixed, through layers of one or two directions (Kiros et al. 2015; Conneau et al. 2017; Logeswaran & Lee 2018)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.errors import ModelError
from pipeline.models.arithmetic import Arithmetic
from pipeline.models.backbones import Backbone, Request
from pipeline.models.folder import EncoderFolder
from pipeline.models.linear import Linear, TrainableLinear
from pipeline.models.pooling import TABLE_STATE, Segments, segments
from pipeline.models.recurrence import CELLS, Cell, State, recurrence
from pipeline.models.weights import Checkpoint
from pipeline.text.budget import longest_first
from pipeline.text.tokens import Tokens

_BLOCK = 16                     # steps whose inputs are multiplied at once
_TABLE_RANGE = 0.1              # new word vectors are uniform up to there, as in Skip-Thought
_KEYS = ("cell", "hidden_size", "directions", "num_hidden_layers", "vocab_size", "embedding_size", "learned_words")


@dataclass(frozen=True)
class Recurrent:
    """What a recurrent encoder is made of, as its config.json says."""

    cell: str
    width: int
    """units of one direction"""
    directions: int
    layers: int
    vocabulary: int
    word_dim: int
    learned: bool
    """whether word vectors are trained with the rest"""
    dropout: float
    """of what goes into each layer"""

    @property
    def size(self) -> int:
        """Values of a state."""
        return self.width * self.directions


def recurrent_of(folder: EncoderFolder, dropout: float | None = None) -> Recurrent:
    """As config.json says; dropout: another rate. ModelError where it does not say all."""
    config, where = folder.config, str(folder.beside_config("config.json"))
    if missing := [key for key in _KEYS if key not in config]:
        raise ModelError(where, f"the keys {', '.join(_KEYS)}", f"no {missing[0]}", "restore the file")
    if config["cell"] not in CELLS or config["directions"] not in (1, 2):
        raise ModelError(where, f"a cell among {', '.join(CELLS)}, in 1 or 2 directions", f"{config['cell']} in {config['directions']}", "restore the file")
    return Recurrent(
        cell=config["cell"], width=int(config["hidden_size"]) // int(config["directions"]), directions=int(config["directions"]),
        layers=int(config["num_hidden_layers"]), vocabulary=int(config["vocab_size"]), word_dim=int(config["embedding_size"]),
        learned=bool(config["learned_words"]), dropout=float(config.get("dropout", 0.0)) if dropout is None else dropout,
    )


class Direction(nn.Module):
    """One cell's weights: of the inputs, with biases where the cell has any, and of the states."""

    def __init__(self, cell: Cell, inner: int, width: int) -> None:
        super().__init__()
        self.cell, self.width = cell, width
        self.input = TrainableLinear(inner, cell.gates * width, bias=cell.biased)
        self.recurrent = nn.Parameter(torch.empty(cell.gates * width, width))

    def forward(self, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """(T, width) states of packed steps x (T, inner)."""
        return recurrence(self.cell, self.input(x), self.recurrent, sizes)

    def draw(self) -> None:
        """New weights. GRU: Xavier's, and orthogonal ones between states (Kiros et al. 2015); LSTM: uniform up to 1 / sqrt(width), as torch's."""
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
    """Hidden state 0 is the words' vectors, state i what layer i says at each word, both directions side by side."""

    def __init__(self, shape: Recurrent, where: str) -> None:
        super().__init__()
        self.shape, self._where = shape, where
        self.width, self.layers = shape.size, shape.layers
        self.embeddings = nn.ModuleDict({"word_embeddings": nn.Embedding(shape.vocabulary, shape.word_dim)}).requires_grad_(shape.learned)
        inner, cell = [shape.word_dim, *[shape.size] * (shape.layers - 1)], CELLS[shape.cell]
        self.directions = nn.ModuleList(nn.ModuleList(Direction(cell, size, shape.width) for _ in range(shape.directions)) for size in inner)

    def forward(self, request: Request) -> tuple[dict[int, Tensor], Segments]:
        """Hidden states (T, d) of the wanted numbers, and where the texts lie in them. ModelError for positions, which no part of it has."""
        if request.positions is not None:
            raise ModelError(self._where, "an encoder with positions, for tokens out of their order", "a recurrent one", "use another view")
        tokens, lengths = request.tokens, request.tokens.lengths
        steps = Steps.of(lengths, self._put)
        words = F.embedding(self._put(tokens.ids), self.words)
        x = F.dropout(words, self.shape.dropout, self.training)
        if request.at_embedding is not None:
            x = request.at_embedding(x, segments(tokens.offsets[:-1], lengths, 0, self._put))
        states = {TABLE_STATE: words, 0: x}
        for number in range(1, max(0, *request.wanted) + 1):
            x = x if number == 1 else F.dropout(x, self.shape.dropout, self.training)
            x = states[number] = self._run(number, x, steps)
        return {number: states[number] for number in request.wanted}, segments(tokens.offsets[:-1], lengths, request.skip, self._put, tokens.kept)

    @property
    def drops(self) -> bool:
        return self.shape.dropout > 0

    @property
    def words(self) -> Tensor:
        """(vocabulary, word_dim)."""
        table = self.embeddings["word_embeddings"].weight
        assert isinstance(table, Tensor)
        return table

    def draw(self) -> None:
        """New weights from torch's generator; fixed word vectors stay."""
        if self.shape.learned:
            nn.init.uniform_(self.words, -_TABLE_RANGE, _TABLE_RANGE)
        for number in range(1, self.layers + 1):
            for direction in self.of_layer(number):
                direction.draw()

    def of_layer(self, number: int) -> list[Direction]:
        """The directions of a layer, counted from 1."""
        layer = self.directions[number - 1]
        assert isinstance(layer, nn.ModuleList)
        return [direction for direction in layer if isinstance(direction, Direction)]

    def _run(self, number: int, x: Tensor, steps: "Steps") -> Tensor:
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(self._layer, number, x, steps, use_reentrant=False)
        return self._layer(number, x, steps)

    def _layer(self, number: int, x: Tensor, steps: "Steps") -> Tensor:
        packed = zip(self.of_layer(number), steps.there, steps.back, strict=False)
        return torch.cat([permuted(direction(permuted(x, there, back), steps.sizes), back, there) for direction, there, back in packed], dim=1)

    def _put(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.words.device)


@dataclass(frozen=True)
class Steps:
    """Tokens in the order in which a direction takes them: step by step, longer texts first."""

    sizes: tuple[int, ...]
    """texts that have each step"""
    there: tuple[Tensor, Tensor]
    """(T,) token at each place, text after text before: onward, and from the end"""
    back: tuple[Tensor, Tensor]
    """(T,) place of each token"""

    @classmethod
    def of(cls, lengths: np.ndarray, put: Callable[[np.ndarray], Tensor]) -> "Steps":
        """For texts of so many tokens, each at least one."""
        ranks = np.empty(len(lengths), np.int64)
        ranks[longest_first(lengths)] = np.arange(len(lengths))
        sizes = len(lengths) - np.cumsum(np.bincount(lengths))[:-1]
        starts = np.cumsum(sizes) - sizes
        owners = np.repeat(np.arange(len(lengths)), lengths)
        onward = np.arange(len(owners)) - (np.cumsum(lengths) - lengths)[owners]
        places = [starts[step] + ranks[owners] for step in (onward, lengths[owners] - 1 - onward)]
        there = [np.argsort(place) for place in places]
        return cls(tuple(sizes.tolist()), (put(there[0]), put(there[1])), (put(places[0]), put(places[1])))


class _Permuted(torch.autograd.Function):
    """Rows in another order: the gradient is gathered too, where indexing would add to rows one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.back = back
        return x[there]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.back], None, None


def permuted(x: Tensor, there: Tensor, back: Tensor) -> Tensor:
    """Rows there[0], there[1] ... of x; back is the inverse permutation."""
    rows: Tensor = _Permuted.apply(x, there, back)
    return rows


def load_recurrent(folder: EncoderFolder, weights: Checkpoint, dropout: float | None = None) -> RecurrentBackbone:
    """The backbone of a folder. ModelError where weights and configuration do not belong together."""
    with torch.device("meta"):
        backbone = RecurrentBackbone(recurrent_of(folder, dropout), str(folder.path))
    named = {name: weights.tensor(name, tuple(parameter.shape)).clone() for name, parameter in backbone.named_parameters()}
    backbone.load_state_dict(named, assign=True)
    return backbone


class RecurrentModel:
    """The same for encoding, in float32 whatever `encode.dtype` says, since errors go from step to step. Every product always has the same number of rows, those of
    texts that have ended and of none among them: so a text's bits do not depend on its neighbours.
    """

    def __init__(self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic) -> None:
        backbone = load_recurrent(folder, checkpoint).to(arithmetic.place)
        self.width, self.layers, self._device = backbone.width, backbone.layers, arithmetic.place
        self._words, self._of_layer, self._directions = backbone.words, backbone.of_layer, backbone.shape.directions
        self._prepared: dict[tuple[int, int, int], _Prepared] = {}

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Rows of each pass, longest first: so many that a block of steps has at most max_tokens tokens."""
        order = longest_first(lengths)
        order, rows = order[lengths[order] > 0], _rows(max_tokens)
        return [order[start : start + rows] for start in range(0, len(order), rows)]

    def states(self, tokens: Tokens, rows: np.ndarray, wanted: set[int], max_tokens: int, skip: int) -> tuple[dict[int, Tensor], Segments]:
        """Hidden states (texts * steps, d) of the wanted numbers, and where the texts `rows` lie in them."""
        part = tokens.of_rows(rows)
        ids, turned = (self._put(grid) for grid in _grids(part, _rows(max_tokens)))
        x = F.embedding(ids, self._words)
        states = {TABLE_STATE: x, 0: x}
        for number in range(1, max(0, *wanted) + 1):
            x = states[number] = self._layer(number, x, turned, int(part.lengths.max()))
        flat = {number: states[number].transpose(0, 1).flatten(0, 1) for number in wanted}
        return flat, segments(np.arange(len(rows)) * len(ids), part.lengths, skip, self._put, part.kept)

    def _layer(self, number: int, x: Tensor, turned: Tensor, longest: int) -> Tensor:
        """(steps, rows, d) for (steps, rows, inner); steps behind the longest text are zero."""
        rows = x.shape[1]
        columns = torch.arange(rows, device=x.device)
        found = [self._direction(number, 0, rows)(x, longest)]
        if self._directions == 2:
            found.append(self._direction(number, 1, rows)(x[turned, columns], longest)[turned, columns])
        return torch.cat(found, dim=2)

    def _direction(self, number: int, place: int, rows: int) -> "_Prepared":
        key = number, place, rows
        if key not in self._prepared:
            self._prepared[key] = _Prepared(self._of_layer(number)[place], rows)
        return self._prepared[key]

    def _put(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)


class _Prepared:
    """A direction's weights for a fixed number of texts."""

    def __init__(self, direction: Direction, rows: int) -> None:
        self._cell, self._rows, self._width = direction.cell, rows, direction.width
        self._input = Linear(direction.input.weight.detach(), None if direction.input.bias is None else direction.input.bias.detach(), rows=_BLOCK * rows)
        self._products = self._cell.products(direction.recurrent.detach(), rows)

    def __call__(self, x: Tensor, longest: int) -> Tensor:
        """(steps, rows, width) states for (steps, rows, inner); steps is a multiple of a block."""
        states = x.new_zeros(len(x), self._rows, self._width)
        state: State = tuple(x.new_zeros(self._rows, self._width) for _ in range(self._cell.memories))
        for start in range(0, longest, _BLOCK):
            inputs = self._input(x[start : start + _BLOCK].flatten(0, 1)).view(_BLOCK, self._rows, -1)
            for step in range(start, min(longest, start + _BLOCK)):
                _, state = self._cell.step(inputs[step - start], state, self._products)
                states[step] = state[0]
        return states


def _rows(max_tokens: int) -> int:
    """Texts of one pass: the power of two whose blocks of steps still fit; so no vector register is left with fewer values than another."""
    return 1 << (max(1, max_tokens // _BLOCK).bit_length() - 1)


def _grids(tokens: Tokens, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Two of (steps, rows) int64: the token at each step of each text, 0 behind its end; and the step that takes its place where the text is read from its end."""
    lengths = np.zeros(rows, np.int64)
    lengths[: len(tokens)] = tokens.lengths
    steps = np.arange(-(-int(lengths.max()) // _BLOCK) * _BLOCK)[:, None]
    inside = steps < lengths
    ids = np.zeros(inside.shape, np.int64)
    ids.T[inside.T] = tokens.ids
    return ids, np.where(inside, lengths - 1 - steps, steps)
