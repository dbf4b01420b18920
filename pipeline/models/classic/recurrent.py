"""Recurrent encoders: word vectors, learned or fixed, and layers of one or two directions.

Kiros et al. 2015 (Skip-Thought), Conneau et al. 2017 (InferSent), Logeswaran & Lee 2018 (QuickThoughts).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ConfigError, ModelError
from pipeline.models.classic.base import WordBackbone, WordModel, WordShape
from pipeline.models.classic.new_vocabulary import new_vocabulary, write_new_encoder, write_pooling
from pipeline.models.classic.recurrence import (
    CELLS,
    AttentionPooling,
    Cell,
    State,
    elementwise,
    max_per_text,
    recurrence,
    weight_states,
)
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.word_vectors import RECURRENT
from pipeline.models.layers.linear import Linear, TrainableLinear
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.pooling import TABLE_STATE
from pipeline.settings.weights import RecurrentSettings
from pipeline.text.tokens.budget import longest_first
from pipeline.text.tokens.tokens import Tokens

FORMAT = 1  # version of the folders; raise it when they are written differently
_CONTEXTS = 4  # weighted sums of the attention pooling, as in Conneau et al. 2017
_BLOCK = 16  # steps whose inputs are multiplied by the input weights in one product


@dataclass(frozen=True, kw_only=True)
class RecurrentShape(WordShape):
    """Shape of a recurrent encoder."""

    cell: str
    hidden_size: int
    directions: int
    num_hidden_layers: int
    contexts: int = 0
    """number of weighted sums of the attention pooling layer; 0: no such layer"""
    vocab_size: int
    embedding_size: int
    learned_words: bool
    dropout: float = 0.0

    @property
    def layer_width(self) -> int:
        """Number of values of a layer's state."""
        return self.hidden_size // max(1, self.contexts)

    @property
    def width(self) -> int:
        """Units of one direction."""
        return self.layer_width // self.directions

    @classmethod
    def read(cls, folder: EncoderFolder, dropout: float | None) -> Self:
        """Read the shape; see `WordShape.read`.

        Also raises ModelError for an unknown cell, or a number of directions other than 1 or 2.
        """
        cell, directions = folder.config.get("cell", "gru"), folder.config.get("directions", 1)
        if cell not in CELLS or directions not in (1, 2):
            raise ModelError(
                str(folder.transformer_path / "config.json"),
                f"one of the cells {', '.join(CELLS)}, and 1 or 2 directions",
                f"the cell {cell} and {directions} directions",
                "restore the file",
            )
        return super().read(folder, dropout)


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

    name, model_type, shape_type = "a recurrent encoder", RECURRENT, RecurrentShape
    shape: RecurrentShape

    def __init__(self, shape: RecurrentShape, path: str) -> None:
        super().__init__(shape, path)
        layers, cell = shape.num_hidden_layers, CELLS[shape.cell]
        self.width, self.depth = shape.hidden_size, layers + bool(shape.contexts)
        input_sizes = [shape.word_dim, *[shape.layer_width] * (layers - 1)]
        self.directions = nn.ModuleList(
            nn.ModuleList(Direction(cell, size, shape.width) for _ in range(shape.directions))
            for size in input_sizes
        )
        self.attentive = AttentionPooling(shape.layer_width, shape.contexts) if shape.contexts else None

    def _layer_states(self, x: Tensor, tokens: Tokens, wanted: set[int]) -> dict[int, Tensor]:
        steps, states = Steps.of(tokens.lengths, self._put), dict[int, Tensor]()
        for number in range(1, min(self.shape.num_hidden_layers, max(0, *wanted)) + 1):
            x = self.dropout(x) if states else x
            x = states[number] = self._run_layer(self._layer, number, x, steps)
        if self.attentive is not None and self.depth in wanted:
            states[self.depth] = self.attentive(x, self._put(tokens.lengths))
        return states

    def draw(self) -> None:
        """Draw new weights from torch's generator; fixed word vectors do not change."""
        super().draw()
        for number in range(1, self.shape.num_hidden_layers + 1):
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
    """(T,) inverse permutations: when each token is read"""

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
    """Permute rows.

    The gradient is permuted back. That is faster than the gradient of indexing, which sums for each row.
    """

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


