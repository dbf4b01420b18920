"""Ranks that train together: each sees the others' vectors as candidates, and all move by one gradient.

A mean over this rank's rows, with candidates gathered from all of them, averaged over ranks, is the mean over all rows, and so is its gradient, if what a vector costs
on another rank comes back to the rank that made it: `Ranks.gather` sums the gradients of all ranks. Encoders and heads stay plain modules, without a wrapper around them:
`average_gradients` runs once, when all chunks of a step have been through, so no gradient is sent twice and parameters keep their names.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import Parameter

from pipeline.errors import DataError

_BUCKET_BYTES = (
    25 << 20
)  # of one message: large enough that a network is busy with bytes and not with calls, small beside the gradients


def world_size() -> int:
    """Ranks of the process group; 1 without one."""
    return dist.get_world_size() if dist.is_initialized() else 1


class Ranks:
    """All ranks of the default process group; this process alone without one."""

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0

    def gather(self, z: Tensor) -> Tensor:
        """(n, ...) of this rank -> (W n, ...) of all, in the order of ranks.

        Every rank must call it the same number of times in the same order. DataError on every rank where shapes differ: they are compared first, since a collective
        over unequal ones hangs or mixes rows. Forward and backward each send W n rows.
        """
        if world_size() == 1:
            return z
        _same_shape(z)
        gathered: Tensor = _Gather.apply(z)
        return gathered


class _Gather(torch.autograd.Function):
    """Concatenates; backward, a rank's rows get the sum of what they cost on every rank."""

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


def _same_shape(z: Tensor) -> None:
    own = torch.tensor([z.ndim, len(z), z.numel()], device=z.device)
    shapes = [torch.empty_like(own) for _ in range(world_size())]
    dist.all_gather(shapes, own)
    found = torch.stack(shapes).tolist()
    if any(shape != found[0] for shape in found):
        described = ", ".join(
            f"{rows} of {values // max(rows, 1)} values on rank {rank}"
            for rank, (_, rows, values) in enumerate(found)
        )
        raise DataError(
            "gathering vectors of all ranks",
            "as many rows on every rank",
            described,
            "drop the incomplete last batch, or make the slices of a batch equal",
        )


def average_gradients(parameters: Iterable[Parameter]) -> None:
    """Give every rank the mean over ranks of each gradient. A gradient that is None everywhere stays so; where it is None on some ranks, it counts as zero there.

    What was averaged before stays as it is, so batches may be accumulated: the mean of equal gradients is one of them. Shards' gradients are means already.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad and not is_sharded(parameter)]
    if world_size() == 1 or not trained:
        return
    used = torch.tensor(
        [parameter.grad is not None for parameter in trained], dtype=torch.int32, device=trained[0].device
    )
    dist.all_reduce(used, dist.ReduceOp.MAX)
    gradients = [
        _gradient(parameter) for parameter, anywhere in zip(trained, used.tolist(), strict=True) if anywhere
    ]
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        dist.all_reduce(flat)
        for gradient, mean in zip(
            bucket, (flat / world_size()).split([gradient.numel() for gradient in bucket]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))


def mean_over_ranks(values: Tensor) -> Tensor:
    """The mean over ranks of each number, without a graph."""
    total = values.detach().clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total / world_size()


def sharded_average(module: nn.Module, wanted: bool) -> None:
    """Whether the next backward passes average the gradients of shards, together with what passes before them left to add up. Nothing where nothing is sharded."""
    for each in module.modules():
        set_sync: Any = getattr(each, "set_requires_gradient_sync", None)
        if set_sync is not None:
            set_sync(wanted, recurse=False)


def is_sharded(tensor: Tensor) -> bool:
    """Whether each rank holds a part of it."""
    return hasattr(
        tensor, "device_mesh"
    )  # of a DTensor: importing its class takes a second, which most trainings need not wait


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, which shares its memory; a whole one is its own."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part


def _gradient(parameter: Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Runs of gradients of one kind, each up to a message's size."""
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
