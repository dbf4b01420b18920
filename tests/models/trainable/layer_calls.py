"""How often layers are computed, and that layers computed again give the same gradients."""

import re
from collections import Counter
from collections.abc import Callable

import torch
from torch import nn

from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.text.tokens.tokens import Tokens


def layer_calls(backbone: nn.Module, compute: Callable[[], object]) -> dict[str, int]:
    """Count how often `compute` passes through each numbered layer.

    The count of a layer is the largest among its modules: transformers computes a layer again without calling
    the hooks of the layer itself, but it calls those of its parts.
    """
    calls = Counter[str]()
    hooks = [
        module.register_forward_pre_hook(lambda module, inputs, name=name: calls.update([name]))
        for name, module in backbone.named_modules()
    ]
    compute()
    for hook in hooks:
        hook.remove()
    passes: dict[str, int] = {}
    for name, count in calls.items():
        if layer := re.match(r".*?\.\d+(?=\.|$)", name):
            passes[layer[0]] = max(count, passes.get(layer[0], 0))
    return passes


def assert_checkpointing_is_exact(encoder: TrainableEncoder, tokens: Tokens) -> None:
    """Check that checkpointing computes every layer twice, with the same dropout and the same gradients."""

    def step(checkpointing: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        encoder.backbone.checkpointing = checkpointing
        encoder.zero_grad()
        torch.manual_seed(5)
        calls = layer_calls(encoder.backbone, lambda: encoder(tokens).square().sum().backward())
        assert set(calls.values()) == {2 if checkpointing else 1}
        named = encoder.named_parameters()
        gradients = {name: each.grad.clone() for name, each in named if each.grad is not None}
        return torch.rand(1), gradients

    assert encoder.backbone.has_dropout
    (draw, stored), (draw_with_checkpoints, recomputed) = step(False), step(True)
    assert draw == draw_with_checkpoints, "both steps take as many random numbers"
    assert stored.keys() == recomputed.keys()
    for name, gradient in stored.items():
        torch.testing.assert_close(recomputed[name], gradient, atol=0, rtol=0, msg=name)
