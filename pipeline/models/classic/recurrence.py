"""Layers of recurrent encoders: cells over packed steps, with their gradients, and attention pooling.

GRU as in Skip-Thought (Kiros et al. 2015) and LSTM (Hochreiter & Schmidhuber 1997). Texts are sorted
by decreasing length; rows are ordered by step: first step 0 of all texts, then step 1 of the texts
that have one, and so on, so nothing is computed after the end of a text. One product before the first
step multiplies the inputs of all steps by their weights, and one product after the last step gives the
gradient of the recurrent weights.

torch.nn.GRU is another function: it applies the reset gate after the matrix, and its z is the
proportion of the old state, not of the new one.

Names such as `grad_h` hold the gradient of h.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.models.layers.linear import Linear, TrainableLinear

_PIECE = 16_384  # values; too few for torch to split among threads, and a multiple of any vector register

State = tuple[Tensor, ...]
"""h (n, d) of n texts; an LSTM also has c (n, d)"""


class Cell:
    """One step forward and one step backward.

    The recurrent weights of all gates are stacked, (gates * d, d), and so are their products, (n, gates * d).
    """

    gates: int
    state_tensors: int
    """number of tensors in a state"""
    has_biases: bool
    """the cell's equations have biases"""

    def split(self, recurrent: Tensor) -> tuple[Tensor, ...]:
        """Split the recurrent weights into the matrices that multiply states."""
        return (recurrent,)

    def prepare(self, recurrent: Tensor, rows: int, *, transposed: bool = False) -> tuple[Linear, ...]:
        """Prepare the matrices from `split` for products with about `rows` rows.

        `transposed` prepares them to multiply gradients, in `step_back`.
        """
        return tuple(
            Linear(part.T if transposed else part, None, rows=rows) for part in self.split(recurrent)
        )

    def step(self, x: Tensor, before: State, products: tuple[Linear, ...]) -> tuple[Tensor, State]:
        """Compute one step.

        Args:
            x: (n, gates * d) inputs multiplied by their weights.
            before: state of the n texts.
            products: layers from `prepare`.

        Returns:
            Activations of the gates (n, gates * d) and the new state.
        """
        raise NotImplementedError

    def step_back(
        self, gates: Tensor, before: State, now: State, gradient: State, products: tuple[Linear, ...]
    ) -> tuple[Tensor, State]:
        """Propagate the gradient of the new state back through one step.

        Args:
            gates: (n, gates * d) activations of the gates, from `step`.
            before: state before the step.
            now: state after it.
            gradient: gradient of the state after it.
            products: transposed layers from `prepare`.

        Returns:
            Gradient of x (n, gates * d) and gradient of the state before the step.
        """
        raise NotImplementedError

    def recurrent_gradient(self, gradients: Tensor, gates: Tensor, before: Tensor) -> Tensor:
        """Compute the gradient of the recurrent weights, (gates * d, d), summed over all steps.

        Args:
            gradients: (T, gates * d) gradients of x.
            gates: (T, gates * d) activations of the gates.
            before: (T, d) state h before each step.
        """
        return _outer(gradients, before)


class Gru(Cell):
    """GRU without biases, gates in the order r, z, g.

    r = sigmoid(Wr x + Ur h), z = sigmoid(Wz x + Uz h), g = tanh(W x + U (r h)), h' = (1 - z) h + z g.
    """

    gates, state_tensors, has_biases = 3, 1, False

    def split(self, recurrent: Tensor) -> tuple[Tensor, ...]:
        width = recurrent.shape[1]
        return recurrent[: 2 * width], recurrent[2 * width :]

    def step(self, x: Tensor, before: State, products: tuple[Linear, ...]) -> tuple[Tensor, State]:
        (h,), width = before, before[0].shape[1]
        for_gates, for_g = products
        rz = elementwise(torch.sigmoid, x[:, : 2 * width] + for_gates(h))
        r, z = rz.split(width, dim=1)
        g = elementwise(torch.tanh, x[:, 2 * width :] + for_g(r * h))
        return torch.cat([rz, g], dim=1), ((1 - z) * h + z * g,)

    def step_back(
        self, gates: Tensor, before: State, now: State, gradient: State, products: tuple[Linear, ...]
    ) -> tuple[Tensor, State]:
        (h,), (grad_h,) = before, gradient
        for_gates, for_g = products
        r, z, g = gates.split(h.shape[1], dim=1)
        grad_g = grad_h * z * (1 - g * g)
        grad_rh = for_g(grad_g)
        grad_gates = torch.cat([grad_rh * h * r * (1 - r), grad_h * (g - h) * z * (1 - z)], dim=1)
        grad_before = grad_h * (1 - z) + grad_rh * r + for_gates(grad_gates)
        return torch.cat([grad_gates, grad_g], dim=1), (grad_before,)

    def recurrent_gradient(self, gradients: Tensor, gates: Tensor, before: Tensor) -> Tensor:
        width = before.shape[1]
        return torch.cat(
            [
                _outer(gradients[:, : 2 * width], before),
                _outer(gradients[:, 2 * width :], gates[:, :width] * before),
            ]
        )


