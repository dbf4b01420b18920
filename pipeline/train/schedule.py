"""Learning rate schedules: constant, linear, cosine, stairs and plateau, with a linear warm-up."""

import math
from typing import Any

from pipeline.errors import ConfigError
from pipeline.settings.training import ScheduleSettings


class Schedule:
    """Learning rates of the steps, numbered from 1. Only plateau depends on the scores on dev."""

    def __init__(
        self, settings: ScheduleSettings, base_rate: float, *, steps: int, steps_per_epoch: int
    ) -> None:
        """Create a schedule.

        Args:
            settings: kind and options.
            base_rate: learning rate of the optimizer, which the schedule scales.
            steps: number of steps of the training.
            steps_per_epoch: number of steps of one pass over the rows.

        Raises:
            ConfigError: the schedule stairs without a stair, or `final` above the base rate.
        """
        if settings.name == "stairs" and not settings.stairs:
            raise ConfigError(
                "train.schedule.stairs",
                "steps, with the learning rate from each of them on",
                "none",
                "set them, or use train.schedule.name=constant",
            )
        if settings.final > base_rate:
            raise ConfigError(
                "train.schedule.final",
                f"at most the {base_rate:g} of train.optimizer.learning_rate",
                f"{settings.final:g}",
                "lower train.schedule.final",
            )
        self._settings, self._base_rate = settings, base_rate
        self._steps, self._steps_per_epoch = steps, steps_per_epoch
        self._warmup_steps = math.ceil(settings.warmup if settings.warmup >= 1 else settings.warmup * steps)
        self._drops = 0  # number of scores on dev that were worse than the previous score
        self._last_score: float | None = None

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        warmup_factor = min(1.0, step / self._warmup_steps) if self._warmup_steps else 1.0
        return self._rate_without_warmup(step) * warmup_factor

    def observe(self, score: float) -> None:
        """Note the score on dev after the last step; it must be the same on all ranks."""
        if self._settings.name == "plateau" and self._last_score is not None:
            self._drops += int(score < self._last_score)
        self._last_score = score

    def ends_before(self, step: int) -> bool:
        """Return True if the training ends before this step, because its rate would be too low."""
        return self._settings.name == "plateau" and self._rate_without_warmup(step) < self._settings.least

    def _rate_without_warmup(self, step: int) -> float:
        settings = self._settings
        range_ = self._base_rate - settings.final  # range of the rates of linear and cosine
        if settings.name == "linear":
            return settings.final + range_ * (1 - self._decay_progress(step))
        if settings.name == "cosine":
            return settings.final + range_ * (1 + math.cos(math.pi * self._decay_progress(step))) / 2
        if settings.name == "stairs":
            reached = [first_step for first_step in settings.stairs if first_step <= step]
            return settings.stairs[max(reached)] if reached else self._base_rate
        if settings.name == "plateau":
            epochs = (step - 1) // self._steps_per_epoch
            return self._base_rate * settings.decay**epochs * settings.drop**self._drops
        return self._base_rate

    def _decay_progress(self, step: int) -> float:
        """Return the proportion of the decay that is done at a step.

        The decay starts at the last step of the warm-up, or at the first step if there is no warm-up. It is
        complete one step after the last step of the training.
        """
        first = max(1, self._warmup_steps)
        return min(1.0, max(0.0, (step - first) / (self._steps + 1 - first))) if step > first else 0.0

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        return {"falls": self._drops, "figure": self._last_score}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state`."""
        self._drops, self._last_score = state["falls"], state["figure"]
