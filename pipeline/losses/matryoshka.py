"""One loss at several lengths of the vectors, so that their first dimensions serve alone."""

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.losses.checks import misfit


def matryoshka(
    loss: Callable[..., Tensor],
    reps: Sequence[Tensor],
    *,
    dims: Sequence[int],
    weights: Sequence[float] | None = None,
) -> Tensor:
    """Sum over dims of weight times loss(first `dim` dimensions of each of reps); the weights are 1 unless they are given.

    reps: tensors (rows, D), each D at least the largest of dims. The loss normalizes for itself, so each length is compared by its own cosine.
    ConfigError on no or doubled dims, dims that the vectors lack, weights that are not as many, negative or all 0. Kusupati et al. 2022, eq. 1.
    """
    _check(reps, dims, weights := [1.0] * len(dims) if weights is None else weights)
    terms = [
        weight * loss(*(each[:, :dim] for each in reps)) for dim, weight in zip(dims, weights, strict=True)
    ]
    return sum(terms[1:], start=terms[0])


def _check(reps: Sequence[Tensor], dims: Sequence[int], weights: Sequence[float]) -> None:
    for each in reps:
        if each.dim() != 2:
            raise misfit("Matryoshka", "representations of shape (rows, D)", each)
    largest = min(each.shape[1] for each in reps)
    if not dims or len(set(dims)) < len(dims) or min(dims) < 1 or max(dims) > largest:
        raise ConfigError(
            "dims", f"different numbers from 1 to {largest}", f"{list(dims)}", "correct the list"
        )
    if (
        len(weights) != len(dims)
        or not all(math.isfinite(weight) and weight >= 0 for weight in weights)
        or not any(weights)
    ):
        raise ConfigError(
            "weights",
            f"{len(dims)} numbers, one for each of dims, none negative and not all 0",
            f"{list(weights)}",
            "correct the list",
        )
