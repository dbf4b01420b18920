"""Mixed precision, loss scaling, activation checkpointing and compilation."""

import importlib.util
from typing import Any

import torch
from torch import nn

from pipeline.errors import ConfigError
from pipeline.models.trainable.backbones import Backbone
from pipeline.settings.training import TrainSettings

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_INITIAL, _MAXIMUM = 2.0**16, 2.0**24  # the largest float16 is 65,504
_GROWS_AFTER = 2_000  # steps without an overflow, as in Micikevicius et al. 2018


class LossScale:
    """Factor of the loss that keeps small gradients from becoming zero in float16; 1 for other precisions.

    Halved when a gradient overflows, and doubled after many steps without an overflow (Micikevicius et al.
    2018, section 3.2).
    """

    def __init__(self, precision: str) -> None:
        self.adapts = precision == "float16"
        self.value, self._good = _INITIAL if self.adapts else 1.0, 0

    def lower(self) -> bool:
        """Halve the scale after an overflow.

        Return False if it is 1 already, so that the values themselves are invalid.
        """
        if self.value <= 1.0:
            return False
        self.value, self._good = self.value / 2, 0
        return True

    def count_success(self) -> None:
        """Count a step without an overflow."""
        self._good += int(self.adapts)
        if self._good == _GROWS_AFTER:
            self.value, self._good = min(2 * self.value, _MAXIMUM), 0

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        return {"value": self.value, "good": self._good}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        self.value, self._good = state["value"], state["good"]


def prepare(objective: nn.Module, settings: TrainSettings) -> None:
    """Set every encoder of the objective to the precision, checkpointing and compilation of the settings.

    Raises:
        ConfigError: no compiler is available.
    """
    backbones = [module for module in objective.modules() if isinstance(module, Backbone)]
    if settings.compile and backbones:
        _check_compiler(next(objective.parameters()).device)
    for backbone in backbones:
        backbone.precision, backbone.checkpointing = _DTYPES[settings.precision], settings.checkpoint_layers
        if settings.compile:
            backbone.compile_layers()


def _check_compiler(device: torch.device) -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise ConfigError(
            "train.compile", "an installed Triton", "none", "install triton, or leave train.compile out"
        )
    try:
        if device.type == "cpu":
            get_cpp_compiler()
    except InvalidCxxCompiler:
        raise ConfigError(
            "train.compile",
            "a C++ compiler",
            "none",
            "install g++ (or name one in CXX), or leave train.compile out",
        ) from None
