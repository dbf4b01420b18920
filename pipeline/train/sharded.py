"""Weights, gradients and the optimizer's state in shards over the ranks (FSDP2: Zhao et al. 2023, per parameter), beside what is small and whole on every rank.

Backbones are sharded: a layer's weights are gathered for its pass and let go after it, and their gradients are averaged over the ranks by torch on the way back into
shards. Heads, and what else an objective owns, stay whole; `average_gradients` sees to them, and passes shards over.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from pipeline.models.trainable.backbones import Backbone, Layer, PackedBackbone, PaddedBackbone
from pipeline.train.gather import world_size


def shard(objective: nn.Module) -> None:
    """Shard every Transformer of the objective over all ranks, in place, on the device where it stands; equal on all ranks before, and nothing for one rank alone.

    Copies that follow a trained encoder are sharded as it is, so they can be averaged in place. A recurrent encoder is small and stays whole.
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
        fully_shard(
            backbone, mesh=mesh, reshard_after_forward=not trained
        )  # the word table of a trained one may be asked for before its backward pass


def whole(value: Any) -> Any:
    """The same nest of dicts with whole tensors in place of shards. Every rank has to call it with a nest of the same shape."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, Mapping):
        return {key: whole(each) for key, each in value.items()}
    return value


def placed_as(value: Any, like: Any) -> Any:
    """A whole tensor, equal on all ranks, as `like` is kept: sharded, or whole. Sends nothing. What has another shape, as a counter, stays as it is."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def settle(objective: nn.Module) -> None:
    """Let go of weights that are gathered at the moment: parameters are shards afterwards."""
    for module in objective.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _layers(backbone: Backbone) -> Iterator[nn.Module]:
    """What is gathered at once: one layer each."""
    if isinstance(backbone, PackedBackbone):
        yield from (module for module in backbone.modules() if isinstance(module, Layer))
        return
    for module in backbone.modules():
        if isinstance(module, nn.ModuleList) and len(module) == backbone.layers:
            yield from module