class Lstm(Cell):
    """LSTM with one bias per gate, gates in the order i, f, o, g.

    i, f, o = sigmoid(W x + U h + b) each, g = tanh(W x + U h + b), c' = f c + i g, h' = o tanh(c').
    """

    gates, state_tensors, has_biases = 4, 2, True

    def step(self, x: Tensor, before: State, products: tuple[Linear, ...]) -> tuple[Tensor, State]:
        (h, c), (product,) = before, products
        width = h.shape[1]
        inner = x + product(h)
        ifo = elementwise(torch.sigmoid, inner[:, : 3 * width])
        g = elementwise(torch.tanh, inner[:, 3 * width :])
        i, f, o = ifo.split(width, dim=1)
        c = f * c + i * g
        return torch.cat([ifo, g], dim=1), (o * elementwise(torch.tanh, c), c)

    def step_back(
        self, gates: Tensor, before: State, now: State, gradient: State, products: tuple[Linear, ...]
    ) -> tuple[Tensor, State]:
        (_, c_before), (_, c), (grad_h, grad_c), (product,) = before, now, gradient, products
        i, f, o, g = gates.split(c.shape[1], dim=1)
        tanh_c = torch.tanh(c)
        grad_c = grad_c + grad_h * o * (1 - tanh_c * tanh_c)
        grad_gates = torch.cat(
            [
                grad_c * g * i * (1 - i),
                grad_c * c_before * f * (1 - f),
                grad_h * tanh_c * o * (1 - o),
                grad_c * i * (1 - g * g),
            ],
            dim=1,
        )
        return grad_gates, (product(grad_gates), grad_c * f)


CELLS: dict[str, Cell] = {"gru": Gru(), "lstm": Lstm()}


def recurrence(cell: Cell, x: Tensor, recurrent: Tensor, sizes: Sequence[int]) -> Tensor:
    """Run a cell over packed steps, starting from a state of zeros; differentiable.

    Args:
        cell: computes one step.
        x: (T, gates * d) inputs of all steps, multiplied by their weights.
        recurrent: (gates * d, d) recurrent weights.
        sizes: number of texts that have step 0, 1, ...; decreasing, T in total.

    Returns:
        (T, d) states h of all steps.
    """
    with torch.autocast(x.device.type, enabled=False):  # rounding errors accumulate over the steps
        states: Tensor = _Recurrence.apply(cell, x.to(recurrent.dtype), recurrent, tuple(sizes))
        return states


class _Recurrence(torch.autograd.Function):
    """Loop over the steps with its own gradient; autograd would keep a graph and a gradient for each step."""

    @staticmethod
    def forward(ctx: Any, cell: Cell, x: Tensor, recurrent: Tensor, sizes: tuple[int, ...]) -> Tensor:
        products, width = cell.prepare(recurrent, sizes[0]), recurrent.shape[1]
        gates = torch.empty_like(x)
        states = [x.new_empty(len(x), width) for _ in range(cell.state_tensors)]
        state: State = tuple(x.new_zeros(sizes[0], width) for _ in range(cell.state_tensors))
        start = 0
        for size in sizes:
            rows = slice(start, start + size)
            gates[rows], state = cell.step(x[rows], tuple(part[:size] for part in state), products)
            for all_steps, part in zip(states, state, strict=True):
                all_steps[rows] = part
            start += size
        ctx.save_for_backward(recurrent, gates, *states)
        ctx.cell, ctx.sizes = cell, sizes
        return states[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, None]:
        cell, sizes = ctx.cell, ctx.sizes
        recurrent, gates, *states = ctx.saved_tensors
        products = cell.prepare(recurrent, sizes[0], transposed=True)
        states_before = [_shift_by_a_step(each, sizes) for each in states]
        grad_x = torch.empty_like(gates)
        grad_state = [gates.new_zeros(sizes[0], recurrent.shape[1]) for _ in states]
        end = len(gates)
        for size in reversed(sizes):
            rows = slice(end - size, end)
            # h is an output of this step and an input of the next one, so its gradients add up
            grad_now = (grad_state[0][:size] + gradient[rows], *(part[:size] for part in grad_state[1:]))
            grad_x[rows], grad_before = cell.step_back(
                gates[rows],
                tuple(part[rows] for part in states_before),
                tuple(part[rows] for part in states),
                grad_now,
                products,
            )
            for part, new in zip(grad_state, grad_before, strict=True):
                part[:size] = new
            end -= size
        return None, grad_x, cell.recurrent_gradient(grad_x, gates, states_before[0]), None


