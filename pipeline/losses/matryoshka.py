"""Matryoshka loss: one loss at several vector lengths, so that the first dimensions are usable alone."""

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.losses.checks import shape_error


def matryoshka(
    loss: Callable[..., Tensor],
    reps: Sequence[Tensor],
    *,
    dims: Sequence[int],
    weights: Sequence[float] | None = None,
) -> Tensor:
    """Weighted sum of a loss over truncated vectors (Kusupati et al. 2022, eq. 1).

    Args:
        loss: function of the representations. It normalizes its input itself, so that each length has its own
            cosines.
        reps: tensors (rows, D), each D at least the largest of `dims`.
        dims: numbers of leading dimensions to keep, without repetition.
        weights: one per entry of `dims`, none negative, not all 0; 1 each if None.

    Raises:
        ConfigError: `dims` is empty, has repeated entries or exceeds D; `weights` do not fit.
        Defect: representations that are not matrices.
    """
    _check(reps, dims, weights := [1.0] * len(dims) if weights is None else weights)
    terms = [
        weight * loss(*(each[:, :dim] for each in reps)) for dim, weight in zip(dims, weights, strict=True)
    ]
    return sum(terms[1:], start=terms[0])


def _check(reps: Sequence[Tensor], dims: Sequence[int], weights: Sequence[float]) -> None:
    for each in reps:
        if each.dim() != 2:
            raise shape_error("Matryoshka", "representations of shape (rows, D)", each)
    largest = min(each.shape[1] for each in reps)
    if not dims or len(set(dims)) < len(dims) or min(dims) < 1 or max(dims) > largest:
        raise ConfigError(
            "dims", f"distinct numbers from 1 to {largest}", f"{list(dims)}", "correct the list"
        )
    if (
        len(weights) != len(dims)
        or not all(math.isfinite(weight) and weight >= 0 for weight in weights)
        or not any(weights)
    ):
        raise ConfigError(
            "weights",
            f"{len(dims)} numbers, one per entry of dims, none negative and not all 0",
            f"{list(weights)}",
            "correct the list",
        )
