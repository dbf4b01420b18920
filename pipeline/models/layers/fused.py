"""Functions of tensors that are compiled into one kernel, for any number of rows."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

# Rows of the first call. The compiler chooses block sizes, and with them the order of sums, for it.
_COMPILED_ROWS = 8_192


class FusedKernel:
    """Compiled function of tensors (rows, ...), and of others.

    The compiler would choose a kernel, and with it the order of sums, for the rows of the first call.
    So the function is first called with a fixed number of rows, and the kernel of that call computes all.

    PyTorch stores at most eight kernels with the code of a function. It then warns, and runs the function
    without compiling it. So each instance compiles its own copy of the code, and a ninth kernel is an error.
    """

    def __init__(
        self, function: Callable[..., Tensor], backend: str | Callable[..., Any] = "inductor"
    ) -> None:
        """Prepare the compilation, which the first call does.

        Args:
            function: a function of tensors.
            backend: compiler, as in `torch.compile`.
        """
        assert isinstance(function, FunctionType)
        code, defaults, closure = function.__code__.replace(), function.__defaults__, function.__closure__
        copy = FunctionType(code, function.__globals__, function.__name__, defaults, closure)
        self._function = torch.compile(copy, backend=backend)
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
            with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
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
