"""Train an encoder: check the settings, run the training on the cluster, continue after an interruption."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Literal

from pipeline.errors import DataError
from pipeline.flows.context import FlowContext
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.train.mine import check_mining, mine
from pipeline.flows.train.plan import Plan, check_encoder, check_settings, open_dev, open_test, plan_of
from pipeline.flows.train.rank import TrainRank
from pipeline.flows.train.ranks import RankGroup
from pipeline.flows.train.run_folder import (
    CHECKPOINTS,
    RESULT,
    RUN,
    ResultRecord,
    RunFolder,
    RunRecord,
    open_run,
)
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.interface import Workers
from pipeline.log import Stages, announce
from pipeline.models.folder.folder import announce_warnings, open_folder
from pipeline.models.trainable.expansion import check_expansion
from pipeline.settings import Job
from pipeline.settings.training import SourceSettings, TrainSettings
from pipeline.store.files.lease import describe_holders, lease
from pipeline.store.files.open_store import open_store
from pipeline.text.rows.augmented import is_manifest_in, newest_manifest
from pipeline.train.initial_state import starting_encoder

_LEASES = "leases"  # subfolder of a training
_MINED = "mined"  # subfolder of train.root; trainings with the same encoder and rows share its files


@dataclass(frozen=True)
class CompletedTraining:
    """A training that is complete; its status is "unchanged" if an earlier command completed it."""

    status: Literal["trained", "unchanged"]
    run: RunFolder
    result: ResultRecord


def train(job: Job, stages: Stages, *, verbose: bool = False) -> CompletedTraining:
    """Train the encoder of the job. The same command continues where an earlier one stopped.

    Raises:
        ConfigError: invalid settings, a name that another training has, or a cluster without room; raised
            before any worker starts.
        DataError: unusable rows, before any worker starts; later, values that are not finite.
        ModelError: an unusable encoder, before any worker starts.
        TransientError: workers died more often than train.failures.
    """
    job, run = open_training(job)
    group = RankGroup(job.train, job.cluster, run.name)
    folder = open_folder(job.encoder, cross_encoder=True)
    check_encoder(job.train, folder)
    announce_warnings(folder)
    vectors = job.train.expand.vectors
    if vectors is not None:
        check_expansion(open_folder(job.encoder), open_folder(vectors), job.train.expand.vocabulary)
    run.check()
    if (result := run.result()) is not None:
        return CompletedTraining("unchanged", run, result)
    dev, test = open_dev(job.train), open_test(job.train)
    plan: Plan | None = None  # made on the cluster, after hard negatives are mined
    if job.train.mine.enabled:
        check_settings(job.train)  # all settings, because a mistake found after mining costs hours
        check_mining(job)
    else:
        plan = _plan(job.train, stages)  # checks the rows before the cluster is used
    root = open_store(job.train.root)
    with connect(job.cluster, stages, verbose=verbose, stores={"train.root": root}) as workers:
        group.check(workers)
        if plan is None:
            plan = _plan(_mine_negatives(job, workers, stages), stages)
        name = str(job.train.new_encoder or job.encoder.path)
        done_steps = record_start(run, plan, name, [source.uri for source in job.train.data])
        for other in describe_holders(run.store, _LEASES):
            announce(
                f"another command runs this training ({other}): each does all of it, with the same result"
            )
        encoder = encoder_for_workers(job.encoder, root, workers)
        expansion = None if vectors is None else encoder_for_workers(vectors, root, workers)
        with (
            lease(run.store, _LEASES) as held,
            stages("training", plan.steps - done_steps, "steps") as bar,
        ):
            group.run(TrainRank(run, encoder, job.train, plan, dev, done_steps, expansion, test, held), bar)
            result = run.final_result()
            bar.reach(max(result.steps - done_steps, 0))
    return CompletedTraining("trained", run, result)


def open_training(job: Job) -> tuple[Job, RunFolder]:
    """Open the training of a job.

    Returns:
        The job with its starting encoder and its manifests resolved, and the folder of the training. If an
        equal training is unfinished, the manifests are those that it began with, else the newest ones.
    """
    *recorded, newest = resolve_manifests(job.train)
    for settings in recorded:  # this training may be one of the unfinished ones
        try:
            resolved, run = _open_with(job, settings)
            record = RunRecord.load_intact(run.store, RUN)
        except DataError:  # a unit of that training is missing, or its record has another version
            continue
        if record is not None and record.digest == run.digest and run.result() is None:
            if settings != newest:
                announce(
                    f"training {run.name} continues with {', '.join(record.sources)}, though there is a "
                    "later manifest"
                )
            return resolved, run
    return _open_with(job, newest)


def _open_with(job: Job, settings: TrainSettings) -> tuple[Job, RunFolder]:
    """Open the training of the job with these training settings."""
    job = job.model_copy(update={"train": settings})
    if settings.new_encoder is not None:
        job = job.model_copy(update={"encoder": starting_encoder(settings, job.encoder)})
    return job, open_run(settings, open_folder(job.encoder, cross_encoder=True))


def _plan(settings: TrainSettings, stages: Stages) -> Plan:
    """Plan the training, shown as the stage "data"."""
    with stages("data") as stage:
        plan = plan_of(settings)
        stage.add(sum(counts["rows"] for counts in plan.counts))
    return plan


def _mine_negatives(job: Job, workers: Workers, stages: Stages) -> TrainSettings:
    """Mine hard negatives, and return the training settings with the mined rows as data."""
    store = open_store(f"{open_store(job.train.root).uri}/{_MINED}")
    return job.train.model_copy(
        update={"data": mine(FlowContext(job, store, workers, stages), job.train.data)}
    )


def record_start(run: RunFolder, plan: Plan, encoder: str, sources: Sequence[str] = ()) -> int:
    """Record the training in its folder, and log whether it continues an earlier run.

    Args:
        run: folder of the training.
        plan: rows and steps.
        encoder: name of the encoder that training starts from.
        sources: URIs of the rows.

    Returns:
        Number of steps that are already done.
    """
    run.begin(
        RunRecord(
            name=run.name,
            digest=run.digest,
            definition=run.definition,
            encoder=encoder,
            counts=tuple(dict(counts) for counts in plan.counts),
            lexical_overlap=tuple(dict(overlap) for overlap in plan.overlaps),
            steps_per_epoch=plan.order.steps_per_epoch,
            steps=plan.steps,
            sources=tuple(sources),
        )
    )
    # Records of checkpoints are named step-00000120-HASH.json.
    names = [entry.path.rpartition("/")[2] for entry in run.store.list(CHECKPOINTS, ".json")]
    done = max((int(name.split("-")[1]) for name in names), default=0)
    if done:
        announce(f"training {run.name} continues after step {done:,} of {plan.steps:,}")
    return done


def resolve_manifests(settings: TrainSettings) -> Iterator[TrainSettings]:
    """Yield variants of the settings in which each folder of manifests is replaced by one of its manifests.

    Each run of an augmentation adds a manifest to its folder, and a training that resumes must read the same
    rows as before.
    The first variants have the manifests of the unfinished trainings below train.root, the latest training
    first; other settings of these trainings are not compared. The last variant has the newest manifests.
    Without any folder of manifests, the settings are yielded once, unchanged.

    Raises:
        DataError: manifests cannot be listed.
    """
    newest = [newest_manifest(source.uri) for source in settings.data]  # None for other sources
    if not any(newest):
        yield settings
        return
    for recorded in _sources_of_unfinished(settings):
        if _match(settings.data, newest, recorded):
            yield _replace_uris(
                settings, [uri if manifest else None for manifest, uri in zip(newest, recorded, strict=True)]
            )
    yield _replace_uris(settings, newest)


def _replace_uris(settings: TrainSettings, uris: Sequence[str | None]) -> TrainSettings:
    """Return the settings with other URIs of their data; None keeps the URI of a source."""
    sources = tuple(
        source.model_copy(update={"uri": uri or source.uri})
        for source, uri in zip(settings.data, uris, strict=True)
    )
    return settings.model_copy(update={"data": sources})


def _match(data: Sequence[SourceSettings], newest: Sequence[str | None], recorded: Sequence[str]) -> bool:
    """Return whether a training could have recorded these URIs for the sources of the settings.

    For each source that is a folder of manifests, the recorded URI must be a manifest of that folder. Other
    sources are not compared.

    Args:
        data: sources of the settings.
        newest: newest manifest of each source; None for a source that is not a folder of manifests.
        recorded: URIs that a training recorded for its sources.
    """
    return len(data) == len(recorded) and all(
        manifest is None or is_manifest_in(uri, source.uri)
        for source, manifest, uri in zip(data, newest, recorded, strict=True)
    )


def _sources_of_unfinished(settings: TrainSettings) -> Iterator[tuple[str, ...]]:
    """Yield the recorded sources of unfinished trainings, the latest training first.

    If train.name is set, only the training of this name counts. A training whose record
    has another version or is truncated is skipped.
    """
    store = open_store(settings.root)
    files = {
        entry.path: entry
        for entry in store.list("", ".json")
        if settings.name in (None, entry.path.partition("/")[0])
    }
    unfinished = [
        entry
        for path, entry in files.items()
        if path.count("/") == 1 and path.endswith(f"/{RUN}") and path.removesuffix(RUN) + RESULT not in files
    ]
    for entry in sorted(unfinished, key=lambda entry: -entry.modified):
        with suppress(DataError):
            if (record := RunRecord.load_intact(store, entry.path)) is not None:
                yield record.sources


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
        """Seed with the highest score on dev, the first if several have it; None without dev."""
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
