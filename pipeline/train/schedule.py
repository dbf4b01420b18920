"""Learning rate schedules."""

import math
from typing import Any

from pipeline.errors import ConfigError
from pipeline.settings.training import ScheduleSettings


class Schedule:
    """Learning rates of the steps 1, 2, ... `steps`; only plateau has a state, the scores on dev."""

    def __init__(
        self, settings: ScheduleSettings, highest: float, *, steps: int, steps_per_epoch: int
    ) -> None:
        """Create a schedule.

        Args:
            settings: kind and options.
            highest: learning rate of the optimizer.
            steps: number of steps of the training.
            steps_per_epoch: number of steps of one pass over the rows.

        Raises:
            ConfigError: stairs without a step.
        """
        if settings.name == "stairs" and not settings.stairs:
            raise ConfigError(
                "train.schedule.stairs",
                "steps, with the learning rate from each of them on",
                "none",
                "set them, or use train.schedule.name=constant",
            )
        self._settings, self._highest = settings, highest
        self._steps, self._steps_per_epoch = steps, steps_per_epoch
        self._warmup = math.ceil(settings.warmup if settings.warmup >= 1 else settings.warmup * steps)
        self._drops = 0
        self._last_score: float | None = None

    def rate(self, step: int) -> float:
        """Return the learning rate of a step; in the warm-up it rises linearly."""
        return self._without_warmup(step) * (min(1.0, step / self._warmup) if self._warmup else 1.0)

    def observe(self, score: float) -> None:
        """Add the score on dev after the last step, equal on all ranks."""
        if self._settings.name == "plateau" and self._last_score is not None:
            self._drops += int(score < self._last_score)
        self._last_score = score

    def ended(self, step: int) -> bool:
        """Return True if the training ends before this step, because its rate would be too low."""
        return self._settings.name == "plateau" and self._without_warmup(step) < self._settings.least

    def _without_warmup(self, step: int) -> float:
        settings = self._settings
        if settings.name == "linear":
            return self._highest * (1 - self._decayed(step))
        if settings.name == "cosine":
            return self._highest * (1 + math.cos(math.pi * self._decayed(step))) / 2
        if settings.name == "stairs":
            begun = [first for first in settings.stairs if first <= step]
            return settings.stairs[max(begun)] if begun else self._highest
        if settings.name == "plateau":
            epochs = (step - 1) // self._steps_per_epoch
            return self._highest * settings.decay**epochs * settings.drop**self._drops
        return self._highest

    def _decayed(self, step: int) -> float:
        """Return the proportion of the decay that is done at a step.

        The decay starts at the last step of the warm-up, or at the first step, and is complete one step after
        the last.
        """
        first = max(1, self._warmup)
        return min(1.0, max(0.0, (step - first) / (self._steps + 1 - first))) if step > first else 0.0

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        return {"falls": self._drops, "figure": self._last_score}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        self._drops, self._last_score = state["falls"], state["figure"]
