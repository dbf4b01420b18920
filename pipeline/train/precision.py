"""Half precision, and what else changes how an encoder computes but not what it learns."""

import importlib.util
from typing import Any

import torch
from torch import nn

from pipeline.errors import ConfigError
from pipeline.models.trainable.backbones import Backbone
from pipeline.settings.training import TrainSettings

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_FIRST, _MOST = 2.0**16, 2.0**24  # a float16 holds numbers up to 65,504
_GROWS_AFTER = 2_000  # steps without an overflow: as of Micikevicius et al. 2018


class LossScale:
    """What a loss is multiplied by so that small gradients are not zero in float16; 1 for other precisions.

    It is halved when a gradient overflows, and doubled after many steps in which none did (Micikevicius et al. 2018, section 3.2).
    """

    def __init__(self, precision: str) -> None:
        self.adapts = precision == "float16"
        self.value, self._good = _FIRST if self.adapts else 1.0, 0

    def lowered(self) -> bool:
        """Whether it could be halved, after an overflow: at 1 it cannot, and the numbers themselves are at fault."""
        if self.value <= 1.0:
            return False
        self.value, self._good = self.value / 2, 0
        return True

    def passed(self) -> None:
        """A step went without an overflow."""
        self._good += int(self.adapts)
        if self._good == _GROWS_AFTER:
            self.value, self._good = min(2 * self.value, _MOST), 0

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {"value": self.value, "good": self._good}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.value, self._good = state["value"], state["good"]


def prepare(objective: nn.Module, settings: TrainSettings) -> None:
    """Set every encoder of the objective to the settings' precision, checkpointing and compilation. ConfigError where nothing here can compile."""
    backbones = [module for module in objective.modules() if isinstance(module, Backbone)]
    if settings.compile and backbones:
        _check_compiler(next(objective.parameters()).device)
    for backbone in backbones:
        backbone.precision, backbone.checkpointing = _DTYPES[settings.precision], settings.checkpoint_layers
        if settings.compile:
            backbone.compile_layers()


def _check_compiler(device: torch.device) -> None:
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise ConfigError(
                "train.compile", "Triton beside torch", "none", "install triton, or leave train.compile out"
            )
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise ConfigError(
            "train.compile",
            "a C++ compiler",
            "none",
            "install g++ (or name one in CXX), or leave train.compile out",
        ) from None
