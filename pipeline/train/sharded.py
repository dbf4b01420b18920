"""Sharded weights, gradients and optimizer state (FSDP2: Zhao et al. 2023).

Backbones are sharded per parameter: a layer's weights are gathered for its pass and released after it, and
torch averages their gradients over the ranks. Heads and other small modules stay on every rank;
`average_gradients` averages those and skips shards.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from pipeline.models.trainable.backbones import Backbone
from pipeline.models.trainable.packed_backbone import Layer, PackedBackbone
from pipeline.models.trainable.padded_backbone import PaddedBackbone
from pipeline.train.gather import world_size


def shard(objective: nn.Module) -> None:
    """Shard every Transformer of the objective over all ranks, in place, on its device.

    The objective must be equal on all ranks. Momentum copies are sharded like the trained encoder, so that
    they can be averaged in place. A recurrent encoder is small and is not sharded. Has no effect with a
    single rank.
    """
    backbones = [
        module for module in objective.modules() if isinstance(module, PackedBackbone | PaddedBackbone)
    ]
    if world_size() == 1 or not backbones:
        return
    mesh = init_device_mesh(next(objective.parameters()).device.type, (world_size(),))
    for backbone in backbones:
        for layer in list(_layers(backbone)):
            fully_shard(layer, mesh=mesh)
        trained = any(parameter.requires_grad for parameter in backbone.parameters())
        # The word embeddings of a trained backbone may be needed before its backward pass.
        fully_shard(backbone, mesh=mesh, reshard_after_forward=not trained)


def gather_full(value: Any) -> Any:
    """Replace shards in nested dicts by full tensors; all ranks have to call it with equal dicts."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, Mapping):
        return {key: gather_full(each) for key, each in value.items()}
    return value


def shard_like(value: Any, like: Any) -> Any:
    """Shard full tensors, equal on all ranks, as `like` is sharded, without communication.

    Args:
        value: a tensor, or a nested dict of tensors. A tensor of another shape, such as a counter, is
            returned unchanged, and so is one whose name is not in `like`.
        like: a tensor for all of `value`, or a dict with the same names.
    """
    if isinstance(value, Mapping):
        return {
            name: shard_like(each, like.get(name) if isinstance(like, Mapping) else like)
            for name, each in value.items()
        }
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def reshard(objective: nn.Module) -> None:
    """Release weights that are currently gathered."""
    for module in objective.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _layers(backbone: Backbone) -> Iterator[nn.Module]:
    """Yield the modules whose weights are gathered together: each layer."""
    for module in backbone.modules():
        if isinstance(backbone, PackedBackbone) and isinstance(module, Layer):
            yield module
        elif isinstance(backbone, PaddedBackbone) and isinstance(module, nn.ModuleList):
            yield from module if len(module) == backbone.layers else ()
