"""The course of a training on every rank: its steps, the scores on dev between them, its checkpoints."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from pipeline.objectives import Batch
from pipeline.train.checkpoint import Checkpoints, load_state
from pipeline.train.dev import Best, DevSet
from pipeline.train.loop import Step, Training, fit

_BEST = "best"  # key in a checkpoint, beside the state of the training


class TrainCourse:
    """A training that continues from the last checkpoint, if any.

    Every rank must call the same methods at the same step.
    """

    def __init__(
        self, training: Training, checkpoints: Checkpoints, dev: DevSet | None, *, steps: int
    ) -> None:
        self.training, self._checkpoints, self._dev, self._steps = training, checkpoints, dev, steps
        self.best, self._saved = Best(training.settings.dev.patience), -1
        if (last := checkpoints.last()) is not None:
            state = load_state(last)
            training.restore(state)
            self.best, self._saved = Best(**state[_BEST]), self.number

    @property
    def number(self) -> int:
        """Return the number of the last step."""
        return self.training.number

    @property
    def ended(self) -> bool:
        """Return whether all steps are done, or dev or the learning rate ended the training before."""
        return self.number >= self._steps or self.training.ended or self.best.ended

    def begin(self) -> float | None:
        """Return the score on dev before the first step.

        Call it before `steps`. Returns None if the training has begun already, or if nothing is measured.
        """
        if self.number or self._dev is None:
            return None
        return self._measure(self._dev) if self.best.step is None else self.best.figure

    def steps(self, batches: Iterator[Batch]) -> Iterator[tuple[Step, float | None]]:
        """Yield each remaining step, with the score on dev after it if it was measured."""
        while not self.ended:
            for step in fit(self.training, batches, until=self.number + 1):
                measured = (
                    self.number % self.training.settings.dev.steps == 0
                    or self.number == self._steps
                    or self.training.ended
                )
                yield step, self._measure(self._dev) if self._dev is not None and measured else None

    def wants_checkpoint(self) -> bool:
        """Return whether to keep the current weights: they are due, the best on dev, or the last ones."""
        better = self._chooses and self._best_here() is not None
        due = self._checkpoints.due(self.number) if self.number else False  # every rank must ask
        return self._saved != self.number and (better or due or self.ended)

    def save(self) -> None:
        """Save a checkpoint. Every rank must call it."""
        self._checkpoints.save(
            self.number, {**self.training.state(), _BEST: asdict(self.best)}, self._best_here()
        )
        self._saved = self.number

    def product(self) -> Path:
        """Return the file of the checkpoint whose weights become the product: the best on dev, or the last.

        Every rank must call it, after the last `save`.
        """
        found = (self._checkpoints.best() if self._chooses else None) or self._checkpoints.last()
        assert found is not None, "the last step is saved"
        return found

    @property
    def _chooses(self) -> bool:
        return self._dev is not None and self.training.settings.dev.keep == "best"

    def _measure(self, dev: DevSet) -> float:
        """Return the best score of the objective's candidates, and select that candidate."""
        objective = self.training.objective
        scores = [dev.score(candidate, objective) for candidate in objective.candidates()]
        score = max(scores)
        objective.select(scores.index(score))
        self.training.schedule.observe(score)
        self.best = self.best.observe(self.number, score)
        return score

    def _best_here(self) -> float | None:
        """Return the score on dev if the current weights have the best one so far."""
        return self.best.figure if self.best.step == self.number else None
