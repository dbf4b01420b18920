"""Data-parallel training with candidates from all ranks.

Each rank takes the mean loss over its own rows, with candidates gathered from all ranks. Averaged over ranks,
this is the mean over all rows, and so is its gradient, if gradients flow back to the rank that owns a vector:
`Ranks.gather` sums the gradients of all ranks. Encoders and heads stay plain modules without a wrapper:
`average_gradients` runs once, after all chunks of a step, so that no gradient is sent twice and parameters
keep their names.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import Parameter

from pipeline.errors import DataError

_BUCKET_BYTES = 25 << 20  # per message: large enough to hide latency, small compared with the gradients


def world_size() -> int:
    """Return the number of ranks of the process group; 1 without one."""
    return dist.get_world_size() if dist.is_initialized() else 1


class Ranks:
    """All ranks of the default process group, or this process alone without one."""

    @property
    def rank(self) -> int:
        """Return this process's rank; 0 without a process group."""
        return dist.get_rank() if dist.is_initialized() else 0

    def gather(self, z: Tensor) -> Tensor:
        """Concatenate z (n, ...) of all W ranks in rank order: (W n, ...).

        Every rank must call it equally often and in the same order. Forward and backward each send W n rows.

        Raises:
            DataError: on every rank, if shapes differ. They are compared first, because a collective over
                unequal shapes hangs or mixes rows.
        """
        if world_size() > 1:
            _check_shapes(z)
            z = _Gather.apply(z)
        return z


class _Gather(torch.autograd.Function):
    """Concatenate rows of all ranks.

    In the backward pass, a rank's rows get the sum of their gradients on all ranks.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, z: Tensor) -> Tensor:
        parts = [torch.empty_like(z, memory_format=torch.contiguous_format) for _ in range(world_size())]
        dist.all_gather(parts, z.contiguous())
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        parts = list(gradient.contiguous().chunk(world_size()))
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts)
        return own


def _check_shapes(z: Tensor) -> None:
    """Raise DataError if z has another shape on another rank."""
    own = torch.tensor([z.ndim, len(z), z.numel()], device=z.device)
    shapes = [torch.empty_like(own) for _ in range(world_size())]
    dist.all_gather(shapes, own)
    found = torch.stack(shapes).tolist()
    if any(shape != found[0] for shape in found):
        raise DataError(
            "gathering vectors of all ranks",
            "as many rows on every rank",
            ", ".join(
                f"{rows} of {values // max(rows, 1)} values on rank {rank}"
                for rank, (_, rows, values) in enumerate(found)
            ),
            "drop the incomplete last batch, or make the slices of a batch equal",
        )


def average_gradients(parameters: Iterable[Parameter]) -> None:
    """Average each gradient over all ranks.

    A gradient that is None on every rank stays None; if it is None on some ranks, it counts as zero there. An
    average of equal gradients does not change them, so batches may be accumulated. Gradients of shards are
    averages already.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad and not is_sharded(parameter)]
    if world_size() == 1 or not trained:
        return
    own = [parameter.grad is not None for parameter in trained]
    used = torch.tensor(own, dtype=torch.int32, device=trained[0].device)
    dist.all_reduce(used, dist.ReduceOp.MAX)
    gradients = [
        _gradient(parameter) for parameter, exists in zip(trained, used.tolist(), strict=True) if exists
    ]
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        dist.all_reduce(flat)
        means = (flat / world_size()).split([gradient.numel() for gradient in bucket])
        for gradient, mean in zip(bucket, means, strict=True):
            gradient.copy_(mean.view_as(gradient))


def mean_over_ranks(values: Tensor) -> Tensor:
    """Return the mean over ranks of each value, without a graph."""
    total = values.detach().clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total / world_size()


def sharded_average(module: nn.Module, enabled: bool) -> None:
    """Set whether the next backward passes average the gradients of shards accumulated so far.

    Has no effect on modules that are not sharded.
    """
    for each in module.modules():
        set_sync: Any = getattr(each, "set_requires_gradient_sync", None)
        if set_sync is not None:
            set_sync(enabled, recurse=False)


def is_sharded(tensor: Tensor) -> bool:
    """Return True if each rank holds a part of the tensor."""
    # An attribute of DTensor, whose import would take a second in every training.
    return hasattr(tensor, "device_mesh")


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharing its memory.

    A tensor that is not sharded is returned unchanged.
    """
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part


def _gradient(parameter: Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Group consecutive gradients of one dtype and device, each group up to the size of a message."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        if bucket and (
            gradient.dtype != bucket[0].dtype
            or gradient.device != bucket[0].device
            or sum(each.nbytes for each in bucket) + gradient.nbytes > _BUCKET_BYTES
        ):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket
