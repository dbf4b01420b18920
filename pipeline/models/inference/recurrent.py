"""Forward pass of a recurrent encoder for inference: a fixed number of texts at each step."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.inference.model import Model
from pipeline.models.layers.attention_pooling import AttentionPooling, max_per_text, weight_states
from pipeline.models.layers.linear import Linear
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.recurrence import State, elementwise
from pipeline.models.layers.weights import Checkpoint
from pipeline.models.spec.pooling import TABLE_STATE
from pipeline.models.trainable.recurrent import Direction, load_recurrent
from pipeline.text.tokens.budget import longest_first
from pipeline.text.tokens.tokens import Tokens

_BLOCK = 16  # steps whose inputs are multiplied by their weights in one product


class SteppedModel(Model):
    """Recurrent encoder, in float32 regardless of `encode.dtype`, as rounding errors accumulate over steps.

    Each product always has the same number of rows, including rows of finished texts and empty rows,
    so that a text's bits do not depend on the other texts.
    """

    def __init__(self, folder: EncoderFolder, checkpoint: Checkpoint, arithmetic: Arithmetic) -> None:
        backbone = load_recurrent(folder, checkpoint).to(arithmetic.torch_device)
        self.width, self.layers = backbone.width, backbone.depth
        self.device = arithmetic.torch_device
        self._layers, self._directions = backbone.shape.layers, backbone.shape.directions
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
        """Return a direction of a layer, prepared once for this number of texts."""
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
    """Number of texts whose blocks of steps fit: a power of two, so that vector registers are full."""
    return 1 << (max(1, max_tokens // _BLOCK).bit_length() - 1)


def _arrange_by_step(tokens: Tokens, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Arrange the tokens of texts by step.

    Returns:
        Token id at each step of each text, (steps, rows) int64, 0 after the text's end; and, in the
        same shape, the step whose token is read at each step if the text is read backwards.
    """
    lengths = np.zeros(rows, np.int64)
    lengths[: len(tokens)] = tokens.lengths
    steps = np.arange(-(-int(lengths.max()) // _BLOCK) * _BLOCK)[:, None]
    is_token = steps < lengths
    ids = np.zeros(is_token.shape, np.int64)
    ids.T[is_token.T] = tokens.ids
    return ids, np.where(is_token, lengths - 1 - steps, steps)
