"""Momentum contrast (MoCo): keys from a slowly moving encoder, with earlier keys in a queue as negatives."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import ConfigError, Defect
from pipeline.losses.checks import (
    check_representations,
    require_positive,
    require_proportion,
    require_rows,
    require_shape,
    shape_error,
)
from pipeline.losses.contrastive import inner_products


def moco(queries: Tensor, keys: Tensor, queue: Tensor, *, temperature: float) -> Tensor:
    """Mean cross-entropy of picking the key of each query among that key and the queue.

    Source: MoCo, He et al. 2020, eq. 1 and algorithm 1; for sentences CERT, Fang et al. 2020.

    Call `enqueue` with the keys after the loss: in the queue, a key would be a negative of its own query. For
    negatives from the same batch use `info_nce`.

    Args:
        queries: (N, D), need not be normalized.
        keys: (N, D), without gradient.
        queue: (K, D) earlier keys, without gradient.
        temperature: divides the cosines; > 0.

    Returns:
        Scalar: log(1 + K) if all candidates are alike.

    Raises:
        ConfigError: a temperature that is not above 0.
        ModelError: values that are not finite.
        Defect: wrong shapes.

    >>> same = torch.ones(2, 3)
    >>> round(moco(same, same, torch.ones(7, 3), temperature=0.07).item(), 4)  # log 8
    2.0794
    """
    require_positive("temperature", temperature)
    queries, keys, queue = (
        F.normalize(vectors, dim=-1)
        for vectors in check_representations(
            "MoCo", queries=queries, keys=keys.detach(), queue=queue.detach()
        )
    )
    require_rows("MoCo", len(queries), keys=keys)
    positives = (queries * keys).sum(dim=1, keepdim=True)
    logits = torch.cat([positives, inner_products(queries, queue)], dim=1) / temperature  # (N, 1 + K)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))


def random_queue(size: int, dim: int, generator: torch.Generator) -> Tensor:
    """Return the initial queue: (size, dim) random unit vectors, float32, on the generator's device."""
    return F.normalize(torch.randn(size, dim, generator=generator, device=generator.device), dim=-1)


def enqueue(queue: Tensor, keys: Tensor, pointer: int) -> tuple[Tensor, int]:
    """Write keys to the queue from `pointer` on, wrapping around at its end.

    Args:
        queue: (K, D); K need not be a multiple of N.
        keys: (N, D) with N <= K.
        pointer: row of the first write.

    Returns:
        The new queue and the row of the next write.

    Raises:
        ConfigError: N > K, so that keys of one batch would overwrite each other.
        Defect: other shapes, or a pointer outside the queue.

    >>> queue, pointer = enqueue(torch.zeros(3, 1), torch.tensor([[1.0], [2.0]]), 2)
    >>> queue.flatten().tolist(), pointer
    ([2.0, 0.0, 1.0], 1)
    """
    if keys.dim() != 2 or queue.dim() != 2 or keys.shape[1] != queue.shape[1]:
        raise shape_error("queue", f"keys of shape (N, {queue.shape[-1]})", keys)
    if len(keys) > len(queue):
        raise ConfigError(
            "queue",
            f"at least {len(keys)} rows, one per key of a batch",
            f"{len(queue)} rows",
            "lengthen the queue, or lower the batch size",
        )
    if not 0 <= pointer < len(queue):
        raise Defect(
            "queue",
            f"a pointer from 0 to {len(queue) - 1}",
            str(pointer),
            "restore the queue and its pointer from the same checkpoint",
        )
    rows = (pointer + torch.arange(len(keys), device=queue.device)) % len(queue)
    return queue.index_copy(0, rows, keys.detach().to(queue.dtype)), (pointer + len(keys)) % len(queue)


def moving_average(slow: Tensor, fast: Tensor, *, momentum: float) -> Tensor:
    """Update a momentum encoder's parameter: momentum * slow + (1 - momentum) * fast.

    Source: MoCo, He et al. 2020, eq. 2.

    Args:
        slow: parameter of the momentum encoder, in float32 or float64: in half precision, with its relative
            steps of 2^-8 or 2^-11, an update by 1 - momentum = 0.001 would often be rounded away.
        fast: parameter of the trained encoder, of the same shape.
        momentum: in [0, 1].

    Returns:
        The new parameter, without gradient.

    Raises:
        ConfigError: momentum outside [0, 1].
        Defect: half precision, or shapes that differ.

    >>> moving_average(torch.tensor([1.0]), torch.tensor([3.0]), momentum=0.75).tolist()
    [1.5]
    """
    require_proportion("momentum", momentum)
    require_shape("momentum encoder", "the trained parameter", fast, *slow.shape)
    if slow.dtype not in (torch.float32, torch.float64):
        raise Defect(
            "momentum encoder",
            "parameters in float32",
            str(slow.dtype),
            "keep the parameters in float32 and use autocast",
        )
    return torch.lerp(slow.detach(), fast.detach().to(slow.dtype), 1 - momentum)
