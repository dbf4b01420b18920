"""Sharding of weights, gradients and optimizer state over the ranks (FSDP2: Zhao et al. 2023).

With train.strategy=fsdp, each parameter of a backbone is sharded: the weights of a layer are gathered for its
forward or backward pass and released afterwards, and torch averages their gradients over the ranks. Heads and
other small modules stay complete on every rank; `average_gradients` averages their gradients, and skips
shards.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from pipeline.models.layers.backbones import Backbone
from pipeline.models.trainable.packed_backbone import PackedBackbone
from pipeline.models.trainable.packed_layer import Layer
from pipeline.models.trainable.padded_backbone import PaddedBackbone
from pipeline.train.gather import world_size


def shard(objective: nn.Module) -> None:
    """Shard every Transformer of the objective over all ranks, in place, on its device.

    The objective must be equal on all ranks. Momentum encoders are sharded like the trained encoder, so that
    each rank can update its shards in place. Recurrent and convolutional encoders and word vectors are not
    sharded. With a single rank, nothing is sharded.
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
        is_trained = any(parameter.requires_grad for parameter in backbone.parameters())
        # The loss may read the word embeddings of a trained backbone between forward and backward pass.
        fully_shard(backbone, mesh=mesh, reshard_after_forward=not is_trained)


def gather_full(value: Any) -> Any:
    """Replace sharded tensors in nested dicts by full tensors; all ranks have to call it with equal dicts."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, Mapping):
        return {key: gather_full(item) for key, item in value.items()}
    return value


def shard_like(value: Any, like: Any) -> Any:
    """Shard full tensors as `like` is sharded, without communication. They must be equal on all ranks.

    Args:
        value: a tensor, or a nested dict of tensors.
        like: a dict of the same structure, or one tensor for all tensors in `value`. A tensor without a
            counterpart, or of another shape than its counterpart, is returned unchanged; for example a step
            counter of the optimizer.
    """
    if isinstance(value, Mapping):
        return {
            name: shard_like(item, like.get(name) if isinstance(like, Mapping) else like)
            for name, item in value.items()
        }
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def reshard(objective: nn.Module) -> None:
    """Release the weights that are currently gathered, so that each rank holds only its shards."""
    for module in objective.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _layers(backbone: Backbone) -> Iterator[nn.Module]:
    """Yield the Transformer layers of a backbone; the weights of a layer are gathered together."""
    for module in backbone.modules():
        if isinstance(backbone, PackedBackbone) and isinstance(module, Layer):
            yield module
        elif isinstance(backbone, PaddedBackbone) and isinstance(module, nn.ModuleList):
            yield from module if len(module) == backbone.depth else ()
