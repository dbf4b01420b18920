"""Error that ends a training if the loss or gradient of a step is NaN or infinite."""

from collections.abc import Mapping

import torch
from torch.nn import Parameter

from pipeline.errors import DataError
from pipeline.objectives import Batch, Loss
from pipeline.train.gather import Ranks, local_shard, mean_over_ranks


class NonFinite(DataError):
    """A loss or gradient is NaN or infinite; the weights are those of the previous step."""


def non_finite_error(step: int, batch: Batch, loss: Loss, parameters: Mapping[str, Parameter]) -> NonFinite:
    """Return the error, which names the rows of the batch and the loss or gradient that is not finite.

    Every rank has to call it, because it gathers the row numbers of all ranks.

    Args:
        step: number of the step.
        batch: this rank's rows.
        loss: loss of the step.
        parameters: trained parameters by name, with their gradients.
    """
    rows = Ranks().gather(torch.tensor(batch.rows, device=loss.total.device)).tolist()
    shown = ", ".join(map(str, rows[:5])) + (" ..." if len(rows) > 5 else "")
    return NonFinite(
        f"step {step}",
        "a finite loss and gradient",
        f"{_culprit(loss, parameters)}, on rows {shown} of {batch.source or 'the batch'}",
        "check these rows; if they are valid, lower the learning rate, or use another precision",
    )


def _culprit(loss: Loss, parameters: Mapping[str, Parameter]) -> str:
    """Name the loss and its parts that are not finite, else the first gradient that is not finite."""
    parts = [f"{name} {float(part)}" for name, part in loss.parts.items() if not torch.isfinite(part)]
    if parts or not torch.isfinite(loss.total):
        return f"loss {float(loss.total)}" + (f" ({', '.join(parts)})" if parts else "")
    finite = {
        name: torch.isfinite(local_shard(parameter.grad)).all()
        for name, parameter in parameters.items()
        if parameter.grad is not None
    }
    # With shards, a gradient may be invalid on one rank only.
    proportions = mean_over_ranks(torch.stack(list(finite.values())).float()).tolist()
    culprits = (
        f"a gradient of {name}"
        for name, finite_ranks in zip(finite, proportions, strict=True)
        if finite_ranks < 1
    )
    return next(culprits, "a gradient whose norm overflows")
