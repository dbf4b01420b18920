"""Functions of tensors that are compiled into one kernel, for any number of rows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Rows of the first call. The compiler chooses block sizes, and with them the order of sums, for it.
_COMPILED_ROWS = 8_192


class FusedKernel:
    """Compiled function of tensors (rows, ...), and of others.

    The compiler would choose a kernel, and with it the order of sums, for the rows of the first call.
    So the function is first called with a fixed number of rows, and the kernel of that call computes all.
    """

    def __init__(
        self, function: Callable[..., Tensor], backend: str | Callable[..., Any] = "inductor"
    ) -> None:
        """Prepare the compilation, which the first call does.

        Args:
            function: a function of tensors.
            backend: compiler, as in `torch.compile`.
        """
        self._function = torch.compile(function, backend=backend)
        self._compiled: set[tuple[object, ...]] = set()

    def __call__(self, rows: tuple[Tensor, ...], *others: Tensor | float | None) -> Tensor:
        """Call the function with tensors of any number of rows, and other arguments."""
        kind = tuple(
            (each.shape[1:], each.stride(), each.dtype, each.device)
            for each in (*rows, *(other for other in others if isinstance(other, Tensor)))
        )
        if kind not in self._compiled:
            for other in others:
                if isinstance(other, Tensor):
                    torch._dynamo.mark_static(other)
            self._function(*map(_example, rows), *others)
            self._compiled.add(kind)
        return self._function(*rows, *others)


def _example(x: Tensor) -> Tensor:
    """Return zeros with the layout of x in a fixed number of rows; the compiler assumes any number."""
    example = torch.empty_strided(
        (_COMPILED_ROWS, *x.shape[1:]), x.stride(), dtype=x.dtype, device=x.device
    ).zero_()
    torch._dynamo.mark_dynamic(example, 0)
    for dimension in range(1, x.ndim):
        torch._dynamo.mark_static(example, dimension)
    return example
