"""The work of one rank of a training. Ray Train's workers unpickle it; the first rank stores the results."""

import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from pipeline.errors import ConfigError, DataError, ModelError
from pipeline.flows.train.finish import Outcome, publish
from pipeline.flows.train.plan import Plan
from pipeline.flows.train.run_folder import CHECKPOINTS, RunFolder
from pipeline.log import announce
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.lora import adapt
from pipeline.objectives import NO_PEERS, Batch, Objective, OffersCandidates
from pipeline.objectives.build import build_objective
from pipeline.settings import EncoderSettings
from pipeline.settings.training import Measure, TrainSettings
from pipeline.text.rows.batches import RankSlice
from pipeline.text.rows.training_rows import changed_file, stamps_of
from pipeline.train.batches import rank_batches
from pipeline.train.check_finite import NonFinite
from pipeline.train.checkpoint import Checkpoints, load_state
from pipeline.train.dev import BestScore, DevFile, DevMetrics
from pipeline.train.gather import Ranks
from pipeline.train.loop import Step, Training, fit
from pipeline.train.metrics import MetricsFile, TrainingLog
from pipeline.train.predicted_rows import PredictedRows
from pipeline.train.trackers import TrackedRun, open_trackers
from pipeline.train.vector_metrics import batches_needed, measure_same_rows

_BEST = "best"  # key of `BestScore` in a checkpoint, next to the state of the training


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
        """Return whether to save the current weights: if it is time, or if they are the best or the last."""
        is_best = self._keeps_best and self._score_if_best() is not None
        # before `return`, because every rank must call `due`
        is_due = self._checkpoints.due(self.number) if self.number else False
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
        first = objective.parts[0]
        models = first.candidates() if isinstance(first, OffersCandidates) else (objective.trained_model(),)
        measured = [dev.metrics(model, objective) for model in models]
        scores = [metrics.score for metrics in measured]
        best = scores.index(max(scores))
        if isinstance(first, OffersCandidates):
            first.select(best)
        self.training.schedule.observe(scores[best])
        self.best = self.best.observe(self.number, scores[best])
        return measured[best]

    def _score_if_best(self) -> float | None:
        """Return the score on dev of the current weights if it is the best so far, else None."""
        return self.best.score if self.best.step == self.number else None


Reporter = Callable[[int, str], None]
"""a function that shows the number of finished steps, and their metrics as text"""


