"""Collective operations of data-parallel training: gather vectors, average gradients, find shards.

Each rank computes the mean loss of its own rows, with candidates gathered from all ranks. Loss and gradient,
averaged over ranks, then equal those of the whole batch, provided that the gradient of a gathered vector
flows back to the rank that encoded it. The backward pass of `Ranks.gather` does this: it sums the gradients
of all ranks. Encoders and heads are not wrapped for data parallelism: `average_gradients` runs once, after
all chunks of a step, so that no gradient is sent twice and parameters keep their names.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import Parameter

from pipeline.errors import DataError

_BUCKET_BYTES = 25 << 20  # gradients per message: large enough that latency does not matter


def world_size() -> int:
    """Return the number of ranks of the process group; 1 without one."""
    return dist.get_world_size() if dist.is_initialized() else 1


class Ranks:
    """All ranks of the default process group; without a process group, this process alone.

    Implements `Peers`.
    """

    @property
    def rank(self) -> int:
        """Rank of this process; 0 without a process group."""
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
        own_gradient = torch.empty_like(parts[0])
        dist.reduce_scatter(own_gradient, parts)
        return own_gradient


def _check_shapes(z: Tensor) -> None:
    """Raise DataError if the shape of z differs between ranks."""
    summary = torch.tensor([z.ndim, len(z), z.numel()], device=z.device)
    gathered = [torch.empty_like(summary) for _ in range(world_size())]
    dist.all_gather(gathered, summary)
    summaries = torch.stack(gathered).tolist()
    if any(other != summaries[0] for other in summaries):
        raise DataError(
            "gathering vectors of all ranks",
            "as many rows on every rank",
            ", ".join(
                f"{rows} of {values // max(rows, 1)} values on rank {rank}"
                for rank, (_, rows, values) in enumerate(summaries)
            ),
            "drop the incomplete last batch, or make the slices of a batch equal",
        )


def average_gradients(parameters: Iterable[Parameter]) -> None:
    """Average each gradient over all ranks.

    A gradient that is None on every rank stays None; one that is None on some ranks counts as zero there.
    Gradients that were averaged before are equal on all ranks and keep their values, so the gradients of
    several batches may be accumulated. Gradients of shards are skipped: FSDP has averaged them.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad and not is_sharded(parameter)]
    if world_size() == 1 or not trained:
        return
    has_gradient = torch.tensor(
        [parameter.grad is not None for parameter in trained], dtype=torch.int32, device=trained[0].device
    )
    dist.all_reduce(has_gradient, dist.ReduceOp.MAX)  # 1 if any rank has the gradient
    gradients = [
        _gradient(parameter)
        for parameter, exists in zip(trained, has_gradient.tolist(), strict=True)
        if exists
    ]
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        dist.all_reduce(flat)
        means = (flat / world_size()).split([gradient.numel() for gradient in bucket])
        for gradient, mean in zip(bucket, means, strict=True):
            gradient.copy_(mean.view_as(gradient))


def mean_over_ranks(values: Tensor) -> Tensor:
    """Return each value's mean over ranks, without a graph."""
    total = values.detach().clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total / world_size()


def largest_over_ranks(value: int, device: torch.device) -> int:
    """Return the largest of the values of all ranks."""
    if world_size() == 1:
        return value
    largest = torch.tensor(value, device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)


def set_gradient_sync(module: nn.Module, enabled: bool) -> None:
    """Set whether later backward passes average the gradients of sharded modules over the ranks.

    If not, the gradients accumulate on each rank until a backward pass averages them. Modules that are not
    sharded are not affected.
    """
    for submodule in module.modules():
        set_sync: Any = getattr(submodule, "set_requires_gradient_sync", None)
        if set_sync is not None:
            set_sync(enabled, recurse=False)


def is_sharded(tensor: Tensor) -> bool:
    """Return True if each rank holds a part of the tensor."""
    # An attribute of DTensor, whose import would take a second in every training.
    return hasattr(tensor, "device_mesh")


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharing its memory.

    A tensor that is not sharded is returned unchanged.
    """
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part


def _gradient(parameter: Parameter) -> Tensor:
    """Return the gradient, which is set to zero if it is None."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield groups of consecutive gradients of one dtype and device, each small enough for one message."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        if bucket and (
            gradient.dtype != bucket[0].dtype
            or gradient.device != bucket[0].device
            or sum(tensor.nbytes for tensor in bucket) + gradient.nbytes > _BUCKET_BYTES
        ):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket
