"""Train with several seeds, and summarize the scores: the median, and the score of the best seed on dev."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from pipeline.flows.train.train import CompletedTraining, train
from pipeline.log import Stages
from pipeline.settings import Job

_DEV, _FILES = "dev", ("dev", "test")


@dataclass(frozen=True)
class ScoreOverSeeds:
    """One score of trainings that differ by their seed."""

    median: float
    """median over the seeds"""
    best: float | None
    """score of the seed that is best on dev, so that no test file chooses it; None without dev"""
    by_seed: Mapping[int, float]
    """score of each seed"""


@dataclass(frozen=True)
class TrainedSeeds:
    """Completed trainings by seed, in the order of train.seeds."""

    trainings: Mapping[int, CompletedTraining]

    @property
    def best(self) -> int | None:
        """Seed with the highest score on dev, the first of several; None without dev."""
        scores = {seed: each.result.metrics.get(_DEV) for seed, each in self.trainings.items()}
        measured = {seed: score for seed, score in scores.items() if score is not None}
        return max(measured, key=measured.__getitem__) if measured else None

    def scores(self) -> dict[str, ScoreOverSeeds]:
        """Summarize each score on dev and test, by its name in `ResultRecord.metrics`."""
        metrics = {seed: each.result.metrics for seed, each in self.trainings.items()}
        names = [name for name in next(iter(metrics.values())) if name.partition("_")[0] in _FILES]
        return {name: self._summarize({seed: each[name] for seed, each in metrics.items()}) for name in names}

    def _summarize(self, by_seed: Mapping[int, float]) -> ScoreOverSeeds:
        best = None if self.best is None else by_seed[self.best]
        return ScoreOverSeeds(median(by_seed.values()), best, by_seed)


def train_seeds(job: Job, stages: Stages, *, verbose: bool = False) -> TrainedSeeds:
    """Train the encoder of the job with each of train.seeds, one training after the other.

    The same command continues where an earlier one stopped; complete trainings are not repeated.

    Raises:
        ConfigError, DataError, ModelError, TransientError: as in `train`.
    """
    return TrainedSeeds(
        {
            seed: train(job_of_seed(job, seed), stages.under(f"seed {seed}"), verbose=verbose)
            for seed in job.train.seeds
        }
    )


def job_of_seed(job: Job, seed: int) -> Job:
    """Return the job of the training with one of the seeds, in a folder of its own."""
    settings = job.train
    changed = {
        "name": settings.name and f"{settings.name}-seed-{seed}",  # a generated name depends on the seed
        "seed": seed,
        "seeds": (),
        "order": settings.order.model_copy(update={"seed": seed}),
    }
    return job.model_copy(update={"train": settings.model_copy(update=changed)})
