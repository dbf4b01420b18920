"""A training on its way, as every rank has it: its steps, the figures on dev between them, the checkpoints that it goes on from."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.objectives import Batch
from pipeline.settings.training import TrainSettings
from pipeline.train.checkpoint import Checkpoints, TrainingCheckpoint
from pipeline.train.dev import Best, Dev
from pipeline.train.loop import Step, Training, fit

_BEST = "best"  # in a checkpoint, beside the state of the training


class Course:
    """Goes on from the last checkpoint there is. Every rank has to do the same with it, at the same step."""

    def __init__(self, training: Training, checkpoints: Checkpoints, dev: Dev | None, *, steps: int) -> None:
        self.training, self._checkpoints, self._dev, self._steps = training, checkpoints, dev, steps
        self.best = Best(self._settings.dev.patience)
        self._saved = -1
        if (last := checkpoints.last()) is not None:
            self._go_on_from(last.load())

    @property
    def _settings(self) -> TrainSettings:
        return self.training.settings

    @property
    def number(self) -> int:
        """Of the last step."""
        return self.training.number

    @property
    def ended(self) -> bool:
        """Whether no step is left: all are made, or dev or the learning rate ended the training."""
        return self.number >= self._steps or self.training.ended or self.best.ended

    def begin(self) -> float | None:
        """The figure before the first step; None behind it, or where nothing is measured. Comes before `steps`."""
        if self.number or self._dev is None:
            return None
        return self._told() if self.best.step is None else self.best.figure

    def steps(self, batches: Iterator[Batch]) -> Iterator[tuple[Step, float | None]]:
        """Each step that is left, with the figure on dev after it where it was measured."""
        while not self.ended:
            for step in fit(self.training, batches, until=self.number + 1):
                yield step, self._told() if self._measures() else None

    def wants_checkpoint(self) -> bool:
        """Whether the weights of now are to be kept: the settings say so, dev finds them best, or they are the last."""
        better = self._chooses and self._best_here() is not None
        due = self._checkpoints.due(self.number) if self.number else False  # every rank has to ask
        return self._saved != self.number and (better or due or self.ended)

    def save(self) -> None:
        """A checkpoint of now. Every rank has to call it."""
        self._checkpoints.save(
            self.number, {**self.training.state(), _BEST: self.best.state()}, self._best_here()
        )
        self._saved = self.number

    def product(self) -> TrainingCheckpoint:
        """The checkpoint whose weights are to be the product: the best ones on dev, or the last ones. Every rank has to call it, when all is saved."""
        chosen = self._checkpoints.best() if self._chooses else None
        found = chosen or self._checkpoints.last()
        assert found is not None, "the last step is saved"
        return found

    @property
    def _chooses(self) -> bool:
        return self._dev is not None and self._settings.dev.keep == "best"

    def _measures(self) -> bool:
        return self._dev is not None and (
            self.number % self._settings.dev.steps == 0 or self.number == self._steps or self.training.ended
        )

    def _told(self) -> float:
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
        """The figure on dev, where these weights have the best one so far."""
        return self.best.figure if self.best.step == self.number else None

    def _go_on_from(self, state: Mapping[str, Any]) -> None:
        self.training.restore(state)
        self.best, self._saved = Best(**state[_BEST]), self.number
