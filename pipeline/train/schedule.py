"""The learning rate of every step."""

import math
from typing import Any

from pipeline.errors import ConfigError
from pipeline.settings.training import ScheduleSettings


class Schedule:
    """Rates of steps 1, 2, ... `steps`. Only plateau has a state: what it was told of dev."""

    def __init__(
        self, settings: ScheduleSettings, highest: float, *, steps: int, steps_per_epoch: int
    ) -> None:
        """highest: the optimizer's learning rate. ConfigError for stairs without a step."""
        if settings.name == "stairs" and not settings.stairs:
            raise ConfigError(
                "train.schedule.stairs",
                "steps and the rates from there on",
                "none",
                "give them, or use schedule.name=constant",
            )
        self._settings, self._highest, self._steps, self._steps_per_epoch = (
            settings,
            highest,
            steps,
            steps_per_epoch,
        )
        self._rise = math.ceil(settings.warmup if settings.warmup >= 1 else settings.warmup * steps)
        self._falls = 0
        self._figure: float | None = None

    def rate(self, step: int) -> float:
        """It rises by equal parts and reaches its height at the last step of the warm-up."""
        return self._unrisen(step) * (min(1.0, step / self._rise) if self._rise else 1.0)

    def told(self, figure: float) -> None:
        """The figure on dev after the last step. All ranks have to be told the same."""
        self._falls += int(
            self._settings.name == "plateau" and self._figure is not None and figure < self._figure
        )
        self._figure = figure

    def ended(self, step: int) -> bool:
        """Whether the training ends before that step, since its rate would be too low."""
        return self._settings.name == "plateau" and self._unrisen(step) < self._settings.least

    def _unrisen(self, step: int) -> float:
        settings = self._settings
        if settings.name == "linear":
            return self._highest * (1 - self._fallen(step))
        if settings.name == "cosine":
            return self._highest * (1 + math.cos(math.pi * self._fallen(step))) / 2
        if settings.name == "stairs":
            return next(
                (settings.stairs[first] for first in sorted(settings.stairs, reverse=True) if first <= step),
                self._highest,
            )
        if settings.name == "plateau":
            return (
                self._highest
                * settings.decay ** ((step - 1) // self._steps_per_epoch)
                * settings.drop**self._falls
            )
        return self._highest

    def _fallen(self, step: int) -> float:
        """Share of the way from the last step of the warm-up, or the first step, to the one behind the last, where nothing is left."""
        first = max(1, self._rise)
        return min(1.0, max(0.0, (step - first) / (self._steps + 1 - first))) if step > first else 0.0

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {"falls": self._falls, "figure": self._figure}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._falls, self._figure = state["falls"], state["figure"]
