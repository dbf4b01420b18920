"""The work of one rank of a training; the first rank stores the results."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError, ModelError
from pipeline.flows.train.plan import Plan
from pipeline.flows.train.product import Outcome, publish
from pipeline.flows.train.run_folder import CHECKPOINTS, METRICS, RunFolder
from pipeline.log import say
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings
from pipeline.settings.training import TrainSettings
from pipeline.text.rows.batches import RankSlice

if TYPE_CHECKING:
    from pipeline.flows.train.course import TrainCourse
    from pipeline.objectives import Batch, Objective
    from pipeline.train.dev import DevSet
    from pipeline.train.finite import NonFinite
    from pipeline.train.metrics import TrainingLog

Reporter = Callable[[int, str], None]


@dataclass(frozen=True)
class TrainRank:
    """Train an encoder on one rank.

    Attributes:
        run: folder of the training.
        encoder: encoder that training starts from, as workers can load it.
        settings: settings of the training.
        plan: rows and steps.
        dev: dev set, if any.
        begun: number of steps done before this command.
    """

    run: RunFolder
    encoder: EncoderSettings
    settings: TrainSettings
    plan: Plan
    dev: "DevSet | None" = None
    begun: int = 0

    def __call__(self, share: RankSlice, device: str, report: Reporter) -> None:
        """Train to the end, and publish the product on the first rank.

        Raises:
            DataError: a value is not finite; the batch is stored below refused/.
        """
        from pipeline.flows.train.course import TrainCourse
        from pipeline.train.checkpoint import Checkpoints, load_state
        from pipeline.train.loop import Training

        steps, per_epoch = self.plan.steps, self.plan.order.steps_per_epoch
        length = self.settings.max_length
        with Checkpoints(self.run.store, CHECKPOINTS, self.settings.checkpoint) as checkpoints:
            training = Training(
                self._objective(), self.settings, steps=steps, steps_per_epoch=per_epoch, device=device
            )
            course = TrainCourse(training, checkpoints, self.dev, steps=steps)
            rows = self._batches(course.number, share, length)
            with closing(rows) as batches, self._log(course, share) as log:
                self._follow(course, share, batches, log, report)
            chosen = course.product()
        if share.rank == 0:
            # a new objective, because the trained one may be sharded, on a GPU, or compiled
            objective = self._objective()
            objective.load_state_dict(load_state(chosen)["objective"])
            publish(
                self.run,
                self.settings,
                objective.product(),
                Outcome(course.number, course.best, share.world, device, tuple(objective.warnings())),
            )

    def _follow(
        self,
        course: "TrainCourse",
        share: RankSlice,
        batches: "Generator[Batch, None, None]",
        log: "TrainingLog | None",
        report: Reporter,
    ) -> None:
        from pipeline.train.finite import NonFinite

        try:
            score = course.begin()
            same_rows = {} if course.number else self._same_rows(course, share)
            if log is not None:
                log.begin(score, same_rows)
            _keep(course, log)
            for step, score in course.steps(batches):
                same_rows = self._same_rows(course, share) if course.ended else {}
                if log is not None:
                    log.add(step, score, same_rows)
                _keep(course, log)
                dev = "" if course.best.figure is None else f", best on dev {course.best.figure:.2f}"
                report(step.number - self.begun, f"loss {float(step.loss.total):.4g}{dev}")
        except (NonFinite, ModelError) as error:
            raise self._refused(error, course.number + 1) from None

    def _same_rows(self, course: "TrainCourse", share: RankSlice) -> dict[str, float]:
        """Return metrics of the batches that would follow the last step; empty with a dev set.

        A training that ends within its first epoch has not seen their rows. Texts are read as the trained
        encoder will read them, whatever train.max_length is.
        """
        from pipeline.train.same_rows import batches_needed, measure_same_rows

        if self.dev is not None:
            return {}
        with closing(self._batches(self.plan.steps, share)) as batches:
            return measure_same_rows(
                course.training, list(islice(batches, batches_needed(self.plan.order, self.plan.steps)))
            )

    def _log(self, course: "TrainCourse", share: RankSlice) -> "AbstractContextManager[TrainingLog | None]":
        """Open the log of the first rank; None on others."""
        from pipeline.train.metrics import MetricsFile, TrainingLog
        from pipeline.train.trackers import TrackedRun, open_trackers

        if share.rank:
            return nullcontext()
        objective, watch = course.training.objective, self.settings.watch
        for warning in objective.warnings():
            say(warning)
        return TrainingLog(
            MetricsFile(self.run.store, METRICS, step=course.number),
            open_trackers(
                watch, TrackedRun(self.run.name, self.run.store, self.run.definition, course.number)
            ),
            every=watch.steps,
            steps_per_epoch=self.plan.order.steps_per_epoch,
            positives=objective.has_positive_pairs,
        )

    def _objective(self) -> "Objective":
        """Build the objective; its weights, new ones included, are equal on every rank."""
        import torch

        from pipeline.models.trainable.encoder import load_trainable
        from pipeline.models.trainable.lora import adapt
        from pipeline.objectives.build import build_objective

        torch.manual_seed(self.settings.seed)
        encoder = load_trainable(
            open_folder(self.encoder), dropout=self.settings.dropout, fresh=self.settings.fresh
        )
        adapt(encoder, self.settings.lora)
        return build_objective(self.settings, encoder)

    def _batches(
        self, start: int, share: RankSlice, max_length: int | None = None
    ) -> "Generator[Batch, None, None]":
        """Yield this rank's batches from step `start` on.

        Args:
            start: first step.
            share: rows of this rank.
            max_length: tokens of a text that are read; None for as many as the encoder reads.
        """
        from pipeline.objectives import NO_PEERS
        from pipeline.train.batches import batches
        from pipeline.train.gather import Ranks

        folder = open_folder(self.encoder)
        tokenize = replace(folder, max_length=max_length or folder.max_length).tokenizer()
        peers = Ranks() if self.settings.across_ranks else NO_PEERS
        return batches(self.plan.order, tokenize, start=start, share=share, peers=peers)

    def _refused(self, error: "NonFinite | ModelError", step: int) -> DataError:
        """Store the batch of all ranks, and return the error with its URI.

        Every rank that has the error stores the batch, because the others may not come to it.
        """
        path, sink = f"refused/step-{step}.parquet", pa.BufferOutputStream()
        pq.write_table(next(self.plan.order.batches(step - 1)).table, sink)
        self.run.store.write(path, sink.getvalue().to_pybytes())
        return DataError(
            error.where if error.where.startswith("step") else f"step {step}: {error.where}",
            error.expected,
            error.found,
            f"the batch is in {self.run.store.uri_of(path)}; {error.remedy}",
        )


def _keep(course: "TrainCourse", log: "TrainingLog | None") -> None:
    """Save a checkpoint if one is due, after writing the log up to it."""
    if course.wants_checkpoint():
        if log is not None:
            log.checkpoint()
        course.save()