class SteppedModel(WordModel):
    """Recurrent encoder, in float32 regardless of `encode.dtype`, as rounding errors accumulate over steps.

    Matrix products always have the same number of rows, some of them for finished texts or empty, so that the
    bits of a vector do not depend on other texts.
    """

    def __init__(self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic) -> None:
        backbone = RecurrentBackbone.load(folder, checkpoint)
        super().__init__(backbone, arithmetic)
        self._layers, self._directions = backbone.shape.num_hidden_layers, backbone.shape.directions
        self._words, self._layer_directions = backbone.word_table, backbone.layer_directions
        self._prepared: dict[tuple[int, int, int], _PreparedDirection] = {}
        self._attention = backbone.attentive
        self._prepared_attentions: dict[int, _PreparedAttention] = {}

    def plan(self, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
        """Group texts such that a block of steps has at most max_tokens tokens; see `Model.plan`."""
        order = longest_first(lengths)
        order, rows = order[lengths[order] > 0], _texts_per_pass(max_tokens)
        return [order[start : start + rows] for start in range(0, len(order), rows)]

    def forward(
        self, tokens: Tokens, wanted: set[int], max_tokens: int
    ) -> tuple[dict[int, Tensor], np.ndarray]:
        """Compute the hidden states (texts * steps, d), text after text."""
        ids, reverse = map(self.put, _arrange_by_step(tokens, _texts_per_pass(max_tokens)))
        x = F.embedding(ids, self._words)
        states = {TABLE_STATE: x, 0: x}
        for number in range(1, min(self._layers, max(0, *wanted)) + 1):
            x = states[number] = self._layer(number, x, reverse, int(tokens.lengths.max()))
        if self._attention is not None and self.layers in wanted:
            states[self.layers] = self._apply_attention(self._attention, x, tokens)
        return (
            {number: states[number].transpose(0, 1).flatten(0, 1) for number in wanted},
            np.arange(len(tokens)) * len(ids),
        )

    def _apply_attention(self, attention: AttentionPooling, x: Tensor, tokens: Tokens) -> Tensor:
        """Multiply states x (steps, rows, size) by attention weights: (steps, rows, contexts * size)."""
        steps, rows = x.shape[:2]
        if rows not in self._prepared_attentions:
            self._prepared_attentions[rows] = _PreparedAttention(attention, rows)
        words = self.put(tokens.positions), self.put(tokens.owners)
        word_states = self._prepared_attentions[rows](x, words, self.put(tokens.lengths))
        weighted = x.new_zeros(steps, rows, word_states.shape[1])
        weighted[words] = word_states
        return weighted

    def _layer(self, number: int, x: Tensor, reverse: Tensor, longest: int) -> Tensor:
        """Compute a layer: x (steps, rows, inner) -> (steps, rows, d), zero from step `longest` on."""
        rows = x.shape[1]
        columns = torch.arange(rows, device=x.device)
        states = [self._direction(number, 0, rows)(x, longest)]
        if self._directions == 2:
            states.append(self._direction(number, 1, rows)(x[reverse, columns], longest)[reverse, columns])
        return torch.cat(states, dim=2)

    def _direction(self, number: int, direction: int, rows: int) -> "_PreparedDirection":
        """Return a layer's direction, prepared once for this number of texts."""
        key = number, direction, rows
        if key not in self._prepared:
            self._prepared[key] = _PreparedDirection(self._layer_directions(number)[direction], rows)
        return self._prepared[key]


class _PreparedDirection:
    """Weights of one direction of a layer, prepared for a fixed number of texts."""

    def __init__(self, direction: Direction, rows: int) -> None:
        self._cell, self._rows, self._width = direction.cell, rows, direction.width
        self._input = _prepare_linear(direction.input, _BLOCK * rows)
        self._products = self._cell.prepare(direction.recurrent.detach(), rows)

    def __call__(self, x: Tensor, longest: int) -> Tensor:
        """Compute (steps, rows, width) states for x (steps, rows, inner); steps is a multiple of _BLOCK.

        States from step `longest` on are not computed, and are zero.
        """
        states = x.new_zeros(len(x), self._rows, self._width)
        state: State = tuple(x.new_zeros(self._rows, self._width) for _ in range(self._cell.state_tensors))
        for start in range(0, longest, _BLOCK):
            inputs = self._input(x[start : start + _BLOCK].flatten(0, 1)).view(_BLOCK, self._rows, -1)
            for step in range(start, min(longest, start + _BLOCK)):
                _, state = self._cell.step(inputs[step - start], state, self._products)
                states[step] = state[0]
        return states


class _PreparedAttention:
    """Weights of an attention pooling layer, prepared for a fixed number of texts."""

    def __init__(self, attention: AttentionPooling, rows: int) -> None:
        self._block_rows = _BLOCK * rows
        self._inner = _prepare_linear(attention.inner, self._block_rows)
        self._contexts = _prepare_linear(attention.contexts, self._block_rows)

    def __call__(self, x: Tensor, words: tuple[Tensor, Tensor], counts: Tensor) -> Tensor:
        """Compute the same as `AttentionPooling`.

        Args:
            x: (steps, rows, size) states.
            words: step and row of each word, text after text, (T,) each.
            counts: (n,) words of each text.

        Returns:
            (T, contexts * size)
        """
        scores = torch.cat(
            [
                self._contexts(elementwise(torch.tanh, self._inner(block)))
                for block in x.flatten(0, 1).split(self._block_rows)
            ]
        ).view(*x.shape[:2], -1)
        highest = scores.new_zeros(scores.shape[1:])
        highest[: len(counts)] = max_per_text(scores[words], counts)
        return weight_states(x[words], elementwise(torch.exp, scores - highest)[words], counts)


def _prepare_linear(layer: nn.Linear, rows: int) -> Linear:
    return Linear(layer.weight.detach(), None if layer.bias is None else layer.bias.detach(), rows=rows)


def _texts_per_pass(max_tokens: int) -> int:
    """Return how many texts a pass has: a power of two, so that vector registers are full.

    One block of steps of all these texts has at most `max_tokens` tokens.
    """
    return 1 << (max(1, max_tokens // _BLOCK).bit_length() - 1)


def _arrange_by_step(tokens: Tokens, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Arrange the tokens of texts by step.

    Returns:
        The token id at each step of each text, (steps, rows) int64, 0 after the text's end; and, in the same
        shape, the step whose token is read instead when the text is read backwards.
    """
    lengths = np.zeros(rows, np.int64)
    lengths[: len(tokens)] = tokens.lengths
    steps = np.arange(-(-int(lengths.max()) // _BLOCK) * _BLOCK)[:, None]
    is_token = steps < lengths
    ids = np.zeros(is_token.shape, np.int64)
    ids.T[is_token.T] = tokens.ids
    return ids, np.where(is_token, lengths - 1 - steps, steps)


def write_recurrent_folder(
    settings: RecurrentSettings, counts: Counter[str], folder: Path, *, seed: int
) -> None:
    """Write the folder of a new recurrent encoder.

    Args:
        settings: shape of the encoder, and the file of word vectors, if any.
        counts: counts of the words to learn vectors for; not used with a file of word vectors.
        folder: folder to write to.
        seed: seed of the weights.

    Raises:
        ConfigError: no cell is named, or `settings.words` names no file of word vectors.
        ModelError: the file of word vectors cannot be read, or `counts` is empty.
    """
    if settings.cell is None:
        raise ConfigError("train.recurrent.cell", f"one of {', '.join(CELLS)}", "null", "set it to one")
    contexts = _CONTEXTS if settings.readout == "attention" else 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        words = new_vocabulary(settings, counts)
        shape = RecurrentShape(
            cell=settings.cell,
            hidden_size=settings.width * settings.directions * max(1, contexts),
            directions=settings.directions,
            num_hidden_layers=settings.layers,
            contexts=contexts,
            vocab_size=len(words.tokens),
            embedding_size=words.dim(settings),
            learned_words=words.table is None,
        )
        backbone = RecurrentBackbone.new(shape, str(folder))
    write_new_encoder(backbone, words, FORMAT, folder)
    poolings = {"last": "lasttoken" if settings.directions == 1 else "ends", "attention": "mean"}
    write_pooling(folder, shape.hidden_size, poolings.get(settings.readout, settings.readout))