@dataclass(frozen=True)
class TrainRank:
    """Work of one rank: train the encoder; the first rank also stores the results."""

    run: RunFolder
    """folder of the training"""
    encoder: EncoderSettings
    """encoder that training starts from, with a path that workers can read"""
    settings: TrainSettings
    """settings of the training"""
    plan: Plan
    """rows and steps"""
    dev: DevFile | None = None
    """dev set, if any"""
    done_steps: int = 0
    """number of steps done before this command"""
    expansion: EncoderSettings | None = None
    """word vectors of `ExpandSettings`, if any, with a path that workers can read"""
    test: PredictedRows | None = None
    """test set, if any"""
    lease: str | None = None
    """file of the driver's lease in the folder; a rank that finds it sees the same folder"""

    def __call__(self, rank_slice: RankSlice, device: str, report: Reporter) -> None:
        """Train to the end; on the first rank, publish the trained model.

        Args:
            rank_slice: this rank, and the number of ranks.
            device: device of this rank.
            report: called after each step.

        Raises:
            ConfigError: this machine does not see the folder of the training.
            DataError: a value is not finite, and the batch is stored in the folder refused/; or a training
                file was replaced.
        """
        self._check_folder()
        with closing(Checkpoints(self.run.store, CHECKPOINTS, self.settings.checkpoint)) as checkpoints:
            training = Training(
                self._objective(),
                self.settings,
                steps=self.plan.steps,
                steps_per_epoch=self.plan.order.steps_per_epoch,
                device=device,
            )
            resumable = ResumableTraining(training, checkpoints, self.dev, steps=self.plan.steps)
            batches = self._batches(resumable.number, rank_slice, self.settings.max_length)
            with closing(batches), self._log(resumable, rank_slice) as log:
                self._train(resumable, rank_slice, batches, log, report)
            steps, checkpoint = resumable.number, resumable.final_checkpoint()
            scores = self._final_scores(training, checkpoint)
        if rank_slice.rank == 0:
            # A new objective, because the trained one may be sharded, on a GPU, or compiled.
            objective = self._objective()
            objective.load_state_dict(load_state(checkpoint)["objective"])
            publish(
                self.run,
                self.settings,
                objective.trained_model(),
                Outcome(steps, resumable.best, rank_slice.world, device, tuple(objective.warnings()), scores),
                self.expansion,
            )

    def _check_folder(self) -> None:
        """Check that this machine sees the folder in which the driver began the training."""
        if self.lease is not None and not self.run.store.exists(self.lease):
            raise ConfigError(
                f"train.root {self.run.store.uri}",
                "a folder that the driver and every worker see",
                f"a folder of its own on {socket.gethostname()}",
                "set train.root to a folder that all machines share, or to a URI such as s3://bucket/trainings",
            )

    def _train(
        self,
        resumable: ResumableTraining,
        rank_slice: RankSlice,
        batches: Generator[Batch, None, None],
        log: TrainingLog | None,
        report: Reporter,
    ) -> None:
        """Take all remaining steps, with their metrics and checkpoints.

        `log` is None on all ranks but the first.
        """
        # stamps of the files on this node; copies on other nodes may have other stamps
        stamps = {} if rank_slice.rank else stamps_of(self.plan.sources)
        try:
            dev = resumable.begin()
            same_rows = {} if resumable.number else self._measure_same_rows(resumable, rank_slice)
            if log is not None:
                log.begin(dev, same_rows)
            self._save_if_due(resumable, log, stamps)
            for step, dev in resumable.steps(batches):
                same_rows = self._measure_same_rows(resumable, rank_slice) if resumable.ended else {}
                if log is not None:
                    log.add(step, dev, same_rows)
                self._save_if_due(resumable, log, stamps)
                best = "" if resumable.best.score is None else f", best on dev {resumable.best.score:.2f}"
                report(step.number - self.done_steps, f"loss {float(step.loss.total):.4g}{best}")
        except (NonFinite, ModelError) as error:
            raise self._store_refused_batch(error, resumable.number + 1) from None

    def _save_if_due(
        self, resumable: ResumableTraining, log: TrainingLog | None, stamps: Mapping[str, str]
    ) -> None:
        """Save a checkpoint if it is wanted, but first store the metrics of all steps so far.

        Raises:
            DataError: a training file no longer has its stamp. Steps since the last checkpoint are discarded.
        """
        if not resumable.wants_checkpoint():
            return
        if (changed := changed_file(stamps, self.plan.sources)) is not None:
            raise DataError(
                changed,
                "the file with which training began",
                "another one, or none",
                "train on files that do not change; with other files it is another training, so change "
                "train.name if it is set",
            )
        if log is not None:
            log.checkpoint()
        resumable.save()

    def _measure_same_rows(self, resumable: ResumableTraining, rank_slice: RankSlice) -> dict[str, float]:
        """Measure metrics on the batches that would follow the last step; empty if there is a dev set.

        The rows are the same before the first step and after the last. A training that ends within its first
        epoch has not seen them. Texts are truncated as the trained encoder truncates them, not by
        train.max_length.
        """
        if self.dev is not None:
            return {}
        count = batches_needed(self.plan.order, self.plan.steps)
        with closing(self._batches(self.plan.steps, rank_slice)) as batches:
            return measure_same_rows(resumable.training, list(islice(batches, count)))

    def _final_scores(self, training: Training, checkpoint: Path) -> Mapping[str, Mapping[Measure, float]]:
        """Measure the trained model's predictions on dev and test by all their metrics; see `Outcome.scores`.

        Every rank has to call it. The training gets the weights of the checkpoint.
        """
        files = {"dev": self.dev, "test": self.test}
        predicted = {name: rows for name, rows in files.items() if isinstance(rows, PredictedRows)}
        if not predicted:
            return {}
        training.restore(load_state(checkpoint))
        objective = training.objective
        return {name: rows.scores(objective.trained_model(), objective) for name, rows in predicted.items()}

    def _log(
        self, resumable: ResumableTraining, rank_slice: RankSlice
    ) -> AbstractContextManager[TrainingLog | None]:
        """Open the log on the first rank; other ranks get a context with None."""
        if rank_slice.rank:
            return nullcontext()
        objective, watch = resumable.training.objective, self.settings.watch
        for warning in objective.warnings():
            announce(warning)
        return TrainingLog(
            MetricsFile(self.run.store, step=resumable.number),
            open_trackers(
                watch, TrackedRun(self.run.name, self.run.store, self.run.definition, resumable.number)
            ),
            every=watch.steps,
            steps_per_epoch=self.plan.order.steps_per_epoch,
            positives=objective.has_positive_pairs,
        )

    def _objective(self) -> Objective:
        """Build the objective. All weights, new ones included, are equal on every rank."""
        torch.manual_seed(self.settings.seed)
        encoder = load_trainable(
            open_folder(self.encoder, cross_encoder=True),
            dropout=self.settings.dropout,
            fresh=self.settings.fresh,
        )
        adapt(encoder, self.settings.lora)
        return build_objective(self.settings, encoder)

    def _batches(
        self, start: int, rank_slice: RankSlice, max_length: int | None = None
    ) -> Generator[Batch, None, None]:
        """Yield this rank's batches after step `start`.

        Args:
            start: number of steps before the first batch.
            rank_slice: this rank, and the number of ranks.
            max_length: number of tokens to which texts are truncated; None for the encoder's limit.
        """
        folder = open_folder(self.encoder, cross_encoder=True)
        tokenize = replace(folder, max_length=max_length or folder.max_length).tokenizer()
        peers = Ranks() if self.settings.across_ranks else NO_PEERS
        return rank_batches(self.plan.order, tokenize, start=start, rank_slice=rank_slice, peers=peers)

    def _store_refused_batch(self, error: NonFinite | ModelError, step: int) -> DataError:
        """Store the rows that all ranks together have in the step, and return an error that names their file.

        Every rank that has the error stores the same file, because other ranks may not notice the error.
        """
        path, content = f"refused/step-{step}.parquet", pa.BufferOutputStream()
        pq.write_table(next(self.plan.order.batches(step - 1)).table, content)
        self.run.store.write(path, content.getvalue().to_pybytes())
        return DataError(
            error.where if error.where.startswith("step") else f"step {step}: {error.where}",
            error.expected,
            error.found,
            f"the batch is in {self.run.store.uri_of(path)}; {error.remedy}",
        )
