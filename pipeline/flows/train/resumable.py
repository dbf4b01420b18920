"""A training on one rank that resumes from checkpoints and is evaluated on dev between its steps."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import DataError
from pipeline.objectives import Batch
from pipeline.train.checkpoint import Checkpoints, load_state
from pipeline.train.dev import BestScore, DevFile, DevMetrics
from pipeline.train.loop import Step, Training, fit

_BEST = "best"  # key of `BestScore` in a checkpoint, beside the state of the training


class ResumableTraining:
    """Training of one rank that continues from the last checkpoint, if there is one.

    Every rank must call the same methods at the same step.
    """

    def __init__(
        self, training: Training, checkpoints: Checkpoints, dev: DevFile | None, *, steps: int
    ) -> None:
        self.training, self._checkpoints, self._dev, self._steps = training, checkpoints, dev, steps
        self.best = BestScore(training.settings.dev.patience)
        self._saved_step = -1  # before the first checkpoint
        if (last := checkpoints.last()) is not None:
            state = load_state(last)
            training.restore(state)
            self.best, self._saved_step = BestScore.from_state(state[_BEST]), self.number

    @property
    def number(self) -> int:
        """Number of the last step."""
        return self.training.number

    @property
    def ended(self) -> bool:
        """True if all steps are done, or if dev or the learning rate ended the training early."""
        return self.number >= self._steps or self.training.ended or self.best.ended

    def begin(self) -> DevMetrics | None:
        """Return the metrics on dev before the first step. Call it before `steps`.

        Returns None if the training has taken steps already, or if there is no dev set.
        """
        if self.number or self._dev is None:
            return None
        if self.best.step is not None:  # measured by the run that saved the checkpoint of step 0
            return self._dev.metrics(self.training.objective.trained_model(), self.training.objective)
        return self._measure(self._dev)

    def steps(self, batches: Iterator[Batch]) -> Iterator[tuple[Step, DevMetrics | None]]:
        """Yield each remaining step, with the metrics on dev after it if they were measured."""
        while not self.ended:
            for step in fit(self.training, batches, until=self.number + 1):
                is_measured = (
                    self.number % self.training.settings.dev.steps == 0
                    or self.number == self._steps
                    or self.training.ended
                )
                yield step, self._measure(self._dev) if self._dev is not None and is_measured else None

    def wants_checkpoint(self) -> bool:
        """Return whether to save the current weights: if it is time, if they are the best, or the last."""
        is_best = self._keeps_best and self._score_if_best() is not None
        is_due = self._checkpoints.due(self.number) if self.number else False  # every rank must call `due`
        return self._saved_step != self.number and (is_best or is_due or self.ended)

    def save(self) -> None:
        """Save a checkpoint. Every rank must call it."""
        self._checkpoints.save(
            self.number, {**self.training.state(), _BEST: self.best.state()}, self._score_if_best()
        )
        self._saved_step = self.number

    def final_checkpoint(self) -> Path:
        """Return the checkpoint file with the weights of the trained model: the best on dev, or the last.

        Every rank must call it, after the last `save`.

        Raises:
            DataError: the checkpoint of the best step is missing or damaged.
        """
        if self._keeps_best:
            file = self._checkpoints.best(self.best.step)
            if file is None:
                raise DataError(
                    f"checkpoint of step {self.best.step:,}",
                    "the weights with the best score on dev",
                    "no such file, or a damaged one",
                    "delete the folder checkpoints of the training, and run the command again",
                )
            return file
        file = self._checkpoints.last()
        assert file is not None, "the last step is saved"
        return file

    @property
    def _keeps_best(self) -> bool:
        """True if dev chooses the weights of the trained model."""
        return self._dev is not None and self.training.settings.dev.keep == "best"

    def _measure(self, dev: DevFile) -> DevMetrics:
        """Score the candidates for the trained model, select the best one, and return its metrics."""
        objective = self.training.objective
        measured = [dev.metrics(candidate, objective) for candidate in objective.candidates()]
        scores = [metrics.score for metrics in measured]
        best = scores.index(max(scores))
        objective.select(best)
        self.training.schedule.observe(scores[best])
        self.best = self.best.observe(self.number, scores[best])
        return measured[best]

    def _score_if_best(self) -> float | None:
        """Return the score on dev of the current weights if it is the best so far, else None."""
        return self.best.score if self.best.step == self.number else None
