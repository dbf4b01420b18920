"""The course of a training on every rank: its steps, the scores on dev between them, its checkpoints."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.objectives import Batch
from pipeline.settings.training import TrainSettings
from pipeline.train.checkpoint import Checkpoints, TrainingCheckpoint
from pipeline.train.dev import Best, Dev
from pipeline.train.loop import Step, Training, fit

_BEST = "best"  # key in a checkpoint, beside the state of the training


class TrainCourse:
    """A training that continues from the last checkpoint, if any.

    Every rank must call the same methods at the same step.
    """

    def __init__(self, training: Training, checkpoints: Checkpoints, dev: Dev | None, *, steps: int) -> None:
        self.training, self._checkpoints, self._dev, self._steps = training, checkpoints, dev, steps
        self.best = Best(self._settings.dev.patience)
        self._saved = -1
        if (last := checkpoints.last()) is not None:
            self._restore(last.load())

    @property
    def _settings(self) -> TrainSettings:
        return self.training.settings

    @property
    def number(self) -> int:
        """Return the number of the last step."""
        return self.training.number

    @property
    def ended(self) -> bool:
        """Return whether no step is left: all are done, or dev or the learning rate ended the training."""
        return self.number >= self._steps or self.training.ended or self.best.ended

    def begin(self) -> float | None:
        """Return the score on dev before the first step.

        Call it before `steps`. Returns None if the training has begun already, or if nothing is measured.
        """
        if self.number or self._dev is None:
            return None
        return self._measure() if self.best.step is None else self.best.figure

    def steps(self, batches: Iterator[Batch]) -> Iterator[tuple[Step, float | None]]:
        """Yield each remaining step, with the score on dev after it if it was measured."""
        while not self.ended:
            for step in fit(self.training, batches, until=self.number + 1):
                yield step, self._measure() if self._is_measured() else None

    def wants_checkpoint(self) -> bool:
        """Return whether to keep the current weights: they are due, the best on dev, or the last ones."""
        better = self._chooses and self._best_here() is not None
        due = self._checkpoints.due(self.number) if self.number else False  # every rank must ask
        return self._saved != self.number and (better or due or self.ended)

    def save(self) -> None:
        """Save a checkpoint. Every rank must call it."""
        self._checkpoints.save(
            self.number, {**self.training.state(), _BEST: self.best.state()}, self._best_here()
        )
        self._saved = self.number

    def product(self) -> TrainingCheckpoint:
        """Return the checkpoint whose weights become the product: the best on dev, or the last.

        Every rank must call it, after the last `save`.
        """
        chosen = self._checkpoints.best() if self._chooses else None
        found = chosen or self._checkpoints.last()
        assert found is not None, "the last step is saved"
        return found

    @property
    def _chooses(self) -> bool:
        return self._dev is not None and self._settings.dev.keep == "best"

    def _is_measured(self) -> bool:
        return self._dev is not None and (
            self.number % self._settings.dev.steps == 0 or self.number == self._steps or self.training.ended
        )

    def _measure(self) -> float:
        assert self._dev is not None
        figures = [
            self._dev.score(candidate, self.training.objective)
            for candidate in self.training.objective.candidates()
        ]
        figure = max(figures)
        self.training.objective.select(figures.index(figure))
        self.training.observe(figure)
        self.best = self.best.observe(self.number, figure)
        return figure

    def _best_here(self) -> float | None:
        """Return the score on dev if the current weights have the best one so far."""
        return self.best.figure if self.best.step == self.number else None

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.training.restore(state)
        self.best, self._saved = Best(**state[_BEST]), self.number
