"""Momentum contrast: keys of a slowly moving encoder, picked against a queue of earlier ones."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import ConfigError, Defect
from pipeline.losses.checks import as_many, misfit, positive, representations, shaped, share
from pipeline.losses.contrastive import MASKED, products


def moco_logits(queries: Tensor, keys: Tensor, queue: Tensor, *, temperature: float) -> Tensor:
    """(N, 1 + K) cosines over the temperature: of each query with its own key, then with each of the queue.

    queries, keys (N, D), queue (K, D): none need be normalized; a gradient reaches the queries alone. ConfigError on a temperature that is not above 0,
    ModelError on values that are not finite, Defect on shapes. MoCo (He et al. 2020), algorithm 1.
    """
    positive("temperature", temperature)
    queries, keys, queue = (
        F.normalize(each, dim=-1)
        for each in representations("MoCo", queries=queries, keys=keys.detach(), queue=queue.detach())
    )
    as_many("MoCo", len(queries), keys=keys)
    return (
        torch.cat([(queries * keys).sum(dim=1, keepdim=True), products(queries, queue)], dim=1) / temperature
    )


def moco(
    queries: Tensor, keys: Tensor, queue: Tensor, *, temperature: float, excluded: Tensor | None = None
) -> Tensor:
    """Mean cross-entropy of picking its own key for each query among that and the queue: log(1 + K) when all are alike.

    queries, keys (N, D), queue (K, D) of earlier keys: these keys are written to it after the loss, else each would be its own negative.
    excluded (N, K) bool: true where the queue holds a key of the same text. Errors as in moco_logits. MoCo (He et al. 2020), eq. 1; CERT (Fang et al. 2020).
    """
    logits = moco_logits(queries, keys, queue, temperature=temperature)
    if excluded is not None:
        shaped("MoCo", "excluded", excluded, len(logits), len(queue))
        logits = logits.masked_fill(F.pad(excluded, (1, 0)), MASKED)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))


def random_queue(size: int, dim: int, generator: torch.Generator) -> Tensor:
    """(size, dim) random directions of length 1, float32, on the generator's device: what a queue holds before the first keys."""
    return F.normalize(torch.randn(size, dim, generator=generator, device=generator.device), dim=-1)


def enqueue(queue: Tensor, keys: Tensor, pointer: int) -> tuple[Tensor, int]:
    """The queue (K, D) with keys (N, D) written at `pointer`, going on at its beginning behind its end, and where the next are written.

    K need not be a multiple of N. ConfigError where N > K (keys of one batch would overwrite each other), Defect on other shapes or a pointer outside.
    """
    if keys.dim() != 2 or queue.dim() != 2 or keys.shape[1] != queue.shape[1]:
        raise misfit("queue", f"keys of shape (N, {queue.shape[-1]})", keys)
    if len(keys) > len(queue):
        raise ConfigError(
            "queue",
            f"room for the {len(keys)} keys of a batch",
            f"{len(queue)} places",
            "lengthen the queue, or lower the batch size",
        )
    if not 0 <= pointer < len(queue):
        raise Defect(
            "queue",
            f"a pointer from 0 to {len(queue) - 1}",
            str(pointer),
            "restore queue and pointer from one checkpoint",
        )
    places = (pointer + torch.arange(len(keys), device=queue.device)) % len(queue)
    return queue.index_copy(0, places, keys.detach().to(queue.dtype)), (pointer + len(keys)) % len(queue)


def moved_average(slow: Tensor, fast: Tensor, *, momentum: float) -> Tensor:
    """momentum * slow + (1 - momentum) * fast, without gradient: a step of the momentum encoder's parameter towards the trained one.

    Defect on half precision, whose steps of 2^-8 or 2^-11 swallow 1 - momentum = 0.001, and on shapes; ConfigError on a momentum outside [0, 1].
    MoCo (He et al. 2020), eq. 2.
    """
    share("momentum", momentum)
    shaped("momentum encoder", "the trained parameter", fast, *slow.shape)
    if slow.dtype not in (torch.float32, torch.float64):
        raise Defect(
            "momentum encoder",
            "parameters in float32",
            str(slow.dtype),
            "keep a copy in float32 and let autocast lower it",
        )
    return torch.lerp(slow.detach(), fast.detach().to(slow.dtype), 1 - momentum)
