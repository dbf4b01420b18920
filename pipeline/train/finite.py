"""Errors for losses and gradients that are NaN or infinite; they end a training before its weights change."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import Parameter

from pipeline.errors import DataError
from pipeline.objectives import Batch, Column, Loss
from pipeline.train.gather import local, mean_over_ranks, world_size


@dataclass(eq=False)
class NonFinite(DataError):
    """A loss or gradient is NaN or infinite; the weights are those of the previous step.

    Attributes:
        step: number of the step.
        source: data source of the batch.
        columns: texts or numbers of the batch by role, of all ranks.
        rows: (n,) int64 row numbers in the source.
    """

    step: int
    source: str
    columns: Mapping[str, Column]
    rows: np.ndarray


def non_finite(step: int, batch: Batch, loss: Loss, parameters: Mapping[str, Parameter]) -> NonFinite:
    """Return the error, on every rank at once, because it gathers the batch."""
    columns, rows = _gathered(batch)
    shown = ", ".join(map(str, rows[:5])) + (" ..." if len(rows) > 5 else "")
    found = f"{_culprit(loss, parameters)}, on rows {shown} of {batch.source or 'the batch'}"
    remedy = "check these rows; if they are valid, lower the learning rate, or use another precision"
    return NonFinite(
        f"step {step}", "a finite loss and gradient", found, remedy, step, batch.source, columns, rows
    )


def _culprit(loss: Loss, parameters: Mapping[str, Parameter]) -> str:
    parts = [f"{name} {float(part)}" for name, part in loss.parts.items() if not torch.isfinite(part)]
    if parts or not torch.isfinite(loss.total):
        return f"loss {float(loss.total)}" + (f" ({', '.join(parts)})" if parts else "")
    gradients = {
        name: local(parameter.grad) for name, parameter in parameters.items() if parameter.grad is not None
    }
    # With shards, a single rank may have the invalid gradient.
    finite = mean_over_ranks(
        torch.stack([torch.isfinite(gradient).all() for gradient in gradients.values()]).float()
    )
    culprits = [name for name, proportion in zip(gradients, finite.tolist(), strict=True) if proportion < 1]
    return f"a gradient of {culprits[0]}" if culprits else "a gradient whose norm overflows"


def _gathered(batch: Batch) -> tuple[dict[str, Column], np.ndarray]:
    """Gather the columns and row numbers of all ranks, in rank order."""
    own = (dict(batch.columns), batch.rows)
    parts = [own] * world_size()
    if world_size() > 1:
        dist.all_gather_object(parts, own)
    columns = {role: _joined([columns[role] for columns, _ in parts]) for role in own[0]}
    return columns, np.concatenate([rows for _, rows in parts])


def _joined(parts: list[Column]) -> Column:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate([np.asarray(part) for part in parts])
    return [value for part in parts for value in part]
