"""Errors for losses and gradients that are NaN or infinite; they end a training before its weights change."""

from collections.abc import Mapping

import torch
from torch.nn import Parameter

from pipeline.errors import DataError
from pipeline.objectives import Batch, Loss
from pipeline.train.gather import Ranks, local, mean_over_ranks


class NonFinite(DataError):
    """A loss or gradient is NaN or infinite; the weights are those of the previous step."""


def non_finite(step: int, batch: Batch, loss: Loss, parameters: Mapping[str, Parameter]) -> NonFinite:
    """Return the error. Every rank has to call it, because it gathers the numbers of the batch's rows."""
    rows = Ranks().gather(torch.tensor(batch.rows, device=loss.total.device)).tolist()
    shown = ", ".join(map(str, rows[:5])) + (" ..." if len(rows) > 5 else "")
    return NonFinite(
        f"step {step}",
        "a finite loss and gradient",
        f"{_culprit(loss, parameters)}, on rows {shown} of {batch.source or 'the batch'}",
        "check these rows; if they are valid, lower the learning rate, or use another precision",
    )


def _culprit(loss: Loss, parameters: Mapping[str, Parameter]) -> str:
    parts = [f"{name} {float(part)}" for name, part in loss.parts.items() if not torch.isfinite(part)]
    if parts or not torch.isfinite(loss.total):
        return f"loss {float(loss.total)}" + (f" ({', '.join(parts)})" if parts else "")
    finite = {
        name: torch.isfinite(local(parameter.grad)).all()
        for name, parameter in parameters.items()
        if parameter.grad is not None
    }
    # With shards, a single rank may have the invalid gradient.
    ranks = mean_over_ranks(torch.stack(list(finite.values())).float()).tolist()
    culprits = (
        f"a gradient of {name}" for name, proportion in zip(finite, ranks, strict=True) if proportion < 1
    )
    return next(culprits, "a gradient whose norm overflows")