def _shift_by_a_step(states: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the state before each step, (T, d), for the states (T, d) after each step."""
    parts, start = [states.new_zeros(sizes[0], states.shape[1])], 0
    for size, next_size in pairwise(sizes):
        parts.append(states[start : start + next_size])
        start += size
    return torch.cat(parts)


def elementwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply an elementwise function such that a value's bits do not depend on its position.

    torch computes the last values of each thread's part by scalar instead of vector instructions, which may
    round differently. That does not happen in pieces so small that a single thread computes each of them.
    """
    if x.device.type != "cpu" or x.numel() <= _PIECE:
        return function(x.contiguous())
    return torch.cat([function(piece) for piece in x.flatten().split(_PIECE)]).view(x.shape)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """Return left.T @ right, (a, b), for left (T, a) and right (T, b)."""
    columns = left.T.contiguous()
    return Linear(right.T, None, rows=len(columns))(columns)


class AttentionPooling(nn.Module):
    """Attention pooling over the words of a text (Conneau et al. 2017, section 3.2.4).

    a = softmax(w . tanh(W h + b)) over the words, for several context vectors w; the weighted sums are
    concatenated. W and b are in `inner`, and each context vector w is a row of `contexts`.
    """

    def __init__(self, size: int, contexts: int) -> None:
        super().__init__()
        self.inner, self.contexts = TrainableLinear(size, size), TrainableLinear(size, contexts, bias=False)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        """Weight the states so that the mean pooling after this layer gives the attention-weighted sum.

        Args:
            x: (T, size) states, text after text.
            counts: (n,) words of each text.

        Returns:
            (T, contexts * size)
        """
        scores = self.contexts(torch.tanh(self.inner(x))).to(x.dtype)
        highest = repeat_per_word(max_per_text(scores, counts), counts, len(x))
        return weight_states(x, torch.exp(scores - highest), counts)

    def draw(self) -> None:
        """Draw new weights from torch's generator: uniform up to 1 / sqrt(size), as torch does."""
        bound = self.contexts.in_features**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)


def weight_states(x: Tensor, energies: Tensor, counts: Tensor) -> Tensor:
    """Multiply each state by its attention weight and by the number of words of its text.

    The mean of the result over a text is therefore the attention-weighted sum.

    Args:
        x: (T, size) states, text after text.
        energies: (T, contexts) exponentials of the scores; they are normalized within each text.
        counts: (n,) words of each text.

    Returns:
        (T, contexts * size)
    """
    # sums run word after word, so that a text's bits do not depend on other texts
    sums = torch.segment_reduce(energies, "sum", lengths=counts, axis=0, unsafe=True)
    weights = (
        energies / repeat_per_word(sums, counts, len(x)) * repeat_per_word(counts, counts, len(x))[:, None]
    )
    return (weights[:, :, None] * x[:, None]).flatten(1)


def max_per_text(scores: Tensor, counts: Tensor) -> Tensor:
    """Return each text's highest score, (n, contexts), without gradient; subtracting it avoids overflow."""
    return torch.segment_reduce(scores.detach(), "max", lengths=counts, axis=0, unsafe=True)


def repeat_per_word(values: Tensor, counts: Tensor, words: int) -> Tensor:
    """Repeat the row of each text for each of its words: (n, ...) -> (words, ...)."""
    return torch.repeat_interleave(values, counts, dim=0, output_size=words)
