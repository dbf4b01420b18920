"""Options of the loop for encoders: mixed precision, loss scaling, activation checkpointing, compilation."""

from typing import Any

import torch
from torch import nn

from pipeline.device import Device
from pipeline.errors import ConfigError
from pipeline.models.layers.backbones import Backbone
from pipeline.settings.training import TrainSettings

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_INITIAL_SCALE = 2.0**16  # about the largest float16, 65,504
_MAX_SCALE = 2.0**24
_GROWTH_INTERVAL = 2_000  # steps without an overflow, as in Micikevicius et al. 2018


class LossScale:
    """Factor of the loss that keeps small gradients from becoming zero in float16 (Micikevicius et al. 2018).

    The factor is halved when a gradient overflows, and doubled after 2,000 steps without an overflow (section
    3.2 of the paper). It is 1 for other precisions.
    """

    def __init__(self, precision: str) -> None:
        self.adapts = precision == "float16"
        self.value = _INITIAL_SCALE if self.adapts else 1.0
        self._good_steps = 0

    def lower(self) -> bool:
        """Halve the scale after an overflow, and return True.

        Returns False if the scale is 1 already, so that it did not cause the overflow.
        """
        if self.value <= 1.0:
            return False
        self.value, self._good_steps = self.value / 2, 0
        return True

    def count_success(self) -> None:
        """Count a step without an overflow."""
        self._good_steps += int(self.adapts)
        if self._good_steps == _GROWTH_INTERVAL:
            self.value, self._good_steps = min(2 * self.value, _MAX_SCALE), 0

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        return {"value": self.value, "good": self._good_steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state`."""
        self.value, self._good_steps = state["value"], state["good"]


def prepare_encoders(objective: nn.Module, settings: TrainSettings) -> None:
    """Apply the precision, activation checkpointing and compilation of the settings to every encoder.

    Raises:
        ConfigError: the settings ask for compilation, and no compiler is available.
    """
    backbones = [module for module in objective.modules() if isinstance(module, Backbone)]
    if settings.compile and backbones:
        _check_compiler(next(objective.parameters()).device)
    for backbone in backbones:
        backbone.precision, backbone.checkpointing = _DTYPES[settings.precision], settings.checkpoint_layers
        if settings.compile:
            backbone.compile_layers()


def _check_compiler(device: torch.device) -> None:
    """Raise ConfigError if torch.compile lacks a compiler: Triton on a GPU, a C++ compiler on a CPU."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    if device.type == "cuda" and not Device("cuda", device.index or 0).can_compile():
        raise ConfigError(
            "train.compile",
            "Triton, a C compiler (gcc, or named in CC) and a GPU of compute capability 7.0",
            "not all of them",
            "install what is missing, or leave train.compile out",
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
