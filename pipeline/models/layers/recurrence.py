"""Recurrent cells over packed steps, with their gradients: GRU as of Kiros et al. 2015 (Skip-Thought) and LSTM (Hochreiter & Schmidhuber 1997).

Texts stand by falling length, so that those which have a step t are the first ones; all of step 0 come first, then all of step 1, and no step of a text that has
ended is computed. What inputs add is known before the first step: one product for all of them. What weights learn is one product behind the last step. torch.nn.GRU
is another function: its reset gate comes behind the matrix, and its z stands for what is kept.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from pipeline.models.layers.linear import Linear

_PIECE = 16_384  # values: fewer than threads share, whole vector registers of them

State = tuple[Tensor, ...]
"""h (n, d) of n texts, and what else a cell remembers"""


class Cell(Protocol):
    """One step forward and one backward. Matrices of all gates stand one below the other: weights (gates * d, d), their products (n, gates * d)."""

    gates: int
    memories: int
    """tensors of a state"""
    biased: bool
    """whether its equations have biases"""

    def products(self, recurrent: Tensor, rows: int) -> tuple[Linear, ...]:
        """What multiplies states, prepared for about so many rows."""
        ...

    def step(self, x: Tensor, before: State, products: tuple[Linear, ...]) -> tuple[Tensor, State]:
        """(what the gates let through (n, gates * d), new state) of the inputs' part (n, gates * d)."""
        ...

    def transposed(self, recurrent: Tensor, rows: int) -> tuple[Linear, ...]:
        """What multiplies gradients on their way back."""
        ...

    def back(
        self, gates: Tensor, before: State, now: State, gradient: State, products: tuple[Linear, ...]
    ) -> tuple[Tensor, State]:
        """(gradient of the inputs' part, gradient of the state before) from that of the state now."""
        ...

    def of_recurrent(self, gradients: Tensor, gates: Tensor, before: Tensor) -> Tensor:
        """(gates * d, d) gradient of the weights from all steps together: those of the inputs' part, what the gates let through, h before."""
        ...


class Gru:
    """r = sigmoid(Wr x + Ur h), z = sigmoid(Wz x + Uz h), g = tanh(W x + U (r h)), h' = (1 - z) h + z g; without biases. In this order."""

    gates, memories, biased = 3, 1, False

    def products(self, recurrent: Tensor, rows: int) -> tuple[Linear, ...]:
        width = recurrent.shape[1]
        return Linear(recurrent[: 2 * width], None, rows=rows), Linear(
            recurrent[2 * width :], None, rows=rows
        )

    def step(self, x: Tensor, before: State, products: tuple[Linear, ...]) -> tuple[Tensor, State]:
        (h,), width = before, before[0].shape[1]
        gated, proposed = products
        rz = alike(torch.sigmoid, x[:, : 2 * width] + gated(h))
        r, z = rz.split(width, dim=1)
        g = alike(torch.tanh, x[:, 2 * width :] + proposed(r * h))
        return torch.cat([rz, g], dim=1), ((1 - z) * h + z * g,)

    def transposed(self, recurrent: Tensor, rows: int) -> tuple[Linear, ...]:
        width = recurrent.shape[1]
        return Linear(recurrent[: 2 * width].T, None, rows=rows), Linear(
            recurrent[2 * width :].T, None, rows=rows
        )

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


class Lstm:
    """i, f, o = sigmoid(W x + U h + b) each, g = tanh(W x + U h + b), c' = f c + i g, h' = o tanh(c'); one bias a gate. In the order i, f, o, g."""

    gates, memories, biased = 4, 2, True

    def products(self, recurrent: Tensor, rows: int) -> tuple[Linear, ...]:
        return (Linear(recurrent, None, rows=rows),)

    def step(self, x: Tensor, before: State, products: tuple[Linear, ...]) -> tuple[Tensor, State]:
        (h, c), (product,) = before, products
        width = h.shape[1]
        inner = x + product(h)
        ifo, g = alike(torch.sigmoid, inner[:, : 3 * width]), alike(torch.tanh, inner[:, 3 * width :])
        i, f, o = ifo.split(width, dim=1)
        c = f * c + i * g
        return torch.cat([ifo, g], dim=1), (o * alike(torch.tanh, c), c)

    def transposed(self, recurrent: Tensor, rows: int) -> tuple[Linear, ...]:
        return (Linear(recurrent.T, None, rows=rows),)

    def back(
        self, gates: Tensor, before: State, now: State, gradient: State, products: tuple[Linear, ...]
    ) -> tuple[Tensor, State]:
        (_, c_before), (_, c), (of_h, of_c), (product,) = before, now, gradient, products
        i, f, o, g = gates.split(c.shape[1], dim=1)
        bent = torch.tanh(c)
        of_c = of_c + of_h * o * (1 - bent * bent)
        of_gates = torch.cat(
            [
                of_c * g * i * (1 - i),
                of_c * c_before * f * (1 - f),
                of_h * bent * o * (1 - o),
                of_c * i * (1 - g * g),
            ],
            dim=1,
        )
        return of_gates, (product(of_gates), of_c * f)

    def of_recurrent(self, gradients: Tensor, gates: Tensor, before: Tensor) -> Tensor:
        return _outer(gradients, before)


CELLS: dict[str, Cell] = {"gru": Gru(), "lstm": Lstm()}


def recurrence(cell: Cell, x: Tensor, recurrent: Tensor, sizes: Sequence[int]) -> Tensor:
    """(T, d) states h of all steps, from zero, for the inputs' part x (T, gates * d) of packed steps; sizes: texts that have step 0, 1 ..., falling, T in all."""
    with torch.autocast(x.device.type, enabled=False):  # errors of a step go through all that follow
        states: Tensor = _Recurrence.apply(cell, x.to(recurrent.dtype), recurrent, tuple(sizes))
        return states


class _Recurrence(torch.autograd.Function):
    """The loop over steps; autograd would keep every step's graph and add up as many gradients of the weights."""

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
        products, befores = (
            cell.transposed(recurrent, sizes[0]),
            [_before(memory, sizes) for memory in memories],
        )
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
    """(T, d): what was remembered when each step began."""
    parts, start = [memory.new_zeros(sizes[0], memory.shape[1])], 0
    for size, following in pairwise(sizes):
        parts.append(memory[start : start + following])
        start += size
    return torch.cat(parts)


def alike(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` of each value, with bits that do not depend on where it stands: at the end of a thread's share a processor computes by other means."""
    if x.device.type != "cpu" or x.numel() <= _PIECE:
        return function(x.contiguous())
    return torch.cat([function(piece) for piece in x.flatten().split(_PIECE)]).view(x.shape)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """(a, b) sum over rows of left (T, a) and right (T, b)."""
    columns = left.T.contiguous()
    return Linear(right.T, None, rows=len(columns))(columns)
