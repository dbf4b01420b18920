"""Checks of the arguments of losses: shapes, finite values, temperatures, number of candidates."""

import math

import torch
from torch import Tensor

from pipeline.errors import ConfigError, DataError, Defect, ModelError


def check_representations(loss: str, **named: Tensor) -> tuple[Tensor, ...]:
    """Check vectors, and convert them to at least float32.

    Half precision would round logits too coarsely: in bfloat16, logits above 16 are rounded to multiples of
    1/8.

    Args:
        loss: name of the loss, for the error message.
        **named: tensors of shape (rows, D) with at least one row and the same D, by name.

    Returns:
        The tensors in the order of `named`.

    Raises:
        Defect: another shape.
        ModelError: NaN or infinity.
    """
    width = next(iter(named.values())).shape[-1:]
    for name, tensor in named.items():
        if tensor.dim() != 2 or not len(tensor) or tensor.shape[-1:] != width:
            raise shape_error(
                loss, f"{name} of shape (rows, {width[0] if width else 'D'}) with at least one row", tensor
            )
    return tuple(
        require_finite(f"{name} of {loss}", at_least_float32(tensor)) for name, tensor in named.items()
    )


def check_aligned(loss: str, **named: Tensor) -> tuple[Tensor, ...]:
    """Check vectors as `check_representations` does, and that all tensors have the same number of rows."""
    tensors = check_representations(loss, **named)
    require_rows(loss, len(tensors[0]), **named)
    return tensors


def at_least_float32(x: Tensor) -> Tensor:
    """Convert x to float32, unless it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def require_finite(where: str, x: Tensor) -> Tensor:
    """Return x unchanged; raise ModelError if a row of it holds NaN or infinity."""
    if bool(torch.isfinite(x.detach().sum())):
        return x  # one pass over x: a sum with NaN or infinity is never finite
    is_finite = torch.isfinite(x.detach())
    if not bool(is_finite.all()):
        finite_rows = int(is_finite.reshape(len(x), -1).all(dim=1).sum())
        raise ModelError(
            where,
            "finite values",
            f"{len(x) - finite_rows} of {len(x)} rows with NaN or infinity",
            "lower the learning rate, or train in bf16 or float32 instead of fp16",
        )
    return x


def require_rows(loss: str, count: int, **named: Tensor) -> None:
    """Raise Defect unless each tensor has `count` rows."""
    for name, tensor in named.items():
        if tensor.dim() < 1 or len(tensor) != count:
            raise shape_error(loss, f"{name} with {count} rows", tensor)


def require_shape(loss: str, name: str, x: Tensor, *shape: int) -> None:
    """Raise Defect unless x has this shape."""
    if x.shape != shape:
        raise shape_error(loss, f"{name} of shape {shape}", x)


def shape_error(loss: str, expected: str, found: Tensor) -> Defect:
    """Return the error for a tensor of the wrong shape."""
    return Defect(loss, expected, f"shape {tuple(found.shape)}", "pass the representations of one batch")


def require_positive(name: str, value: float) -> None:
    """Raise ConfigError unless value is finite and greater than 0."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(name, "a finite number above 0", f"{value}", f"correct {name}")


def require_proportion(name: str, value: float) -> None:
    """Raise ConfigError unless value is in [0, 1]."""
    if not 0 <= value <= 1:
        raise ConfigError(name, "a number from 0 to 1", f"{value}", f"correct {name}")


def require_candidates(loss: str, candidates: int) -> None:
    """Raise ConfigError unless there are at least two candidates: with one, the loss is always 0."""
    if candidates < 2:
        raise ConfigError(
            loss,
            "a batch of at least two rows, or extra negatives",
            f"{candidates} candidate",
            "raise the batch size",
        )


def require_classes(loss: str, labels: Tensor, count: int) -> None:
    """Raise DataError unless all labels (n,) are integers from 0 to count - 1."""
    if labels.dtype.is_floating_point or labels.dtype == torch.bool:
        raise DataError(
            f"labels of {loss}", "integers", str(labels.dtype), "map the label column to class numbers"
        )
    outside = (labels < 0) | (labels >= count)
    if bool(outside.any()):
        raise DataError(
            f"labels of {loss}",
            f"0 to {count - 1}",
            str(int(labels[outside][0])),
            "drop rows without a label, or correct the list of labels",
        )
