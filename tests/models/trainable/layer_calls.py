"""Counting of the passes through each layer."""

import re
from collections import Counter
from collections.abc import Callable

from torch import nn


def layer_calls(backbone: nn.Module, compute: Callable[[], object]) -> dict[str, int]:
    """Count the passes of `compute` through each numbered layer: the most calls of one of its modules.

    Layers of transformers are called without their hooks when they are computed again, their parts are not.
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
