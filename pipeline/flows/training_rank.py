"""What each worker of a training does: its share of every batch, from the last checkpoint on; the first rank keeps the checkpoints and makes the product."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.flows.training_plan import Plan
from pipeline.flows.training_product import publish
from pipeline.flows.training_run import CHECKPOINTS, RunFolder
from pipeline.models.folder import open_folder
from pipeline.settings import EncoderSettings
from pipeline.settings.training import TrainSettings
from pipeline.text.batches import Share
from pipeline.text.tokens import load_tokenizer

if TYPE_CHECKING:
    from pipeline.objectives import Objective
    from pipeline.train.checkpoint import Checkpoints
    from pipeline.train.finite import NonFinite
    from pipeline.train.loop import Step, Training

Tell = Callable[[int, str], None]


@dataclass(frozen=True)
class TrainRank:
    """One rank's work. encoder: what the training starts from, as workers can load it; begun: steps that were done when the command was given."""

    run: RunFolder
    encoder: EncoderSettings
    settings: TrainSettings
    plan: Plan
    begun: int = 0

    def __call__(self, share: Share, device: str, tell: Tell) -> None:
        """Train to the end, and publish what came of it. DataError where numbers are not finite any more, with the batch in refused/."""
        from pipeline.train.checkpoint import Checkpoints
        from pipeline.train.finite import NonFinite

        with Checkpoints(self.run.store, CHECKPOINTS, self.settings.checkpoint) as checkpoints:
            training = self._begun(device, checkpoints)
            try:
                for step in self._steps(training, share):
                    if step.number < self.plan.steps and checkpoints.due(step.number):
                        checkpoints.save(step.number, training.state())
                    tell(step.number - self.begun, f"loss {float(step.loss.total):.4g}")
            except NonFinite as error:
                raise self._refused(error, share) from None
            checkpoints.save(training.number, training.state())
        if share.rank == 0:
            publish(self.run, training.objective, training.number)

    def _begun(self, device: str, checkpoints: "Checkpoints") -> "Training":
        """At its beginning, or as the last checkpoint left it."""
        from pipeline.train.loop import Training

        training = Training(self._objective(), self.settings, steps=self.plan.steps, steps_per_epoch=self.plan.steps_per_epoch, device=device)
        if (last := checkpoints.last()) is not None:
            training.restore(last.load())
        return training

    def _objective(self) -> "Objective":
        """The same on every rank, new weights included."""
        import torch

        from pipeline.models.trainable import load_trainable
        from pipeline.objectives.build import build_objective

        torch.manual_seed(self.settings.seed)
        return build_objective(self.settings, load_trainable(open_folder(self.encoder), dropout=self.settings.dropout))

    def _steps(self, training: "Training", share: Share) -> "Iterator[Step]":
        from pipeline.objectives import ALONE
        from pipeline.train.batches import batches
        from pipeline.train.gather import Ranks
        from pipeline.train.loop import fit

        folder = open_folder(self.encoder)
        tokenize = load_tokenizer(folder.path / folder.transformer, folder.max_length, prompt=folder.prompt, lower=folder.lower, cuts=folder.cuts)
        peers = Ranks() if self.settings.across_ranks else ALONE
        with closing(batches(self.plan.order, tokenize, start=training.number, share=share, peers=peers)) as stream:
            yield from fit(training, stream, until=self.plan.steps)

    def _refused(self, error: "NonFinite", share: Share) -> DataError:
        """The error without the batch, which is stored."""
        path = f"refused/step-{error.step}.parquet"
        if share.rank == 0:
            sink = pa.BufferOutputStream()
            pq.write_table(pa.table({**error.columns, "row": error.rows}), sink)
            self.run.store.write(path, sink.getvalue().to_pybytes())
        return DataError(error.where, error.expected, error.found, f"the batch is in {self.run.store.uri_of(path)}: {error.remedy}")
