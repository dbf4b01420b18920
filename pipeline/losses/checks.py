"""What every loss asks of its input, said in sentences: shapes, finite values, temperatures, the least number of candidates."""

import math

import torch
from torch import Tensor

from pipeline.errors import ConfigError, DataError, Defect, ModelError


def representations(loss: str, **named: Tensor) -> tuple[Tensor, ...]:
    """The tensors, each (rows, D) with at least one row and all of one D, in float32, or in float64 where they come so.

    Half precision cannot tell apart logits of +-20 and more. Defect on other shapes, ModelError on values that are not finite.
    """
    width = next(iter(named.values())).shape[-1:]
    for name, each in named.items():
        if each.dim() != 2 or not len(each) or each.shape[-1:] != width:
            raise misfit(
                loss, f"{name} of shape (rows, {width[0] if width else 'D'}) with at least one row", each
            )
    return tuple(finite(f"{name} of {loss}", wide(each)) for name, each in named.items())


def wide(x: Tensor) -> Tensor:
    """x in float32, or as it is in float64."""
    return x if x.dtype == torch.float64 else x.float()


def finite(where: str, x: Tensor) -> Tensor:
    """x itself; ModelError if a row of it holds NaN or infinity."""
    if not bool(torch.isfinite(x).all()):
        bad = (
            int((~torch.isfinite(x.detach())).flatten(1).any(dim=1).sum())
            if x.dim() > 1
            else int((~torch.isfinite(x.detach())).sum())
        )
        raise ModelError(
            where,
            "finite values",
            f"{bad} of {len(x)} rows with NaN or infinity",
            "lower the learning rate, or train in bf16 or float32 in place of fp16",
        )
    return x


def as_many(loss: str, count: int, **named: Tensor) -> None:
    """Defect unless each has `count` rows."""
    for name, each in named.items():
        if each.dim() < 1 or len(each) != count:
            raise misfit(loss, f"{name} of {count} rows", each)


def shaped(loss: str, name: str, x: Tensor, *shape: int) -> None:
    """Defect unless x has that shape."""
    if x.shape != shape:
        raise misfit(loss, f"{name} of shape {shape}", x)


def misfit(loss: str, expected: str, found: Tensor) -> Defect:
    """The error of a tensor whose shape does not fit."""
    return Defect(loss, expected, f"shape {tuple(found.shape)}", "give the representations of one batch")


def positive(name: str, value: float) -> None:
    """ConfigError unless value is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(name, "a finite number above 0", f"{value}", f"set another {name}")


def share(name: str, value: float) -> None:
    """ConfigError unless value lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise ConfigError(name, "a number from 0 to 1", f"{value}", f"set another {name}")


def several(loss: str, candidates: int) -> None:
    """ConfigError unless there are two candidates or more: picking one of one costs nothing and teaches nothing."""
    if candidates < 2:
        raise ConfigError(
            loss,
            "a batch of at least two rows, or extra negatives",
            f"{candidates} candidate",
            "raise the batch size",
        )


def classes(loss: str, labels: Tensor, count: int) -> None:
    """DataError unless all labels (n,) are whole numbers from 0 to count - 1."""
    if labels.dtype.is_floating_point or labels.dtype == torch.bool:
        raise DataError(
            f"labels of {loss}", "whole numbers", str(labels.dtype), "map the label column to class numbers"
        )
    outside = (labels < 0) | (labels >= count)
    if bool(outside.any()):
        raise DataError(
            f"labels of {loss}",
            f"0 to {count - 1}",
            str(int(labels[outside][0])),
            "drop rows without a label, or correct the set of labels",
        )
