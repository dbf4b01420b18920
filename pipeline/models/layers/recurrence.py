"""Recurrent cells over packed steps, with their gradients.

GRU as in Skip-Thought (Kiros et al. 2015) and LSTM (Hochreiter & Schmidhuber 1997). Texts are sorted
by decreasing length; rows are ordered by step: first step 0 of all texts, then step 1 of the texts
that have one, and so on, so nothing is computed behind the end of a text. The inputs of all steps are
multiplied by the weights in one product before the first step, and the gradient of the recurrent
weights is one product after the last step.

torch.nn.GRU is another function: it applies the reset gate after the matrix, and its z is the
proportion of the old state, not of the new one.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pipeline.models.layers.linear import Linear

_PIECE = 16_384  # values: too few for torch to split among threads, and a multiple of any vector register

State = tuple[Tensor, ...]
"""h (n, d) of n texts; an LSTM also has c (n, d)"""


class Cell:
    """One step forward and one step backward.

    The recurrent weights of all gates are stacked: (gates * d, d), their products (n, gates * d).
    """

    gates: int
    memories: int
    """number of tensors in a state"""
    biased: bool
    """the cell's equations have biases"""

    def parts(self, recurrent: Tensor) -> tuple[Tensor, ...]:
        """Split the recurrent weights into the matrices that multiply states."""
        return (recurrent,)

    def products(self, recurrent: Tensor, rows: int, *, transposed: bool = False) -> tuple[Linear, ...]:
        """Prepare the matrices for about `rows` texts; transposed ones multiply gradients in `back`."""
        return tuple(
            Linear(part.T if transposed else part, None, rows=rows) for part in self.parts(recurrent)
        )

    def step(self, x: Tensor, before: State, products: tuple[Linear, ...]) -> tuple[Tensor, State]:
        """Compute one step.

        Args:
            x: (n, gates * d) inputs multiplied by their weights.
            before: state of the n texts.
            products: from `products`.

        Returns:
            Activations of the gates (n, gates * d) and the new state.
        """
        raise NotImplementedError

    def back(
        self, gates: Tensor, before: State, now: State, gradient: State, products: tuple[Linear, ...]
    ) -> tuple[Tensor, State]:
        """Propagate the gradient of the state `now` through one step.

        Returns:
            Gradient of x (n, gates * d) and gradient of the state before.
        """
        raise NotImplementedError

    def of_recurrent(self, gradients: Tensor, gates: Tensor, before: Tensor) -> Tensor:
        """Gradient of the recurrent weights, (gates * d, d), summed over all steps.

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

    gates, memories, biased = 3, 1, False

    def parts(self, recurrent: Tensor) -> tuple[Tensor, ...]:
        width = recurrent.shape[1]
        return recurrent[: 2 * width], recurrent[2 * width :]

    def step(self, x: Tensor, before: State, products: tuple[Linear, ...]) -> tuple[Tensor, State]:
        (h,), width = before, before[0].shape[1]
        gated, proposed = products
        rz = alike(torch.sigmoid, x[:, : 2 * width] + gated(h))
        r, z = rz.split(width, dim=1)
        g = alike(torch.tanh, x[:, 2 * width :] + proposed(r * h))
        return torch.cat([rz, g], dim=1), ((1 - z) * h + z * g,)

    def back(
        self, gates: Tensor, before: State, now: State, gradient: State, products: tuple[Linear, ...]
    ) -> tuple[Tensor, State]:
        (h,), (of_h,) = before, gradient
        gated, proposed = products
        r, z, g = gates.split(h.shape[1], dim=1)
        of_g = of_h * z * (1 - g * g)
        of_rh = proposed(of_g)
        of_gates = torch.cat([of_rh * h * r * (1 - r), of_h * (g - h) * z * (1 - z)], dim=1)
        return torch.cat([of_gates, of_g], dim=1), (of_h * (1 - z) + of_rh * r + gated(of_gates),)

    def of_recurrent(self, gradients: Tensor, gates: Tensor, before: Tensor) -> Tensor:
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

    gates, memories, biased = 4, 2, True

    def step(self, x: Tensor, before: State, products: tuple[Linear, ...]) -> tuple[Tensor, State]:
        (h, c), (product,) = before, products
        width = h.shape[1]
        inner = x + product(h)
        ifo, g = alike(torch.sigmoid, inner[:, : 3 * width]), alike(torch.tanh, inner[:, 3 * width :])
        i, f, o = ifo.split(width, dim=1)
        c = f * c + i * g
        return torch.cat([ifo, g], dim=1), (o * alike(torch.tanh, c), c)

    def back(
        self, gates: Tensor, before: State, now: State, gradient: State, products: tuple[Linear, ...]
    ) -> tuple[Tensor, State]:
        (_, c_before), (_, c), (of_h, of_c), (product,) = before, now, gradient, products
        i, f, o, g = gates.split(c.shape[1], dim=1)
        tanh_c = torch.tanh(c)
        of_c = of_c + of_h * o * (1 - tanh_c * tanh_c)
        of_gates = torch.cat(
            [
                of_c * g * i * (1 - i),
                of_c * c_before * f * (1 - f),
                of_h * tanh_c * o * (1 - o),
                of_c * i * (1 - g * g),
            ],
            dim=1,
        )
        return of_gates, (product(of_gates), of_c * f)


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
    """Loop over the steps. Autograd would keep a graph for each step and sum one weight gradient per step."""

    @staticmethod
    def forward(ctx: Any, cell: Cell, x: Tensor, recurrent: Tensor, sizes: tuple[int, ...]) -> Tensor:
        products, width = cell.products(recurrent, sizes[0]), recurrent.shape[1]
        gates, memories = torch.empty_like(x), [x.new_empty(len(x), width) for _ in range(cell.memories)]
        state: State = tuple(x.new_zeros(sizes[0], width) for _ in range(cell.memories))
        start = 0
        for size in sizes:
            here = slice(start, start := start + size)
            gates[here], state = cell.step(x[here], tuple(part[:size] for part in state), products)
            for memory, part in zip(memories, state, strict=True):
                memory[here] = part
        ctx.save_for_backward(recurrent, gates, *memories)
        ctx.cell, ctx.sizes = cell, sizes
        return memories[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, None]:
        cell, sizes = ctx.cell, ctx.sizes
        recurrent, gates, *memories = ctx.saved_tensors
        products = cell.products(recurrent, sizes[0], transposed=True)
        befores = [_before(memory, sizes) for memory in memories]
        gradients = torch.empty_like(gates)
        state = [gates.new_zeros(sizes[0], recurrent.shape[1]) for _ in memories]
        end = len(gates)
        for size in reversed(sizes):
            here = slice(end := end - size, end + size)
            coming = (state[0][:size] + gradient[here], *(part[:size] for part in state[1:]))
            gradients[here], going = cell.back(
                gates[here],
                tuple(part[here] for part in befores),
                tuple(part[here] for part in memories),
                coming,
                products,
            )
            for part, new in zip(state, going, strict=True):
                part[:size] = new
        return None, gradients, cell.of_recurrent(gradients, gates, befores[0]), None


def _before(memory: Tensor, sizes: Sequence[int]) -> Tensor:
    """State before each step, (T, d), for the states (T, d) after each step."""
    parts, start = [memory.new_zeros(sizes[0], memory.shape[1])], 0
    for size, following in pairwise(sizes):
        parts.append(memory[start : start + following])
        start += size
    return torch.cat(parts)


def alike(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply an elementwise function such that a value's bits do not depend on its position.

    Without the pieces, torch computes the values at the end of a thread's part by scalar instead of
    vector instructions, which may round differently.
    """
    if x.device.type != "cpu" or x.numel() <= _PIECE:
        return function(x.contiguous())
    return torch.cat([function(piece) for piece in x.flatten().split(_PIECE)]).view(x.shape)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """Return left.T @ right, (a, b), for left (T, a) and right (T, b)."""
    columns = left.T.contiguous()
    return Linear(right.T, None, rows=len(columns))(columns)
